"""Conducts one execution of a job: nodes up, ranks on, faults in and out, nothing left.

What comes out is a history; what it means is judged elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from chaoslab.backends import Backend, Listeners, Wanted
from chaoslab.cluster import keys
from chaoslab.cluster.interface import Cluster, Inside
from chaoslab.cluster.scratch import Scratch
from chaoslab.errors import HarnessError, NotAvailable
from chaoslab.feed import Feed
from chaoslab.history import History
from chaoslab.inject.injector import Injector, stop_all
from chaoslab.inject.placement import place
from chaoslab.inject.triggers import holds_of
from chaoslab.job.environment import Places
from chaoslab.job.ranks import STORE_KEY, Ranks
from chaoslab.platforms import Platform, mending
from chaoslab.scenario import Job
from chaoslab.schedule import AgentTarget, Injection, StoreTarget

_AGENT_LIMIT_S: Final = 30.0
_ORPHAN_LIMIT_S: Final = 2.0
_POLL_S: Final = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """What to execute: a job under a schedule (empty for a twin).

    script: the job's file. cwd: where ranks run. seed: draws random targets. owner: uid
    and gid of the ranks.
    """

    run_id: str
    job: Job
    schedule: tuple[Injection, ...]
    needs: frozenset[str]
    script: Path
    cwd: Path
    seed: int
    owner: tuple[int, int] | None


async def execute(execution: Execution, backend: Backend, scratch: Scratch) -> History:
    """Execute the job once. Returns its history.

    Raises: NotAvailable when a node lacks what a fault needs; HarnessError when the harness
    itself fails. Neither says anything about the job.
    """
    with contextlib.closing(Feed(scratch.history)) as feed:
        conductor = _Conductor(execution, feed, scratch)
        listeners = Listeners(
            on_exit=conductor.process_exited,
            on_agent_event=conductor.agent_event,
            on_cut=conductor.file_cut,
        )
        wanted = Wanted(
            job=execution.job,
            script=execution.script,
            cwd=execution.cwd,
            owner=execution.owner,
            scratch=scratch,
        )
        conductor.make_places()
        async with backend.up(wanted, listeners) as up:
            await conductor.conduct(up.cluster, up.inside, up.platform)
        return feed.history


class _Conductor:
    def __init__(self, execution: Execution, feed: Feed, scratch: Scratch) -> None:
        self._execution = execution
        self._feed = feed
        self._scratch = scratch
        self._ranks: Ranks | None = None

    def process_exited(self, event: dict[str, Any]) -> None:
        """Pass a process's end on to the ranks."""
        if self._ranks is not None:
            self._ranks.exited(event)

    def agent_event(self, node: int, event: dict[str, Any]) -> None:
        """Keep what an agent says of its own accord."""
        kind = {"failed": "agent_failed", "refused": "agent_failed"}.get(event["event"])
        if kind is None and event["event"] in ("lease_expired", "flapped"):
            kind = event["event"]
        if kind is not None:
            fields = {name: value for name, value in event.items() if name not in ("event", "t_s")}
            self._feed.note(kind, node=node, t_s=event["t_s"], **fields)

    def file_cut(self, node: int, name: str, limit_bytes: int) -> None:
        """Note that the rest of a file was not passed on."""
        kind = "events_cut" if name.endswith(".jsonl") else "log_cut"
        self._feed.note(kind, node=node, name=name, limit_bytes=limit_bytes)

    def make_places(self) -> None:
        """Make the directories that take what the nodes' processes print and write."""
        for node in range(self._execution.job.nodes):
            directory = self._scratch.nodes / str(node)
            directory.mkdir()
            directory.chmod(0o755)
            if self._execution.owner is not None:
                os.chown(directory, *self._execution.owner)

    async def conduct(self, cluster: Cluster, inside: Inside, platform: Platform) -> None:
        """Play the whole execution on a cluster that is up."""
        await self._check_capabilities(cluster, platform)
        await self._check_pristine(cluster, "before")
        self._feed.note("nodes_ready", nodes=cluster.nodes, addresses=list(cluster.addresses))
        ranks = self._ranks = self._make_ranks(cluster, inside)
        tail = asyncio.get_running_loop().create_task(ranks.tail.run())
        injectors = self._make_injectors(cluster, ranks)
        tasks = [asyncio.get_running_loop().create_task(one.run()) for one in injectors]
        try:
            await ranks.start_store()
            await ranks.start_all()
            lost = asyncio.get_running_loop().create_task(cluster.gone())
            try:
                await self._wait_for_the_end(ranks, [*tasks, lost, tail])
            finally:
                lost.cancel()
                await asyncio.gather(lost, return_exceptions=True)
        finally:
            ranks.close()
            try:
                problems = await stop_all(injectors, tasks)
            finally:
                tail.cancel()
                await asyncio.gather(tail, return_exceptions=True)
                ranks.tail.read_all()
        if problems:
            raise HarnessError("; ".join(problems))
        await self._check_orphans(cluster)
        await self._check_pristine(cluster, "after")

    async def _check_capabilities(self, cluster: Cluster, platform: Platform) -> None:
        if not self._execution.needs:
            return
        answer = await cluster.ask_agent(0, "probe", limit_s=_AGENT_LIMIT_S)
        can = answer["capabilities"]
        for need in sorted(self._execution.needs):
            if can.get(need) is not True:
                reason = can.get(need, "the agent does not know this capability")
                hint = mending(need, platform, has_netem=can.get("netem") is True)
                raise NotAvailable(
                    f"this scenario needs {need}: {reason}" + (f"; {hint}" if hint else "")
                )

    async def _check_pristine(self, cluster: Cluster, when: str) -> None:
        gone = self._dead_agents()
        nodes = [node for node in range(len(cluster.agents)) if node not in gone]
        answers = await asyncio.gather(
            *(
                cluster.ask_agent(node, "pristine", limit_s=_AGENT_LIMIT_S, over=when == "after")
                for node in nodes
            )
        )
        for node, answer in zip(nodes, answers, strict=True):
            if not answer["pristine"]:
                differences = answer["differences"]
                self._feed.note("not_pristine", node=node, when=when, differences=differences)
        self._feed.note("pristine", when=when, nodes=len(nodes))

    def _targets(self) -> frozenset[str]:
        """Give the keys of the agents, and the store's, that the schedule acts on."""
        targets = [injection.on for injection in self._execution.schedule]
        store = {STORE_KEY for target in targets if isinstance(target, StoreTarget)}
        return frozenset(store | {keys.of_agent(node) for node in self._dead_agents()})

    def _dead_agents(self) -> set[int]:
        targets = [injection.on for injection in self._execution.schedule]
        return {target.node for target in targets if isinstance(target, AgentTarget)}

    def _make_ranks(self, cluster: Cluster, inside: Inside) -> Ranks:
        execution = self._execution
        return Ranks(
            job=execution.job,
            places=Places(nodes=self._scratch.nodes),
            cluster=cluster,
            inside=inside,
            feed=self._feed,
            holds=holds_of(execution.schedule),
            may_end=self._targets(),
        )

    def _make_injectors(self, cluster: Cluster, ranks: Ranks) -> list[Injector]:
        execution = self._execution
        cut_off: dict[int, frozenset[int]] = {}
        return [
            Injector(
                nth=nth,
                injection=injection,
                placement=place(
                    injection,
                    job=execution.job,
                    addresses=cluster.addresses,
                    seed=execution.seed,
                    nth=nth,
                ),
                cluster=cluster,
                ranks=ranks,
                feed=self._feed,
                limit_s=execution.job.limit_s,
                cut_off=cut_off,
            )
            for nth, injection in enumerate(execution.schedule)
        ]

    async def _wait_for_the_end(self, ranks: Ranks, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Wait until every rank is done, the limit is reached, or an injection has crashed."""
        finished = asyncio.get_running_loop().create_task(ranks.finished.wait())
        watched = {finished, *tasks}
        deadline_s = asyncio.get_running_loop().time() + self._execution.job.limit_s
        try:
            while not finished.done():
                left_s = deadline_s - asyncio.get_running_loop().time()
                done, watched = await asyncio.wait(
                    watched, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
                if ranks.problem is not None:
                    raise ranks.problem
                if not done:
                    waiting = [f"rank {rank}" for rank in ranks.running()]
                    limit_s = self._execution.job.limit_s
                    self._feed.note("gave_up", limit_s=limit_s, waiting_for=waiting)
                    return
        finally:
            finished.cancel()
        self._feed.note("run_ended", reason="every rank has ended")

    async def _check_orphans(self, cluster: Cluster) -> None:
        """Note as leaks the processes that outlive the job, but ranks that were given up."""
        ranks = self._ranks
        excused = ranks.stopped_keys() if ranks is not None else set()
        if ranks is not None and self._feed.history.of("gave_up"):
            excused |= {key for rank in ranks.running() if (key := ranks.key_of(rank)) is not None}
        deadline_s = asyncio.get_running_loop().time() + _ORPHAN_LIMIT_S
        while True:
            alive = [p for p in await cluster.processes() if _is_left(p, excused)]
            if not alive or asyncio.get_running_loop().time() > deadline_s:
                break
            await asyncio.sleep(_POLL_S)
        for process in alive:
            name = process["key"] or repr(process["command"])
            what = f"process {name} (state {process['state']})"
            self._feed.note("leak", what=what, node=process["node"])


def _is_left(process: dict[str, Any], excused: set[str]) -> bool:
    """Tell whether a process should have ended with the job. Zombies are reaped by the lab.

    excused: keys of the processes that a fault has stopped, or that the run has given up on.
    """
    key = process["key"] or ""
    if key in excused:
        return False
    is_ours = keys.agents_node(key) is not None or key == STORE_KEY
    return not is_ours and process["state"] not in ("Z", None)
