"""Timeline: a history sorted by rank and by fault, so that figures can be read off it."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from chaoslab.history import Event, History
from chaoslab.measure.values import Expectation, ExpectedInjection

Outcome = Literal["finished", "failed", "given_up", "unknown"]

BEGINNINGS = frozenset({"step", "restored", "group_ready", "rank_started"})
"""Kinds after which a rank works on its next step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moments:
    """When one injection bit and was healed; `missing` says what is not known, if anything.

    bitten_s: the earliest time at which it can have bitten, so that no duration measured from
    it comes out too short: the time of the injected event, its `begun_t_s` or the time of the
    effective event, whichever comes first. proven_s: when it was in place on all its targets
    and had been seen to bite. healed_s: the time of the healed event, or its `begun_t_s`.
    """

    injection: ExpectedInjection
    bitten_s: float | None
    proven_s: float | None
    healed_s: float | None
    missing: str

    @property
    def start_s(self) -> float | None:
        """Give the time from which recovery counts: the heal of a window, else the effect."""
        return self.healed_s if self.injection.is_window else self.bitten_s


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ending:
    """How one rank ended. told: the same in words; t_s: when (None: not known).

    missing: what an unknown end lacks.
    """

    rank: int
    outcome: Outcome
    told: str = "how it ended is not known"
    missing: str = ""
    status: int | None = None
    t_s: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timeline:
    """The events of a run by rank (harness events about a rank among them), and its faults."""

    expectation: Expectation
    events: tuple[Event, ...]
    by_rank: Mapping[int, tuple[Event, ...]]
    moments: tuple[Moments, ...]

    def of(self, *kinds: str) -> list[Event]:
        """Give the events of these kinds, in order of time."""
        return [event for event in self.events if event.kind in kinds]

    def rank_events(self, rank: int, *kinds: str) -> list[Event]:
        """Give one rank's events of these kinds (none named: all)."""
        events = self.by_rank.get(rank, ())
        return [event for event in events if not kinds or event.kind in kinds]

    def steps(self, rank: int) -> list[Event]:
        """Give one rank's completed steps."""
        return self.rank_events(rank, "step")

    def highest_step(self, until_s: float | None = None) -> int:
        """Give the highest step that any rank completed until then (0: none)."""
        steps = (e["step"] for e in self.of("step") if until_s is None or e.t_s <= until_s)
        return max(steps, default=0)

    @property
    def ended(self) -> bool:
        """True when the record reaches to the run's end, or to where it was given up."""
        return bool(self.of("run_ended", "gave_up"))

    def gaps(self, rank: int) -> str:
        """Say why this rank's record may lack events (empty: it is whole)."""
        for event in self.of("malformed", "events_lost"):
            if rank_of(event) == rank:
                what = (
                    "a line that is no event"
                    if event.kind == "malformed"
                    else "events it could not write"
                )
                return f"{event.kind}: the record of rank {rank} has {what} at {event.t_s:.3f} s"
        return ""

    def ending(self, rank: int) -> Ending:
        """Say how a rank ended."""
        lives = self.rank_events(rank, "process_started", "process_exited")
        given_up = next(iter(self.of("gave_up")), None)
        last = lives[-1] if lives else None
        exited = last is not None and last.kind == "process_exited"
        if last is not None and exited and (given_up is None or last.t_s <= given_up.t_s):
            return self._exited(rank, last)
        if given_up is not None:
            told = f"still there when the run was given up after {given_up.get('limit_s', '?')} s"
            return Ending(rank=rank, outcome="given_up", told=told, t_s=given_up.t_s)
        return Ending(rank=rank, outcome="unknown", missing=self._no_exit(rank))

    def _exited(self, rank: int, event: Event) -> Ending:
        status = event.get("status")
        highest = max((e["step"] for e in self.steps(rank)), default=0)
        wanted = self.expectation.steps
        missing = ""
        if status is None:
            missing = f"status in process_exited of rank {rank}"
        elif status != 0 and not self.ended:
            missing = f"run_ended: the record stops after rank {rank} {status_text(status)}"
        elif status == 0 and highest < (wanted or 0) and not self._said_goodbye(rank):
            # It may have left early, or have gone on without a word: either may be true.
            missing = (
                f"steps of rank {rank}: its events stop after step {highest} of {wanted}, "
                "and yet it exited with status 0"
            )
        if missing:
            return Ending(rank=rank, outcome="unknown", missing=missing, t_s=event.t_s)
        done = status == 0 and (wanted is None or highest >= wanted)
        of_all = f" of {wanted}" if wanted is not None else ""
        return Ending(
            rank=rank,
            outcome="finished" if done else "failed",
            told=f"{status_text(status)} after step {highest}{of_all}",
            status=status,
            t_s=event.t_s,
        )

    def _said_goodbye(self, rank: int) -> bool:
        """Tell whether a rank wrote its own end after its last step: its record is whole."""
        last = self.rank_events(rank, "step", "rank_exited")
        return bool(last) and last[-1].kind == "rank_exited"

    def _no_exit(self, rank: int) -> str:
        events = self.by_rank.get(rank, ())
        if not events:
            return f"process_exited of rank {rank}, of which there is no event at all"
        last = events[-1]
        return f"process_exited of rank {rank}: its events stop at {last.t_s:.3f} s ({last.kind})"


def tell(endings: Iterable[Ending], most: int = 3) -> str:
    """Say how ranks ended, those that ended alike together: at most so many kinds."""
    ranks_by_told: dict[str, list[int]] = {}
    for end in endings:
        ranks_by_told.setdefault(end.told, []).append(end.rank)
    texts = [f"{_ranks(ranks)}: {told}" for told, ranks in ranks_by_told.items()]
    more = f"; and {len(texts) - most} more" if len(texts) > most else ""
    return "; ".join(texts[:most]) + more


def _ranks(ranks: list[int]) -> str:
    named = ", ".join(map(str, ranks))
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}"


def rank_of(event: Event) -> int | None:
    """Give the rank that an event is about."""
    rank = event.rank if event.rank is not None else event.get("rank")
    return rank if isinstance(rank, int) else None


def status_text(status: Any) -> str:
    """Say an exit status in words: `exited with status 1`, `ended by SIGKILL`."""
    if isinstance(status, int) and status < 0:
        try:
            return f"ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"ended by signal {-status}"
    return f"exited with status {status}"


def build(history: History, expectation: Expectation) -> Timeline:
    """Sort a history; times are rounded as a saved history's are, so both give one answer."""
    events = tuple(dataclasses.replace(e, t_s=round(e.t_s, 6)) for e in history)
    by_rank: dict[int, list[Event]] = {}
    for event in events:
        rank = rank_of(event)
        if rank is not None and not event.get("store"):
            by_rank.setdefault(rank, []).append(event)
    return Timeline(
        expectation=expectation,
        events=events,
        by_rank={rank: tuple(own) for rank, own in by_rank.items()},
        moments=tuple(_moments(events, injection) for injection in expectation.injections),
    )


def _moments(events: Sequence[Event], injection: ExpectedInjection) -> Moments:
    own = [e for e in events if e.get("injection") == injection.index]
    injected = _first(own, "injected")
    effective = _first(own, "effective")
    healed = _first(own, "healed")
    bitten_s = proven_s = None
    if injected is not None and effective is not None:
        bitten_s = min(_begun(injected), injected.t_s, effective.t_s)
        proven_s = max(injected.t_s, effective.t_s)
    missing = ""
    if injected is None:
        steps = [e["step"] for e in events if e.kind == "step" and isinstance(e.get("step"), int)]
        far = f"the highest step was {max(steps)}" if steps else "no rank told of a step"
        trigger = injection.at or "of this fault"
        missing = f"injected: the trigger {trigger} was never reached ({far})"
    elif effective is None:
        missing = "effective: " + _said(own, "not_effective", "nothing shows that the fault bit")
    elif injection.is_window and healed is None:
        missing = "healed: " + _said(own, "not_healed", "nothing shows that the fault is gone")
    return Moments(
        injection=injection,
        bitten_s=bitten_s,
        proven_s=proven_s,
        healed_s=_begun(healed) if healed is not None else None,
        missing=missing,
    )


def _first(events: Iterable[Event], kind: str) -> Event | None:
    return next((event for event in events if event.kind == kind), None)


def _begun(event: Event) -> float:
    begun_s = event.get("begun_t_s")
    return round(float(begun_s), 6) if isinstance(begun_s, int | float) else event.t_s


def _said(events: Iterable[Event], kind: str, otherwise: str) -> str:
    event = _first(events, kind)
    return str(event.get("missing") or otherwise) if event is not None else otherwise
