"""Phases of a recovery: detect, tear down, rendezvous, restore, first step; and their whole.

A phase ends when the last rank has ended it, and begins where the phase before it ended, so
the phases add up. All are seconds, counted from the earliest time at which the fault can have
bitten: never too short.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

from chaoslab.history import Event
from chaoslab.measure.episode import Episode
from chaoslab.measure.timeline import status_text, tell
from chaoslab.measure.values import CIRCUIT_OPEN_STATUS, NEVER, Measurement

STEADY_STEPS = 5
"""Steps in a row whose median must be back within tolerance."""


def noticed(episode: Episode) -> dict[int, Event]:
    """Find with which event each surviving rank noticed: failure_seen, or its own failed exit."""
    over = episode.timeline.of("gave_up", "run_ended")
    over_s = over[0].t_s if over else math.inf
    found = {}
    for rank in episode.survivors:
        taken_s = episode.taken_later(rank)
        until_s = over_s if taken_s is None else min(over_s, taken_s)
        for event in episode.within(rank, "failure_seen", "process_exited"):
            failed = event.kind == "failure_seen" or event.get("status") not in (0, None)
            if failed and event.t_s <= until_s:
                found[rank] = event
                break
    return found


def detection(episode: Episode) -> list[Measurement]:
    """Measure detect_s and detect_all_s."""
    seen = noticed(episode)
    by_rank = {rank: event.t_s - episode.bitten_s for rank, event in seen.items()}
    if not seen:
        return [_unnoticed(episode, name) for name in ("detect_s", "detect_all_s")]
    first = min(by_rank, key=lambda rank: (by_rank[rank], rank))
    how = f"from the effect to {_saw(seen[first])} of rank {first}"
    measured = [episode.known("detect_s", by_rank[first], "s", how, by_rank)]
    absent = [r for r in episode.survivors if r not in seen and not _excused(episode, r)]
    if absent:
        return [*measured, _not_all(episode, absent)]
    last = max(by_rank, key=lambda rank: (by_rank[rank], rank))
    how = f"from the effect to {_saw(seen[last])} of rank {last}, the last to notice"
    return [*measured, episode.known("detect_all_s", by_rank[last], "s", how, by_rank)]


def unnoticed(episode: Episode) -> Measurement:
    """Measure unnoticed_s: how long the job stood still while no rank noticed anything.

    Known only of a fault that was ridden out without a word: the longest time, from the effect
    until all were back, in which no surviving rank completed a step.
    """
    if not episode.survivors or not episode.recovered or noticed(episode):
        told = "a fault that every rank rode out without noticing it"
        return episode.missing("unnoticed_s", "s", told)
    gaps = next((gap for r in episode.survivors if (gap := episode.timeline.gaps(r))), "")
    if gaps:
        return episode.missing("unnoticed_s", "s", gaps)
    steps = [e.t_s for rank in episode.survivors for e in episode.within(rank, "step")]
    times = [episode.bitten_s, *sorted(steps), episode.end_s]
    longest_s = max(later - earlier for earlier, later in itertools.pairwise(times))
    how = "longest time without a step of any surviving rank, from the effect to the recovery"
    return episode.known("unnoticed_s", longest_s, "s", how)


def _excused(episode: Episode, rank: int) -> bool:
    return episode.taken_later(rank) is not None


def _saw(event: Event) -> str:
    if event.kind == "failure_seen":
        return "failure_seen"
    return f"process_exited ({status_text(event.get('status'))})"


def _unnoticed(episode: Episode, name: str) -> Measurement:
    if not episode.survivors:
        return episode.missing(name, "s", "a rank that the fault leaves alone: it takes them all")
    if episode.recovered:
        told = "failure_seen: no surviving rank noticed a failure; the job rode the fault out"
        return episode.missing(name, "s", told)
    return _not_all(episode, list(episode.survivors), name)


def _not_all(episode: Episode, absent: list[int], name: str = "detect_all_s") -> Measurement:
    rank, timeline = absent[0], episode.timeline
    lacking = next((gap for r in absent if (gap := timeline.gaps(r))), "")
    ends = [timeline.ending(r) for r in absent]
    lacking = lacking or next((end.missing for end in ends if end.missing), "")
    if lacking:
        return episode.missing(name, "s", lacking)
    if episode.recovered or not timeline.ended:
        return episode.missing(name, "s", f"failure_seen of rank {rank}")
    told = f"no failure_seen of {tell(ends)}"
    return episode.known(name, NEVER, "s", told)


def recovery(episode: Episode) -> Measurement:
    """Measure recovery_s."""
    start_s = episode.moments.start_s
    if start_s is None:
        return episode.missing("recovery_s", "s", episode.moments.missing)
    if not episode.recovered:
        return episode.not_back("recovery_s")
    by_rank = {rank: max(0.0, e.t_s - start_s) for rank, e in episode.back.items()}
    last = max(by_rank, key=lambda rank: (by_rank[rank], rank))
    since = "heal" if episode.moments.injection.is_window else "effect"
    step = episode.back[last]["step"]
    how = f"from the {since} to step {step} of rank {last}, the last to be back"
    if by_rank[last] == 0:
        how = f"every rank had done its last step before the {since}"
    return episode.known("recovery_s", by_rank[last], "s", how, by_rank)


def phases(episode: Episode) -> list[Measurement]:
    """Measure teardown_s, rendezvous_s, restore_s and first_step_s."""
    seen = noticed(episode)
    names = ("teardown_s", "rendezvous_s", "restore_s", "first_step_s")
    if not seen:
        lack = "failure_seen: no rank noticed a failure, so nothing was torn down"
        return [episode.missing(name, "s", lack) for name in names]
    torn = {rank: _torn_down(episode, rank, event) for rank, event in seen.items()}
    again = {rank: _again(episode, rank) for rank in episode.timeline.expectation.ranks}
    marks: list[Mapping[int, Event | None]] = [
        seen,
        torn,
        {rank: events[0] for rank, events in again.items()},
        {rank: events[1] for rank, events in again.items()},
        {rank: events[2] for rank, events in again.items()},
    ]
    kinds = ("failure_seen", "torn_down", "group_ready", "restored", "step")
    out = []
    for nth, name in enumerate(names):
        if nth and not episode.recovered:
            out.append(episode.missing(name, "s", "a recovery: the job did not come back"))
            continue
        out.append(_phase(episode, name, marks[nth : nth + 2], kinds[nth : nth + 2]))
    return out


def _torn_down(episode: Episode, rank: int, failure: Event) -> Event | None:
    kinds = ("torn_down", "rank_exited", "process_exited")
    return next((e for e in episode.within(rank, *kinds) if e.t_s >= failure.t_s), None)


def _again(episode: Episode, rank: int) -> tuple[Event | None, Event | None, Event | None]:
    """Find the group_ready, the restored and the first step by which a rank came back."""
    back = episode.back.get(rank)
    if back is None:
        return None, None, None
    events = [e for e in episode.within(rank) if e.t_s <= back.t_s]
    ready = next((e for e in reversed(events) if e.kind == "group_ready"), None)
    loaded = next((e for e in reversed(events) if e.kind == "restored"), None)
    begun = max((e.t_s for e in (ready, loaded) if e is not None), default=None)
    steps = [e for e in events if e.kind == "step" and begun is not None and e.t_s >= begun]
    return ready, loaded, steps[0] if steps else None


def _phase(
    episode: Episode,
    name: str,
    marks: Sequence[Mapping[int, Event | None]],
    kinds: tuple[str, ...],
) -> Measurement:
    for mark, kind in zip(marks, kinds, strict=True):
        absent = [rank for rank, event in sorted(mark.items()) if event is None]
        if absent:
            return episode.missing(name, "s", f"{kind} of rank {absent[0]}")
    begun_s = max(event.t_s for event in marks[0].values() if event is not None)
    ends = {rank: event.t_s for rank, event in marks[1].items() if event is not None}
    last = max(ends, key=lambda rank: (ends[rank], rank))
    how = f"from the last {kinds[0]} to the last {kinds[1]}, of rank {last}"
    return episode.known(name, max(0.0, ends[last] - begun_s), "s", how)


def steady(episode: Episode) -> Measurement:
    """Measure steady_s: until every rank's steps take what they took before, within tolerance.

    What they took before: the median of the steps completed before the run's first fault.
    """
    start_s = episode.moments.start_s
    if start_s is None:
        return episode.missing("steady_s", "s", episode.moments.missing)
    if not episode.recovered:
        return episode.not_back("steady_s")
    first_s = min(m.bitten_s for m in episode.timeline.moments if m.bitten_s is not None)
    allowed = 1 + episode.timeline.expectation.steady_tolerance_ratio
    by_rank = {}
    for rank in episode.timeline.expectation.ranks:
        took = step_times(episode.timeline.rank_events(rank, "step", "restored", "group_ready"))
        before = [s for t_s, s in took if t_s <= first_s]
        later = [(t_s, s) for t_s, s in took if t_s >= episode.back[rank].t_s]
        if not before:
            return episode.missing("steady_s", "s", f"steps of rank {rank} before the first fault")
        limit_s = allowed * statistics.median(before)
        end_s = _steady_from(later, limit_s)
        if end_s is None:
            lack = f"{STEADY_STEPS} steps in a row of rank {rank} at {limit_s:.3f} s or less"
            return episode.missing("steady_s", "s", lack)
        by_rank[rank] = end_s - start_s
    last = max(by_rank, key=lambda rank: (by_rank[rank], rank))
    how = f"until {STEADY_STEPS} steps of rank {last} took their warm-up time again"
    return episode.known("steady_s", by_rank[last], "s", how, by_rank)


def step_times(events: list[Event]) -> list[tuple[float, float]]:
    """Give (when completed, seconds it took) of each step that follows another event."""
    return [(b.t_s, b.t_s - a.t_s) for a, b in itertools.pairwise(events) if b.kind == "step"]


def _steady_from(took: list[tuple[float, float]], limit_s: float) -> float | None:
    for last in range(STEADY_STEPS, len(took) + 1):
        window = took[last - STEADY_STEPS : last]
        if statistics.median(s for _, s in window) <= limit_s:
            return window[-1][0]
    return None


def circuit(episode: Episode) -> Measurement:
    """Measure circuit_s: until every surviving rank has exited with the circuit-open status."""
    timeline, by_rank = episode.timeline, {}
    if episode.recovered:
        return episode.missing("circuit_s", "s", "a circuit that opened: the job recovered")
    ranks = [r for r in episode.survivors if not _excused(episode, r)]
    ranks += [r for r in timeline.expectation.ranks if r not in ranks and _reborn(episode, r)]
    for rank in sorted(ranks):
        end = timeline.ending(rank)
        if end.outcome == "unknown" or end.t_s is None:
            return episode.missing("circuit_s", "s", timeline.gaps(rank) or end.missing)
        surviving = rank in episode.survivors
        if end.outcome == "given_up" or (surviving and end.status != CIRCUIT_OPEN_STATUS):
            told = f"{tell([end])}; want status {CIRCUIT_OPEN_STATUS}"
            return episode.known("circuit_s", NEVER, "s", told)
        by_rank[rank] = end.t_s - episode.bitten_s
    if not by_rank:
        return episode.missing("circuit_s", "s", "a surviving rank: the faults took them all")
    last = max(by_rank, key=lambda rank: (by_rank[rank], rank))
    how = f"from the effect to the exit of rank {last}, the last with status {CIRCUIT_OPEN_STATUS}"
    return episode.known("circuit_s", by_rank[last], "s", how, by_rank)


def _reborn(episode: Episode, rank: int) -> bool:
    taken_s = [episode.bitten_s, episode.taken_later(rank) or episode.bitten_s]
    starts = episode.timeline.rank_events(rank, "process_started")
    return any(event.t_s > max(taken_s) for event in starts)
