"""One node on an engine: its two containers, up, each with a channel.

The training container may be killed while the agent's, and the node's network with it, stays; the
next process that is started there gets a fresh one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import time
from collections.abc import Callable
from typing import Any, Final

from chaoslab.cluster import linux
from chaoslab.cluster.containers import recipes
from chaoslab.cluster.containers.attachment import Attachment, attach
from chaoslab.cluster.containers.engine import Engine
from chaoslab.cluster.containers.recipes import Plan
from chaoslab.errors import ClusterError, HarnessError

_READY_LIMIT_S: Final = 300.0
"""Of its imports: minutes in user-mode Linux. A container that ends is noticed at once."""

_ANSWER_LIMIT_S: Final = 20.0
_STREAMS: Final = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
_UPGRADE: Final = {"Connection": "Upgrade", "Upgrade": "tcp"}
_CLOCK_ASKS: Final = 8
_SAME_CLOCK_S: Final = 0.001

Json = dict[str, Any]


@dataclasses.dataclass(kw_only=True)
class Container:
    """One container that runs: its id, its streams, and what it said when it was ready."""

    name: str
    id: str
    attachment: Attachment
    ready: asyncio.Future[Json]


class Node:
    """One node. offset_s: what to add to its times to have them on the harness's clock.

    running: the pids, by key, of the processes that were started in the training container.
    """

    def __init__(self, engine: Engine, plan: Plan, number: int, address: str) -> None:
        self.number, self.address = number, address
        self.offset_s = 0.0
        self.agent: Container
        self.pod: Container
        self.running: dict[str, int] = {}
        self._engine, self._plan = engine, plan
        self._ended: set[str] = set()
        self._killed: set[str] = set()
        self._renewal = asyncio.Lock()
        self._changed = asyncio.Condition()

    async def start_agent(self, on_event: Callable[[Json], None]) -> None:
        """Start the agent's container, and the node's network with it. Raises: ClusterError."""
        device, inode = linux.netns_identity()
        name = f"agent of node {self.number}"
        made = await self._engine.call(
            f"create the {name}",
            recipes.create_agent,
            self._engine,
            self._plan,
            node=self.number,
            address=self.address,
            forbidden=f"{device}:{inode}",
        )
        self.agent = await self._run(name, made, on_event)

    async def start_pod(self, on_event: Callable[[Json], None], preload: str | None) -> None:
        """Start the training container, or the store's where preload is None."""

        def take(event: Json) -> None:
            if event["event"] == "exited" and event["key"] is not None:
                self._ended.add(event["key"])
                self.running.pop(event["key"], None)
            on_event(event)

        self._pod_of = on_event, preload
        name = f"container of node {self.number}"
        made = await self._engine.call(
            f"create the {name}",
            recipes.create_pod,
            self._engine,
            self._plan,
            node=self.number,
            agent=self.agent.id,
            preload=preload,
        )
        self.pod = await self._run(name, made, take)

    async def spawn(self, start: dict[str, Any]) -> Json:
        """Start a process in the training container, in a fresh one if a fault has killed it.

        Raises: ClusterError; HarnessError when the container does not answer.
        """
        while True:
            async with self._renewal:
                if self.pod_is_gone and self.pod_was_killed:
                    await self.start_pod(*self._pod_of)
                    await until_ready(self.pod)
                    async with self._changed:
                        self._changed.notify_all()
            pod = self.pod
            try:
                answer = await self.ask("spawn", start=start)
            except HarnessError:
                if pod.id in self._killed:  # meanwhile
                    await pod.attachment.channel.ended.wait()
                    continue
                raise
            if start["key"] not in self._ended:
                self.running[start["key"]] = int(answer["pid"])
            return answer

    async def renewed(self, old: Container) -> None:
        """Wait until there is another training container than this one."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.pod is not old)

    @property
    def pod_is_gone(self) -> bool:
        """Tell whether the training container has ended."""
        return self.pod.attachment.channel.ended.is_set()

    @property
    def pod_was_killed(self) -> bool:
        """Tell whether a fault of this run has killed the training container."""
        return self.pod.id in self._killed

    async def kill_pod(self) -> bool:
        """Kill the training container with all that runs in it, as the engine does.

        Returns False when it was gone already. Raises: ClusterError.
        """
        if self.pod_is_gone:
            return False
        self._killed.add(self.pod.id)
        name, kill = f"kill the {self.pod.name}", self._engine.api.kill
        await self._engine.call(name, kill, self.pod.id, signal.SIGKILL)
        return True

    async def _run(self, name: str, made: str, on_event: Callable[[Json], None]) -> Container:
        api = self._engine.api
        ready: asyncio.Future[Json] = asyncio.get_running_loop().create_future()

        def take(event: Json) -> None:
            if event["event"] == "ready" and not ready.done():
                ready.set_result(event)
            on_event(self.shifted(event))

        response = await self._engine.call(
            f"attach to the {name}",
            self._engine.stream,
            "post",
            "/containers/{0}/attach",
            made,
            params=_STREAMS,
            headers=_UPGRADE,
        )
        raw = api._get_raw_response_socket(response)  # noqa: SLF001
        attachment = await attach(f"the {name}", response, raw, take)
        container = Container(name=name, id=made, attachment=attachment, ready=ready)
        try:
            await self._engine.call(f"start the {name}", api.start, made)
        except BaseException:
            await attachment.close()
            raise
        return container

    async def measure_clock(self) -> None:
        """Compare the node's CLOCK_MONOTONIC with the harness's: an engine may be elsewhere.

        The ask that took least time tells most; less than 1 ms is the same clock.
        """
        best_s, offset_s = float("inf"), 0.0
        for _ in range(_CLOCK_ASKS):
            before_s = time.monotonic()
            told = await self.ask("clock")
            after_s = time.monotonic()
            if after_s - before_s < best_s:
                best_s = after_s - before_s
                offset_s = (before_s + after_s) / 2 - float(told["t_s"])
        self.offset_s = offset_s if abs(offset_s) > max(_SAME_CLOCK_S, best_s) else 0.0

    async def ask(self, op: str, **fields: Any) -> Json:
        """Ask the pod. Raises: ClusterError; HarnessError when it does not answer."""
        channel = self.pod.attachment.channel
        answer = await channel.request(op, limit_s=_ANSWER_LIMIT_S, **fields)
        if not answer["ok"]:
            raise ClusterError(f"node {self.number}: {op}: {answer['error']}")
        return answer

    def shifted(self, message: Json) -> Json:
        """Give a message with its time on the harness's clock."""
        if self.offset_s and isinstance(message.get("t_s"), int | float):
            return message | {"t_s": message["t_s"] + self.offset_s}
        return message


async def until_ready(container: Container) -> Json:
    """Wait until a container is ready; give what it said. Raises: ClusterError with its words."""
    ended = asyncio.get_running_loop().create_task(container.attachment.channel.ended.wait())
    try:
        await asyncio.wait(
            (ended, container.ready),
            timeout=_READY_LIMIT_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
    finally:
        ended.cancel()
    if container.ready.done():
        return container.ready.result()
    is_over = container.attachment.channel.ended.is_set()
    what = "ended" if is_over else f"said nothing for {_READY_LIMIT_S} s"
    raise ClusterError(
        f"the {container.name} {what} before it was ready: {container.attachment.said}"
    )
