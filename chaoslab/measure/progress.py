"""Progress: what was lost, done again, wasted and left behind."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterable

from chaoslab.history import Event
from chaoslab.measure.episode import Episode
from chaoslab.measure.timeline import Timeline
from chaoslab.measure.values import Measurement, Unit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resumption:
    """A rank went on from a step. verified: whether the checkpoint was checked (None: not said).

    told: how that is known. loaded: a `restored` event says so.
    """

    rank: int
    t_s: float
    step: int
    loaded: bool
    verified: bool | None
    told: str


def resumptions(episode: Episode) -> list[Resumption]:
    """Find from which steps the ranks went on, in one episode.

    A `restored` event says it; a step number that does not grow says it as well, so a job that
    silently starts at 0 is seen, and so is a `restored` that the next step does not bear out.
    """
    found = []
    for rank in episode.timeline.expectation.ranks:
        steps = [e for e in episode.timeline.steps(rank) if e.t_s < episode.bitten_s]
        last = steps[-1]["step"] if steps else 0
        events = episode.within(rank, "restored", "step")
        for event, after in itertools.zip_longest(events, events[1:]):
            if event.kind == "restored":
                found.append(_restored(rank, event, after))
                last = found[-1].step
            else:
                if event["step"] <= last:
                    found.append(_began_again(rank, event))
                last = event["step"]
    return sorted(found, key=lambda r: (r.t_s, r.rank))


def _restored(rank: int, event: Event, after: Event | None) -> Resumption:
    step, told = event["step"], f"rank {rank} restored step {event['step']}"
    if after is not None and after.kind == "step" and after["step"] <= step:
        told += f" and went on with step {after['step']}"
        step = after["step"] - 1
    return Resumption(
        rank=rank, t_s=event.t_s, step=step, loaded=True, verified=event.get("verified"), told=told
    )


def _began_again(rank: int, event: Event) -> Resumption:
    told = f"rank {rank} did step {event['step']} again without a restored event"
    step = event["step"] - 1
    return Resumption(rank=rank, t_s=event.t_s, step=step, loaded=False, verified=None, told=told)


def lost_steps(episode: Episode) -> Measurement:
    """Measure lost_steps: the highest step completed before a restore, less the step restored."""
    found = resumptions(episode)
    if not found:
        return _nothing_restored(episode, "lost_steps")
    losses = []
    for one in found:
        highest = episode.timeline.highest_step(one.t_s)
        losses.append((max(0, highest - one.step), one, highest))
    lost, one, highest = max(losses, key=lambda loss: loss[0])
    how = f"{one.told}; step {highest} had been completed"
    return episode.known("lost_steps", lost, "steps", how)


def _nothing_restored(episode: Episode, name: str) -> Measurement:
    if episode.recovered:
        return episode.known(name, 0, "steps", "no rank restored anything: nothing was lost")
    return episode.missing(name, "steps", "not judged: the job never restored after the fault")


def acknowledged_lost_steps(episode: Episode) -> Measurement:
    """Measure acknowledged_lost_steps: the newest save acknowledged, less the step restored."""
    name, timeline = "acknowledged_lost_steps", episode.timeline
    if not timeline.of("save_committed"):
        return episode.missing(name, "steps", "save_committed: no rank ever acknowledged a save")
    found = resumptions(episode)
    if not found:
        return _nothing_restored(episode, name)
    losses = []
    for one in found:
        saved = acknowledged(timeline, one.t_s)
        losses.append((max(0, saved - one.step), one, saved))
    lost, one, saved = max(losses, key=lambda loss: loss[0])
    before = f"step {saved} was acknowledged" if saved else "no save had been acknowledged"
    return episode.known(name, lost, "steps", f"{one.told}; {before}")


def acknowledged(timeline: Timeline, until_s: float) -> int:
    """Give the newest step whose save was acknowledged before then (0: none)."""
    ranks_by_step: dict[int, set[int | None]] = {}
    for event in timeline.of("save_committed"):
        if event.t_s <= until_s:
            ranks_by_step.setdefault(event["step"], set()).add(event.rank)
    every = set(timeline.expectation.ranks)
    any_rank = timeline.expectation.acknowledged_by == "any"
    return max((s for s, ranks in ranks_by_step.items() if any_rank or every <= ranks), default=0)


def retries(episode: Episode) -> Measurement:
    """Measure retries: attempts to get going again, of the rank that made the most.

    An attempt is a backoff, or, where a rank does not back off, each end of an attempt: a
    group formed, a failure, or a failed exit after the rank had torn down or started again.
    """
    by_rank = {}
    for rank in episode.timeline.expectation.ranks:
        events = episode.within(rank)
        waits = sum(event.kind == "backoff" for event in events)
        by_rank[rank] = float(max(waits, _attempts(events)))
    most = max(by_rank, key=lambda rank: (by_rank[rank], -rank), default=0)
    lacking = next((g for r in by_rank if (g := episode.timeline.gaps(r))), "")
    silent = next((rank for rank in by_rank if not by_rank[rank] and _went_on(episode, rank)), None)
    if not lacking and silent is not None:
        lacking = (
            f"backoff of rank {silent}: it noticed a failure and went on, with no try on record"
        )
    if lacking or not (episode.recovered or episode.timeline.ended):
        return episode.missing("retries", "count", lacking or "run_ended: the record is cut short")
    how = f"by rank {most}" if by_rank.get(most) else "no rank had to try again"
    return episode.known("retries", by_rank.get(most, 0.0), "count", how, by_rank)


def _went_on(episode: Episode, rank: int) -> bool:
    """Tell whether a rank noticed a failure and formed a group, or did a step, after it."""
    events = episode.within(rank, "failure_seen", "group_ready", "step")
    seen = [event.t_s for event in events if event.kind == "failure_seen"]
    return bool(seen) and any(e.kind != "failure_seen" and e.t_s > seen[0] for e in events)


def _attempts(events: Iterable[Event]) -> int:
    count, trying = 0, False
    for event in events:
        if event.kind in ("torn_down", "backoff", "health_checked", "process_started"):
            trying = True
        elif trying and (
            event.kind in ("group_ready", "failure_seen")
            or (event.kind == "process_exited" and event.get("status") != 0)
        ):
            count, trying = count + 1, False
    return count


# --- of the whole run ------------------------------------------------------------------------


def whole_run(timeline: Timeline) -> list[Measurement]:
    """Measure what belongs to no single fault."""
    return [
        stall(timeline),
        *goodput(timeline),
        restarts(timeline),
        regroups(timeline),
        leaks(timeline),
    ]


def _run(name: str, value: float, unit: Unit, how: str, **more: object) -> Measurement:
    by_rank = more.get("by_rank") or {}
    ranks = tuple(sorted((r, round(v, 6)) for r, v in by_rank.items()))  # type: ignore[attr-defined]
    return Measurement(name=name, value=round(value, 6), unit=unit, how=how, by_rank=ranks)


def _lack(name: str, unit: Unit, missing: str) -> Measurement:
    return Measurement(name=name, value=None, unit=unit, missing=missing)


def _record_gap(timeline: Timeline) -> str:
    gaps = (timeline.gaps(rank) for rank in timeline.expectation.ranks)
    whole = "" if timeline.ended else "run_ended: the record is cut short"
    return next((gap for gap in gaps if gap), whole)


def stall(timeline: Timeline) -> Measurement:
    """Measure stall_s: the longest time of one rank without a completed step, once it began."""
    by_rank = {}
    for rank in timeline.expectation.ranks:
        times = [event.t_s for event in timeline.steps(rank)]
        end = timeline.ending(rank)
        if lacking := timeline.gaps(rank) or end.missing:
            return _lack("stall_s", "s", lacking)
        if not times:
            return _lack("stall_s", "s", f"a step of rank {rank}")
        if end.outcome != "finished" and end.t_s is not None:
            times.append(max(times[-1], end.t_s))
        by_rank[rank] = max((b - a for a, b in itertools.pairwise(times)), default=0.0)
    last = max(by_rank, key=lambda rank: (by_rank[rank], -rank))
    return _run("stall_s", by_rank[last], "s", f"of rank {last}", by_rank=by_rank)


def goodput(timeline: Timeline) -> list[Measurement]:
    """Measure goodput_ratio and wasted_rank_s.

    Useful time: each step once, at the median step time before the first fault. Wall time: from
    the first step completed to the last one, or to where a job that did not finish ended. What
    is done again, waited for or done slowly is wasted.
    """
    names: tuple[tuple[str, Unit], ...] = (("goodput_ratio", "ratio"), ("wasted_rank_s", "rank_s"))
    steps = timeline.of("step")
    bitten = [m.bitten_s for m in timeline.moments if m.bitten_s is not None]
    took = _usual_step_times(timeline, min(bitten, default=float("inf")))
    lacking = _record_gap(timeline) or ("" if took else "two steps before the first fault")
    if lacking:
        return [_lack(name, unit, lacking) for name, unit in names]
    ends = [timeline.ending(rank) for rank in timeline.expectation.ranks]
    over = [e.t_s for e in ends if e.outcome != "finished" and e.t_s is not None]
    wall_s = max([steps[-1].t_s, *over]) - steps[0].t_s
    done = timeline.highest_step() - min(event["step"] for event in steps)
    useful_s = min(wall_s, done * statistics.median(took))
    ranks = len(timeline.expectation.ranks)
    how = f"{done + 1} steps at {statistics.median(took):.4g} s, in {wall_s:.2f} s"
    return [
        _run("goodput_ratio", useful_s / wall_s if wall_s else 1.0, "ratio", how),
        _run("wasted_rank_s", ranks * (wall_s - useful_s), "rank_s", f"{ranks} ranks: {how}"),
    ]


def _usual_step_times(timeline: Timeline, until_s: float) -> list[float]:
    took = []
    for rank in timeline.expectation.ranks:
        for a, b in itertools.pairwise(timeline.rank_events(rank, "step", "restored")):
            if a.kind == b.kind == "step" and b["step"] == a["step"] + 1 and b.t_s <= until_s:
                took.append(b.t_s - a.t_s)
    return took


def restarts(timeline: Timeline) -> Measurement:
    """Measure restarts: processes of ranks that were started again."""
    if not timeline.ended:  # the harness saw them itself: what ranks could not write is no gap
        return _lack("restarts", "count", _record_gap(timeline))
    counts = {
        rank: max(0, len(timeline.rank_events(rank, "process_started")) - 1)
        for rank in range(timeline.expectation.world_size)
    }
    total = sum(counts.values())
    again = ", ".join(f"{n} x rank {rank}" for rank, n in counts.items() if n)
    how = f"processes started again: {again}" if total else "no process was started again"
    return _run("restarts", total, "count", how, by_rank=counts)


def regroups(timeline: Timeline) -> Measurement:
    """Measure regroups: groups that were formed after the first one, of the busiest rank."""
    if lacking := _record_gap(timeline):
        return _lack("regroups", "count", lacking)
    groups = {r: len(timeline.rank_events(r, "group_ready")) for r in timeline.expectation.ranks}
    if silent := [rank for rank, formed in groups.items() if not formed]:
        return _lack("regroups", "count", f"group_ready of rank {silent[0]}")
    counts = {rank: formed - 1 for rank, formed in groups.items()}
    most = max(counts, key=lambda rank: (counts[rank], -rank), default=0)
    value = counts.get(most, 0)
    how = (
        f"rank {most} joined {value} more group{'s' if value > 1 else ''}"
        if value
        else "no group was formed again"
    )
    return _run("regroups", value, "count", how, by_rank=counts)


def leaks(timeline: Timeline) -> Measurement:
    """Measure leaks: processes of the job found after its end."""
    left = [str(event.get("what", "something unnamed")) for event in timeline.of("leak")]
    if left:
        return _run("leaks", len(left), "count", f"left behind: {'; '.join(left[:5])}")
    if timeline.of("gave_up"):
        return _lack("leaks", "count", "a job that ended by itself: the run was given up")
    if not timeline.ended:
        return _lack("leaks", "count", "run_ended: the record is cut short")
    return _run("leaks", 0, "count", "nothing of the job was found after its end")
