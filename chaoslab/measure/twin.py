"""The oracle: a run's final state against its twin's, digest by digest."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from chaoslab.history import History
from chaoslab.measure.timeline import build, tell
from chaoslab.measure.values import Expectation

COMPONENTS: Final = ("parameters", "optimizer", "random_state", "sample_order")
"""Fields of a `result` event that hold digests, in the order in which they are compared."""

_Difference = tuple[int, str, Any, Any]  # rank, component, this run's digest, the twin's


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwinComparison:
    """equal: None when it cannot be told, for want of `missing`. message: what differs first."""

    equal: bool | None
    message: str
    missing: str = ""


def compare_with_twin(
    history: History, twin: History | None, expectation: Expectation
) -> TwinComparison:
    """Compare every expected rank's last `result` with the twin's."""
    if twin is None or not expectation.ranks:
        what = "an expected rank: the faults take them all" if twin else "the history of a twin"
        return _unknown(what if twin else f"{what}: none was run or found")
    unfinished = _unfinished(history, expectation)
    if unfinished:
        return _unknown(f"not judged: the job never finished: {unfinished}")
    if twin.of("injected"):
        return _unknown("a twin without faults: the one given holds an injection")
    differences, absent = _differences(history, twin, expectation)
    if differences:
        return _different(differences)
    if absent:
        return _unknown("; ".join(absent[:3]))
    ranks = len(expectation.ranks)
    return TwinComparison(
        equal=True,
        message=f"{ranks} ranks end as the twin's do: {', '.join(COMPONENTS)} are equal",
    )


def _differences(
    history: History, twin: History, expectation: Expectation
) -> tuple[list[_Difference], list[str]]:
    differences: list[_Difference] = []
    absent: list[str] = []
    for rank in expectation.ranks:
        own, other = _result(history, rank), _result(twin, rank)
        for whose, result in (("this run", own), ("the twin", other)):
            if not result:
                absent.append(f"result of rank {rank} in {whose}")
        if not own or not other:
            continue
        for name in ("step", *COMPONENTS):
            if own.get(name) is None or other.get(name) is None:
                whose = "this run" if own.get(name) is None else "the twin"
                absent.append(f"{name} in result of rank {rank} in {whose}")
            elif own[name] != other[name]:
                differences.append((rank, name, own[name], other[name]))
    return differences, absent


def _different(differences: list[_Difference]) -> TwinComparison:
    rank, name, own, other = differences[0]
    message = f"rank {rank}'s {name} is {_short(own)}, the twin's {_short(other)}"
    if len(differences) > 1:
        rest = ", ".join(f"{n} of rank {r}" for r, n, _, _ in differences[1:5])
        more = len(differences) - 5
        message += f"; so differ {rest}" + (f" and {more} more" if more > 0 else "")
    return TwinComparison(equal=False, message=message)


def _short(digest: Any) -> str:
    text = str(digest)
    return text if len(text) <= 16 else text[:12] + "..."  # noqa: PLR2004 - fits a line


def _unknown(missing: str) -> TwinComparison:
    return TwinComparison(equal=None, message="", missing=missing)


def _unfinished(history: History, expectation: Expectation) -> str:
    timeline = build(history, expectation)
    endings = [timeline.ending(rank) for rank in expectation.ranks]
    return tell(end for end in endings if end.outcome in ("failed", "given_up"))


def _result(history: History, rank: int) -> dict[str, Any]:
    events = history.of("result", rank=rank)
    return dict(events[-1].fields) if events else {}
