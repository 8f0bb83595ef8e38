"""A run's nodes on a Docker engine, as every backend offers them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from chaoslab.cluster import interface, keys
from chaoslab.cluster.channel import Channel
from chaoslab.cluster.containers.engine import Engine
from chaoslab.cluster.containers.mirror import Mirror
from chaoslab.cluster.containers.node import Node
from chaoslab.cluster.containers.recipes import CHECKPOINTS, INTERFACE
from chaoslab.cluster.spawn import Start
from chaoslab.cluster.supervisor import GONE
from chaoslab.errors import ClusterError

_ASK_EVERY_S: Final = 10.0
_ENDED: Final = (404, 409)
"""The engine's answers about a container that is gone, or has just ended."""

_PS: Final = "-o stat,time,pid"
"""The engine wants the pid among the columns."""


class DockerCluster:
    """See chaoslab.cluster.interface.Cluster."""

    interface: Final = INTERFACE

    def __init__(self, *, engine: Engine, nodes: Sequence[Node], mirror: Mirror) -> None:
        self.nodes = len(nodes) - 1
        self.addresses = tuple(node.address for node in nodes)
        self._engine, self._nodes, self._mirror = engine, nodes, mirror
        self._why_lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._key_nodes: dict[str, Node] = {}

    @property
    def agents(self) -> list[Channel]:
        """Give the channels to the agents, by node."""
        return [node.agent.attachment.channel for node in self._nodes]

    @property
    def store_node(self) -> int:
        """Give the number of the node that hosts the store."""
        return self.nodes

    def clock_offset_s(self, node: int) -> float:
        """Give what to add to a time of this node to have it on the harness's CLOCK_MONOTONIC."""
        return self._nodes[node].offset_s

    async def gone(self) -> None:
        """Wait until a training container is gone that nobody has ended. Raises: ClusterError."""
        waited = (self._mirror.failed(), self._engine_answers(), self._lost())
        tasks = [asyncio.ensure_future(one) for one in waited]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def lose(self, reason: str) -> None:
        """Take the news that a training container is gone that this run has not ended."""
        if not self._why_lost.done():
            self._why_lost.set_result(reason)

    async def _lost(self) -> None:
        raise ClusterError(await asyncio.shield(self._why_lost))

    async def _engine_answers(self) -> None:
        """Ask through the engine, now and then: one that hangs closes no stream.

        Raises: ClusterError when a pod does not answer.
        """
        while True:
            await asyncio.sleep(_ASK_EVERY_S)
            await self._nodes[-1].ask("clock")

    async def start(
        self,
        key: str,
        node: int,
        argv: list[str],
        *,
        mode: str,
        env: dict[str, str],
        cwd: str,
        log: Path,
        events: Path | None,
    ) -> tuple[int, float]:
        """Start a process in a node's container. Returns its pid there, and when it started."""
        for place in (log, events):
            if place is not None:
                self._mirror.expect(node, place)
        start = Start(key=key, node=node, mode=mode, argv=argv, env=env, cwd=cwd, log=log.name)
        self._key_nodes[key] = self._nodes[node]
        answer = self._nodes[node].shifted(await self._nodes[node].spawn(vars(start)))
        return int(answer["pid"]), float(answer["t_s"])

    async def empty(self, node: int) -> None:
        """Kill every process of a node but its agent."""
        if not self._nodes[node].pod_is_gone:
            await self._nodes[node].ask("empty", node=node)

    async def signal(self, key: str, number: int, *, tree: bool = False) -> bool:
        """Signal a process by its key; tree: all that descend from it, too."""
        if (node := keys.agents_node(key)) is not None:
            return await self._signal_agent(node, number)
        node_of = self._node_of(key)
        if node_of.pod_is_gone:
            return False
        if keys.containers_node(key) is not None and number == signal.SIGKILL:
            return await node_of.kill_pod()
        answer = await node_of.ask("signal", key=key, signal=number, tree=tree)
        return not answer["gone"]

    async def look(self, key: str, *, tree: bool = False) -> dict[str, Any]:
        """Look at a process: its state, processor time and signals."""
        if (node := keys.agents_node(key)) is not None:
            return await self._look_at_agent(node)
        node_of = self._node_of(key)
        return dict(GONE) if node_of.pod_is_gone else await node_of.ask("state", key=key, tree=tree)

    async def processes(self) -> list[dict[str, Any]]:
        """List the run's processes."""
        whole = [node for node in self._nodes if not node.pod_is_gone]
        answers = await asyncio.gather(*(node.ask("processes") for node in whole))
        return [process for answer in answers for process in answer["processes"]]

    async def fill(self, *, full: bool) -> dict[str, Any]:
        """Fill the volume of the checkpoints, or free it again, and try to write a byte."""
        whole = [node for node in self._nodes[: self.nodes] if not node.pod_is_gone]
        if not whole:
            raise ClusterError("no training container is there to reach the volume from")
        return whole[0].shifted(await whole[0].ask("fill", path=str(CHECKPOINTS), full=full))

    async def touch(self, node: int, path: Path) -> None:
        """Make an empty file in a node."""
        await self._nodes[node].ask("touch", path=str(path))

    async def ask_agent(
        self, node: int, op: str, *, limit_s: float, **fields: Any
    ) -> dict[str, Any]:
        """Ask a node's agent. Raises: AgentError when it refuses or does not answer."""
        answer = await interface.ask(self.agents[node], node, op, limit_s=limit_s, **fields)
        return self._nodes[node].shifted(answer)

    async def _signal_agent(self, node: int, number: int) -> bool:
        agent = self._nodes[node].agent
        if agent.attachment.channel.ended.is_set():
            return False
        await self._engine.call(f"signal the {agent.name}", self._engine.api.kill, agent.id, number)
        return True

    async def _look_at_agent(self, node: int) -> dict[str, Any]:
        """Ask the engine, which looks from outside: a stopped agent could not answer."""
        agent = self._nodes[node].agent
        if agent.attachment.channel.ended.is_set():
            return dict(GONE)
        try:
            told = await self._engine.call("look", self._engine.api.top, agent.id, _PS)
            state, time_spent = told["Processes"][0][:2]
        except LookupError:
            return dict(GONE)
        except ClusterError as problem:
            if getattr(problem.__cause__, "status_code", None) in _ENDED:
                return dict(GONE)
            raise
        return GONE | {"state": state[:1], "cpu_ticks": time_spent}

    def _node_of(self, key: str) -> Node:
        """Give the node in whose training container a key's processes are."""
        number = keys.containers_node(key)
        return self._key_nodes[key] if number is None else self._nodes[number]
