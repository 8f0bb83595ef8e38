"""Storm: how many attempts to connect the ranks make at once, after a fault.

An attempt is one try of one rank to reach the store or its peers, told by an `attempt` event.
Ranks that were hit together and wait alike come back together: a few attempts each are then a
storm at the store. Only a whole record gives a figure: an attempt that was not written is no
attempt that was not made.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

from chaoslab.history import Event
from chaoslab.measure.episode import Episode
from chaoslab.measure.phases import noticed
from chaoslab.measure.values import Measurement

WINDOW_S: Final = 0.1
"""Length of the window in which attempts are counted."""

_US: Final = 1_000_000  # times are whole microseconds, so an edge is an edge
_WINDOW_US: Final = round(WINDOW_S * _US)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bin:
    """Attempts in one span of WINDOW_S. start_s: its beginning, counted from the effect."""

    start_s: float
    count: int


def retry_peak(episode: Episode) -> Measurement:
    """Measure retry_peak: the most attempts of all expected ranks in any window of WINDOW_S.

    From the fault's effect to the end of the episode. A window holds its beginning and not its
    end: attempts that are exactly WINDOW_S apart are not in one. Of windows that hold as many,
    the first counts. by_rank: each rank's attempts in it.
    """
    if lacking := _lacking(episode):
        return episode.missing("retry_peak", "count", lacking)
    attempts = _attempts(episode)
    times = [_since_effect_us(episode, event) for event in attempts]
    window = busiest(times, _WINDOW_US)
    most = attempts[window]
    if not most:
        return episode.known("retry_peak", 0.0, "count", "no rank had to connect again")
    by_rank = collections.Counter(event.rank for event in most if event.rank is not None)
    begun_s = times[window.start] / _US
    how = f"in the 100 ms from {begun_s:.3f} s after the effect: {_where(most)} by {_of(by_rank)}"
    counts = {rank: float(count) for rank, count in by_rank.items()}
    return episode.known("retry_peak", float(len(most)), "count", how, counts)


def series(episode: Episode) -> tuple[Bin, ...]:
    """Count the attempts on record in spans of WINDOW_S from the effect on; empty ones left out.

    Also of a record that is not whole: it shows what is there, and is no measurement.
    """
    counts = collections.Counter(
        _since_effect_us(episode, event) // _WINDOW_US for event in _attempts(episode)
    )
    return tuple(
        Bin(start_s=nth * _WINDOW_US / _US, count=count) for nth, count in sorted(counts.items())
    )


def busiest(times: Sequence[int], width: int) -> slice:
    """Find the first window [t, t + width) that holds the most of these sorted times."""
    best, first = slice(0, 0), 0
    for last, time in enumerate(times):
        while time - times[first] >= width:
            first += 1
        if last + 1 - first > best.stop - best.start:
            best = slice(first, last + 1)
    return best


def _attempts(episode: Episode) -> list[Event]:
    ranks = episode.timeline.expectation.ranks
    found = [event for rank in ranks for event in episode.within(rank, "attempt")]
    return sorted(found, key=lambda event: event.t_s)


def _since_effect_us(episode: Episode, event: Event) -> int:
    return round((event.t_s - episode.bitten_s) * _US)


def _lacking(episode: Episode) -> str:
    """Say what keeps the record of attempts from being known to be whole (empty: it is)."""
    timeline = episode.timeline
    ranks = timeline.expectation.ranks
    if gap := next((gap for rank in ranks if (gap := timeline.gaps(rank))), ""):
        return gap
    if not episode.recovered:
        if not timeline.ended:
            return "run_ended: the record is cut short"
        if lost := next((end.missing for r in ranks if (end := timeline.ending(r)).missing), ""):
            return lost
    if silent := _silent(episode):
        return (
            f"attempt of {_of(silent)}: a failure was noticed, and no try to connect is on record"
        )
    if regrouped := [rank for rank in ranks if _regrouped_without(episode, rank)]:
        return f"attempt of {_of(regrouped)}: a group was formed again, with no try on record"
    return ""


def _silent(episode: Episode) -> list[int]:
    """Give the surviving ranks that noticed a failure and are not known to have tried again.

    One whose process a later fault took in this episode may not have come to it.
    """
    found = []
    for rank, failure in sorted(noticed(episode).items()):
        taken_s = episode.taken_later(rank)
        tried = any(event.t_s >= failure.t_s for event in episode.within(rank, "attempt"))
        if not tried and (taken_s is None or taken_s > episode.end_s):
            found.append(rank)
    return found


def _regrouped_without(episode: Episode, rank: int) -> bool:
    """Tell whether a rank formed another group in this episode with no attempt on record.

    The attempt may lie before the effect, where the fault hit a recovery that was under way.
    """
    tried, grouped = False, False
    for event in episode.timeline.rank_events(rank, "attempt", "group_ready"):
        if event.kind == "attempt":
            tried = True
            continue
        if grouped and not tried and episode.bitten_s <= event.t_s <= episode.end_s:
            return True
        tried, grouped = False, True
    return False


def _where(attempts: Iterable[Event]) -> str:
    """Say at what the attempts were made: `12 at the store, 4 at peers`."""
    names = {"store": "at the store", "peers": "at peers"}
    counts = collections.Counter(
        names.get(str(event.get("what")), "elsewhere") for event in attempts
    )
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), reverse=True))


def _of(ranks: Iterable[int]) -> str:
    """Name ranks, those in a row as a span: `ranks 0-3, 7`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], rank]
        else:
            spans.append([rank])
    named = ", ".join("-".join(map(str, span)) for span in spans)
    return f"rank {named}" if len(spans) == 1 and len(spans[0]) == 1 else f"ranks {named}"
