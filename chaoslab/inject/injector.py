"""The injector: one injection from its trigger to its heal, every stage written to the history.

Its events: injected (the request was taken; the state read back), effective (it was seen to
bite) or not_effective (what was not seen), healed or not_healed.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from chaoslab import faults, schedule
from chaoslab.cluster.interface import Cluster
from chaoslab.errors import AgentError
from chaoslab.feed import Feed
from chaoslab.history import Event
from chaoslab.inject import processes, triggers
from chaoslab.inject.placement import LinkAction, Placement
from chaoslab.job.ranks import Ranks

_ANSWER_LIMIT_S: Final = 10.0
_EFFECT_LIMIT_S: Final = 5.0
_HEAL_LIMIT_S: Final = 5.0
_LEASE_SPARE_S: Final = 30.0
_FULL: Final = "ENOSPC"


class Injector:
    """One injection of a run. `run` is cancelled when the job is over; then call `heal`.

    cut_off: which nodes each injection cuts off at present, shared by all of a run.
    """

    def __init__(
        self,
        *,
        nth: int,
        injection: schedule.Injection,
        placement: Placement,
        cluster: Cluster,
        ranks: Ranks,
        feed: Feed,
        limit_s: float,
        cut_off: dict[int, frozenset[int]],
    ) -> None:
        self._nth = nth
        self._injection = injection
        self._placement = placement
        self._cluster = cluster
        self._ranks = ranks
        self._feed = feed
        self._cut_off = cut_off
        self._lease_s = limit_s + _LEASE_SPARE_S
        self._work: asyncio.Task[None] | None = None
        self._healing: asyncio.Task[None] | None = None
        self._reset_only = isinstance(injection.fault, faults.ConnectionReset)

    async def run(self) -> None:
        """Wait for the trigger, inject, prove, wait out the window, heal.

        Raises: HarnessError when an agent refuses or does not answer.
        """
        moment = await triggers.reached(self._injection, self._feed)
        begun_t_s = time.monotonic()
        self._work = asyncio.get_running_loop().create_task(self._inject(moment, begun_t_s))
        # Once begun it is carried through: what was done to a node has to be known.
        await asyncio.shield(self._work)
        if self._injection.fault.duration_s is not None:
            passed_s = time.monotonic() - begun_t_s
            await asyncio.sleep(max(0.0, self._injection.fault.duration_s - passed_s))
            await self.heal(cut_short=False)

    async def _inject(self, moment: Event, begun_t_s: float) -> None:
        for node in self._placement.lost_nodes:
            self._ranks.lose_node(node)
        self._cut_off[self._nth] = _cuts(self._placement)
        hit = await self._hit_processes()
        for node in self._placement.lost_nodes:
            await self._cluster.empty(node)
        volume = await self._cluster.fill(full=True) if self._placement.volume else {}
        evidence = await self._begin_links()
        self._feed.note(
            "injected",
            injection=self._nth,
            fault=schedule.describe(self._injection.fault),
            target=schedule.describe(self._injection.on),
            nodes=sorted({link.node for link in self._placement.links}),
            ranks=list(self._placement.ranks),
            trigger=_moment(moment),
            begun_t_s=begun_t_s,
            evidence=evidence | hit.evidence | ({"volume": volume} if volume else {}),
        )
        await self._prove(hit, volume)
        if isinstance(self._injection.fault, faults.Stop) and not self._injection.fault.is_window:
            self._ranks.give_up(self._placement.ranks)
        await self._release(moment)

    async def _hit_processes(self) -> processes.Hit:
        return await processes.hit(
            self._injection.fault, self._placement, self._cluster, self._ranks
        )

    async def _begin_links(self) -> dict[str, Any]:
        async def begin(place: int, link: LinkAction) -> dict[str, Any]:
            return await self._cluster.ask_agent(
                link.node,
                "inject",
                limit_s=_ANSWER_LIMIT_S,
                fault_id=self._fault_id(place),
                lease_s=self._lease_s,
                fault=link.wire,
            )

        answers = await asyncio.gather(
            *(begin(place, link) for place, link in enumerate(self._placement.links))
        )
        nodes = (link.node for link in self._placement.links)
        return {
            f"node_{node}": answer.get("evidence", {})
            for node, answer in zip(nodes, answers, strict=True)
        }

    async def _prove(self, hit: processes.Hit, volume: dict[str, Any]) -> None:
        """Write `effective` with what was seen, or `not_effective` with what was not."""
        seen, missing, times = await processes.effect(hit, self._cluster, self._feed)
        if volume.get("refused") == _FULL:
            seen["volume"] = {"refused": _FULL}
            times.append(volume["t_s"])
        elif volume:
            missing.append(f"the volume took a byte, with {volume['free_bytes']} left")
        answers = await asyncio.gather(
            *(self._link_effect(place, link) for place, link in enumerate(self._placement.links))
        )
        for link, answer in zip(self._placement.links, answers, strict=True):
            if answer.get("effective"):
                seen[f"node_{link.node}"] = {
                    "effect": answer.get("effect"),
                    "counters": answer.get("counters"),
                }
                times.append(answer["t_s"])
            else:
                missing.append(f"node {link.node}: {answer.get('missing', 'no effect was seen')}")
        if missing:
            self._feed.note("not_effective", injection=self._nth, missing="; ".join(missing))
        else:
            self._feed.note("effective", t_s=min(times), injection=self._nth, effect=seen)

    async def _link_effect(self, place: int, link: LinkAction) -> dict[str, Any]:
        limit_s = _effect_limit_s(link)
        try:
            return await self._cluster.ask_agent(
                link.node,
                "wait_effective",
                limit_s=limit_s + _ANSWER_LIMIT_S,
                fault_id=self._fault_id(place),
                timeout_s=limit_s,
                probe_to=list(link.probe_to),
            )
        except AgentError as problem:
            return {"effective": False, "missing": str(problem)}

    async def _release(self, moment: Event) -> None:
        """Let a rank go on that is held in a save and was not killed there."""
        if moment.kind == "held" and moment.rank is not None:
            await self._ranks.release(moment.rank)

    async def settle(self) -> None:
        """Let an injection that has begun come to its end. Raises what it raises."""
        if self._work is not None:
            await self._work

    async def heal(self, *, cut_short: bool) -> None:
        """Undo the fault and check that it is undone; twice is harmless.

        cut_short: the job has ended inside the fault's window, or before its heal was due.
        """
        if self._work is None:
            return
        if self._healing is None:
            self._healing = asyncio.get_running_loop().create_task(self._undo(cut_short))
        await asyncio.shield(self._healing)

    async def _undo(self, cut_short: bool) -> None:  # noqa: FBT001  private
        fault, placement = self._injection.fault, self._placement
        if self._undoable:
            self._cut_off.pop(self._nth, None)
        missing = list(await processes.undo(fault, placement, self._cluster, self._ranks))
        if placement.volume:
            freed = await self._cluster.fill(full=False)
            if freed["refused"] is not None:
                missing.append(f"the volume refuses a byte still: {freed['refused']}")
        results = await asyncio.gather(
            *(self._heal_link(place, link) for place, link in enumerate(placement.links)),
            return_exceptions=True,
        )
        missing += [str(problem) for problem in results if isinstance(problem, BaseException)]
        if not self._undoable:
            return
        if missing:
            self._feed.note("not_healed", injection=self._nth, missing="; ".join(missing))
        else:
            short: dict[str, Any] = {"cut_short": True} if cut_short and fault.is_window else {}
            if not fault.is_window:
                short = {"why": "it had no window: taken down with the run"}
            self._feed.note("healed", injection=self._nth, t_s=_healed_s(results), **short)

    @property
    def _undoable(self) -> bool:
        """Tell whether there is anything to heal: a kill and a reset are moments."""
        links = bool(self._placement.links) and not self._reset_only
        stopped = isinstance(self._injection.fault, faults.Stop)
        return (links and not self._placement.lost_nodes) or stopped or self._placement.volume

    async def _heal_link(self, place: int, link: LinkAction) -> float:
        if self._reset_only:
            return 0.0
        fault_id = self._fault_id(place)
        answer = await self._cluster.ask_agent(
            link.node, "heal", limit_s=_ANSWER_LIMIT_S, fault_id=fault_id
        )
        healed_s = float(answer["t_s"])
        answer = await self._cluster.ask_agent(
            link.node,
            "wait_healed",
            limit_s=_HEAL_LIMIT_S + _ANSWER_LIMIT_S,
            fault_id=fault_id,
            timeout_s=_HEAL_LIMIT_S,
            probe_to=self._reachable(link),
        )
        if not answer.get("healed"):
            raise AgentError(f"node {link.node}: {answer.get('missing', 'not healed')}")
        return healed_s

    def _reachable(self, link: LinkAction) -> list[str]:
        """Give where to send probes after the heal: not to nodes that another fault cuts off now.

        Where that is all of them, all are given: then nothing can show that the link is whole.
        """
        others = (nodes for nth, nodes in self._cut_off.items() if nth != self._nth)
        cut = {self._cluster.addresses[node] for nodes in others for node in nodes}
        return [to for to in link.probe_to if to not in cut] or list(link.probe_to)

    def _fault_id(self, place: int) -> str:
        return f"{self._nth}.{place}"


def _effect_limit_s(link: LinkAction) -> float:
    """Give how long an effect may take to be seen: a probe may be held once on each way."""
    netem = link.wire.get("netem") or {}
    held_s = float(netem.get("delay_s", 0.0)) + 4 * float(netem.get("jitter_s", 0.0))
    return _EFFECT_LIMIT_S + 2 * held_s


def _cuts(placement: Placement) -> frozenset[int]:
    """Give the nodes that a placement cuts off altogether, or now and then."""
    kinds = ("silent_drop", "link_down", "flap")
    cut = {link.node for link in placement.links if link.wire["kind"] in kinds}
    return frozenset(cut | set(placement.lost_nodes))


def _healed_s(results: list[float | BaseException]) -> float | None:
    times = [result for result in results if isinstance(result, float) and result > 0]
    return max(times) if times else None


def _moment(event: Event) -> dict[str, Any]:
    return {"kind": event.kind, "rank": event.rank, "t_s": event.t_s, "step": event.get("step")}


async def stop_all(injectors: list[Injector], tasks: list[asyncio.Task[None]]) -> list[str]:
    """Cancel what still waits, finish what has begun, heal what still bites.

    Returns what went wrong, in words.
    """
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    results += await asyncio.gather(*(one.settle() for one in injectors), return_exceptions=True)
    healed = (injector.heal(cut_short=True) for injector in injectors)
    results += await asyncio.gather(*healed, return_exceptions=True)
    problems = [one for one in results if isinstance(one, Exception)]
    return list(dict.fromkeys(f"{type(one).__name__}: {one}" for one in problems))
