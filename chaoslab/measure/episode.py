"""Episode: one fault, from its effect to the end of the recovery; when each rank was back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Final

from chaoslab.history import Event
from chaoslab.measure.timeline import BEGINNINGS, Moments, Timeline, tell
from chaoslab.measure.values import NEVER, Measurement, Unit

TROUBLE: Final = (
    "failure_seen",
    "torn_down",
    "backoff",
    "restored",
    "process_started",
    "process_exited",
)
"""Kinds that tell that a rank is not simply going on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Episode:
    """One fault whose effect is proven, and when each expected rank had recovered from it.

    back: the step event (or exit) with which a rank was back; a rank that was not is absent.
    """

    timeline: Timeline
    moments: Moments
    bitten_s: float
    proven_s: float
    back: Mapping[int, Event]

    @property
    def index(self) -> int:
        """Give the injection's place in the schedule."""
        return self.moments.injection.index

    @property
    def recovered(self) -> bool:
        """True when every expected rank is back."""
        return set(self.back) == set(self.timeline.expectation.ranks)

    @property
    def end_s(self) -> float:
        """Give the time of the last rank's return; infinity when not all are back."""
        if not self.recovered:
            return math.inf
        start_s = self.moments.start_s
        times = [event.t_s for event in self.back.values()]
        return max([*times, self.bitten_s if start_s is None else start_s])

    @property
    def survivors(self) -> tuple[int, ...]:
        """Give the expected ranks whose own process the fault does not act on."""
        victims = self.moments.injection.victims
        return tuple(r for r in self.timeline.expectation.ranks if r not in victims)

    def within(self, rank: int, *kinds: str) -> list[Event]:
        """Give a rank's events of these kinds, from the effect to the end of the episode."""
        events = self.timeline.rank_events(rank, *kinds)
        return [event for event in events if self.bitten_s <= event.t_s <= self.end_s]

    def taken_later(self, rank: int) -> float | None:
        """Give when a later fault of the schedule took this rank's process, if one did."""
        times = [
            m.bitten_s
            for m in self.timeline.moments
            if m.injection.index != self.index
            and rank in m.injection.victims
            and m.bitten_s is not None
            and m.bitten_s >= self.bitten_s
        ]
        return min(times, default=None)

    def known(
        self,
        name: str,
        value: float,
        unit: Unit,
        how: str,
        by_rank: Mapping[int, float] | None = None,
    ) -> Measurement:
        """Make a measurement of this episode; seconds are cut to microseconds."""
        return Measurement(
            name=name,
            value=value if math.isinf(value) else round(value, 6),
            unit=unit,
            how=how,
            injection=self.index,
            by_rank=tuple(sorted((r, round(v, 6)) for r, v in (by_rank or {}).items())),
        )

    def missing(self, name: str, unit: Unit, missing: str) -> Measurement:
        """Make a measurement that cannot be told."""
        return Measurement(name=name, value=None, unit=unit, missing=missing, injection=self.index)

    def not_back(self, name: str) -> Measurement:
        """Say of a recovery that is not there: never, or not known."""
        absent = [r for r in self.timeline.expectation.ranks if r not in self.back]
        gone = [self.timeline.ending(rank) for rank in absent]
        lacking = [gap for rank in absent if (gap := self.timeline.gaps(rank))]
        lacking += [end.missing for end in gone if end.outcome == "unknown"]
        if lacking:
            return self.missing(name, "s", lacking[0])
        return self.known(name, NEVER, "s", tell(gone))


def episode(timeline: Timeline, moments: Moments) -> Episode | None:
    """Find when each rank was back after a fault; None when its effect is not proven."""
    if moments.bitten_s is None or moments.proven_s is None:
        return None
    found = {}
    if moments.start_s is not None:
        for rank in timeline.expectation.ranks:
            event = _back(timeline, moments, rank)
            if event is not None:
                found[rank] = event
    return Episode(
        timeline=timeline,
        moments=moments,
        bitten_s=moments.bitten_s,
        proven_s=moments.proven_s,
        back=found,
    )


def _back(timeline: Timeline, moments: Moments, rank: int) -> Event | None:
    """Find the step with which one rank is back.

    After a window: the first step after the heal beyond the highest before the fault. Without
    one: the same, and the step must have been begun after the effect was proven, since a step
    that was under way may still be completed on a rank that is already cut off. Where the fault
    stays, steps may get through before it is felt: what counts is the first step after the
    rank's last trouble.
    """
    windowed = moments.injection.is_window
    since_s = moments.healed_s if windowed else moments.proven_s
    if since_s is None:
        return None
    if moments.injection.lasts:
        since_s = max(since_s, _last_trouble_s(timeline, moments, rank))
    floor = timeline.highest_step(moments.bitten_s if windowed else since_s)
    begun_s = -math.inf
    for event in timeline.rank_events(rank, *BEGINNINGS):
        if event.kind == "step" and event["step"] > floor:
            reference_s = event.t_s if windowed else begun_s
            if reference_s >= since_s:
                return event
        begun_s = event.t_s
    return _done_before(timeline, rank)


def _last_trouble_s(timeline: Timeline, moments: Moments, rank: int) -> float:
    """Give the last time at which a rank failed or began again under a fault that stays.

    Until the next fault, which has an episode of its own.
    """
    bitten_s = moments.bitten_s or 0.0
    later = [m.bitten_s for m in timeline.moments if m.bitten_s is not None]
    until_s = min((t_s for t_s in later if t_s > bitten_s), default=math.inf)
    times = [
        event.t_s
        for event in timeline.rank_events(rank, *TROUBLE)
        if bitten_s <= event.t_s < until_s
        and not (event.kind == "process_exited" and event.get("status") == 0)
    ]
    return max(times, default=-math.inf)


def _done_before(timeline: Timeline, rank: int) -> Event | None:
    """Give the last step of a rank that had nothing left to do and then exited with 0."""
    if timeline.ending(rank).outcome != "finished":
        return None
    steps = timeline.steps(rank)
    return steps[-1] if steps else None
