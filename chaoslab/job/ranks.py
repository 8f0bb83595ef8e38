"""Starts the ranks of a job and plays the scheduler: notices exits, restarts by policy."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from chaoslab.cluster import keys
from chaoslab.cluster.interface import Cluster, Inside
from chaoslab.errors import HarnessError
from chaoslab.feed import Feed
from chaoslab.job.environment import Places, inheritable, rank_environment, store_address
from chaoslab.job.tail import Tail
from chaoslab.measure import CIRCUIT_OPEN_STATUS
from chaoslab.scenario import Job

STORE_KEY: Final = "store"
_STORE: Final = Path("resilience") / "store.py"
_STORE_LIMIT_S: Final = 20.0
_POLL_S: Final = 0.01


def rank_key(rank: int, incarnation: int) -> str:
    """Give the name of a rank's process in the run."""
    return f"rank-{rank}.{incarnation}"


@dataclasses.dataclass(kw_only=True)
class _State:
    incarnation: int = 0
    running: bool = False
    restarts: int = 0
    pending: bool = False


class Ranks:
    """The ranks of one run. Feed `exited` with what the backend reports."""

    def __init__(
        self,
        *,
        job: Job,
        places: Places,
        cluster: Cluster,
        inside: Inside,
        feed: Feed,
        holds: dict[int, list[dict[str, Any]]],
        may_end: frozenset[str],
    ) -> None:
        """Take the job's parts. may_end: keys of agents, and the store's, that faults act on."""
        self._job = job
        self._places = places
        self._cluster, self._inside = cluster, inside
        self._feed = feed
        self._holds = holds
        self._states = {rank: _State() for rank in range(job.world_size)}
        self._lost_nodes: set[int] = set()
        self._may_end = may_end
        self.problem: Exception | None = None
        self._given_up: set[int] = set()
        self._closing = False
        self._restarts: set[asyncio.Task[None]] = set()
        self.tail = Tail(feed)
        self.finished = asyncio.Event()

    async def start_store(self) -> None:
        """Start the rendezvous store on its node and wait until it listens.

        Raises: HarnessError with what it printed when it does not.
        """
        log, inside = self._places.store_log, self._inside
        argv = [str(inside.package / _STORE), "--listen", store_address(self._cluster)]
        pid, t_s = await self._cluster.start(
            STORE_KEY,
            self._cluster.store_node,
            argv,
            mode="fork",
            env=inheritable(inside.environment),
            cwd=str(inside.package.parent),
            log=log,
            events=None,
        )
        self._feed.note("process_started", t_s=t_s, store=True, pid=pid, key=STORE_KEY)
        deadline_s = asyncio.get_running_loop().time() + _STORE_LIMIT_S
        while not (log.exists() and "listening" in log.read_text(errors="replace")):
            if asyncio.get_running_loop().time() > deadline_s or self._store_is_gone():
                said = log.read_text(errors="replace") if log.exists() else "nothing"
                raise HarnessError(f"the store does not listen; it printed: {said[-2000:]}")
            await asyncio.sleep(_POLL_S)

    def _store_is_gone(self) -> bool:
        return any(event.get("store") for event in self._feed.history.of("process_exited"))

    async def start_all(self) -> None:
        """Start every rank's first incarnation."""
        await asyncio.gather(*(self._start(rank) for rank in self._states))

    async def _start(self, rank: int) -> None:
        state, node = self._states[rank], self._job.node_of(rank)
        incarnation = state.incarnation
        job, inside, path = self._job, self._inside, self._places.events(rank, node, incarnation)
        offset_s = self._cluster.clock_offset_s(node)
        self.tail.follow(path, rank=rank, node=node, offset_s=offset_s)
        args = [str(inside.script), "--steps", str(job.steps), "--seed", str(job.seed), *job.args]
        argv = args if job.warm else [inside.python, *args]
        env = rank_environment(
            job,
            self._cluster,
            inside,
            rank=rank,
            incarnation=incarnation,
            holds=self._holds.get(rank, []),
        )
        state.running = True
        key = rank_key(rank, incarnation)
        pid, t_s = await self._cluster.start(
            key,
            node,
            argv,
            mode="fork" if job.warm else "exec",
            env=env,
            cwd=str(inside.cwd),
            log=self._places.log(rank, node, incarnation),
            events=path,
        )
        places = {"rank": rank, "node": node, "incarnation": incarnation}
        self._feed.note("process_started", t_s=t_s, pid=pid, key=key, **places)

    def exited(self, event: dict[str, Any]) -> None:
        """Take the backend's report that a process ended: key, pid, status, t_s."""
        key = event["key"] or ""
        if key == STORE_KEY:
            self._note_exit(event, store=True)
        if (node := keys.agents_node(key)) is not None:
            self._note_exit(event, agent=True, node=node)
        if (contained := keys.containers_node(key)) is not None:
            self._note_exit(event, container=True, node=contained)
        if (key == STORE_KEY or node is not None) and key not in self._may_end:
            self._give_up_on(HarnessError(f"{key} ended by itself, status {event['status']}"))
        if not key.startswith("rank-"):
            return
        rank, incarnation = (int(part) for part in key.removeprefix("rank-").split("."))
        node = self._job.node_of(rank)
        self.tail.finish(self._places.events(rank, node, incarnation))
        self._note_exit(event, rank=rank, node=node, incarnation=incarnation)
        state = self._states[rank]
        state.running = False
        if self._wants_restart(state, node, event["status"]):
            state.restarts += 1
            state.pending = True
            task = asyncio.get_running_loop().create_task(self._restart(rank))
            self._restarts.add(task)
            task.add_done_callback(self._restart_ended)
        self._check_finished()

    def _note_exit(self, event: dict[str, Any], **places: Any) -> None:
        self._feed.note(
            "process_exited",
            t_s=event["t_s"],
            pid=event["pid"],
            status=event["status"],
            key=event["key"],
            **places,
        )

    def _wants_restart(self, state: _State, node: int, status: int) -> bool:
        if self._closing or status in (0, CIRCUIT_OPEN_STATUS) or node in self._lost_nodes:
            return False
        return state.restarts < self._job.restart.limit

    async def _restart(self, rank: int) -> None:
        await asyncio.sleep(self._job.restart.delay_s)
        state = self._states[rank]
        state.pending = False
        if self._closing or self._job.node_of(rank) in self._lost_nodes:
            self._check_finished()
            return
        state.incarnation += 1
        await self._start(rank)

    def _restart_ended(self, task: asyncio.Task[None]) -> None:
        self._restarts.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._give_up_on(HarnessError(f"a restart failed: {task.exception()}"))

    def _give_up_on(self, problem: Exception) -> None:
        """End the run by a fault of the harness's own: nothing follows for the job."""
        if self.problem is None and not self._closing:
            self.problem = problem
            self.finished.set()

    def _check_finished(self) -> None:
        awaited = [s for rank, s in self._states.items() if rank not in self._given_up]
        if not any(state.running or state.pending for state in awaited):
            self.finished.set()

    def give_up(self, ranks: Iterable[int]) -> None:
        """Expect no end of these ranks: a fault has stopped them for good."""
        self._given_up.update(ranks)
        self._check_finished()

    def stopped_keys(self) -> set[str]:
        """Give the keys of the processes that a fault has stopped for good."""
        return {key for rank in self._given_up if (key := self.key_of(rank)) is not None}

    def lose_node(self, node: int) -> None:
        """Restart nothing on this node from now on: it is gone for good."""
        self._lost_nodes.add(node)

    def key_of(self, rank: int) -> str | None:
        """Give the key of a rank's running process, None when it has none."""
        state = self._states[rank]
        return rank_key(rank, state.incarnation) if state.running else None

    async def release(self, rank: int) -> None:
        """Let a rank go on that is held in a save (see chaoslab.probe)."""
        state, node = self._states[rank], self._job.node_of(rank)
        inside = Places(nodes=self._inside.nodes)
        events = inside.events(rank, node, state.incarnation)
        await self._cluster.touch(node, events.with_name(f"{events.name}.release"))

    def running(self) -> list[int]:
        """List the ranks that have a running process."""
        return [rank for rank, state in self._states.items() if state.running]

    def close(self) -> None:
        """Restart nothing from now on."""
        self._closing = True
        for task in self._restarts:
            task.cancel()
