"""From judgements to the verdict of a run. Pure: a saved history is judged again offline.

FAILED needs evidence: a broken bound counts only when the fault that it speaks of is proven to
have bitten (for a bound on the whole run: when every fault that was begun is proven, and one
was). A bound broken under a fault that is not proven says nothing about that fault: UNKNOWN.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from chaoslab.bounds.values import Bound, Judgement, Record, Verdict
from chaoslab.history import Event, History
from chaoslab.measure import Expectation, Measurement, doubts_of_faults, measure, proven


@dataclasses.dataclass(frozen=True, kw_only=True)
class Findings:
    """What a run comes to. doubts: what, apart from the bounds, keeps it from being PASSED."""

    verdict: Verdict
    expectation: Expectation
    judgements: tuple[Judgement, ...]
    measurements: tuple[Measurement, ...]
    doubts: tuple[str, ...]


def judge(
    history: History,
    expectation: Expectation,
    bounds: Sequence[Bound],
    twin: History | None = None,
) -> Findings:
    """Judge a history by bounds. Never raises on a history: what breaks becomes UNKNOWN."""
    measurements = measure(history, expectation)
    record = Record(history=history, expectation=expectation, measurements=measurements, twin=twin)
    judgements = tuple(j for bound in bounds for j in _judged(bound, record))
    doubts = tuple(find_doubts(history, expectation))
    return Findings(
        verdict=verdict(judgements, history, expectation, doubts=doubts),
        expectation=expectation,
        judgements=judgements,
        measurements=measurements,
        doubts=doubts,
    )


def verdict(
    judgements: Sequence[Judgement],
    history: History,
    expectation: Expectation,
    *,
    doubts: Sequence[str] | None = None,
) -> Verdict:
    """Draw the verdict: FAILED on a broken bound with evidence, PASSED without any doubt."""
    if doubts is None:
        doubts = find_doubts(history, expectation)
    if any(j.verdict is Verdict.FAILED and _stands(j, history, expectation) for j in judgements):
        return Verdict.FAILED
    passed = bool(judgements) and all(j.verdict is Verdict.PASSED for j in judgements)
    return Verdict.PASSED if passed and not doubts else Verdict.UNKNOWN


def find_doubts(history: History, expectation: Expectation) -> list[str]:
    """Say what, apart from the bounds, keeps a run from being PASSED."""
    doubts = doubts_of_faults(history, expectation)
    doubts += [_doubt(event) for event in history if event.kind in _DOUBTFUL]
    doubts += [
        f"healed: the job ended inside the window of injection {event.get('injection')}: "
        "want more steps, or a shorter window"
        for event in history.of("healed")
        if event.get("cut_short")
    ]
    if not history.of("run_ended", "gave_up"):
        doubts.append("run_ended: the record is cut short")
    return doubts


_DOUBTFUL = {
    "malformed": "a line in the record of {who} is no event: {problem}: {excerpt}",
    "events_lost": "{who} could not write {count} of its events",
    "lease_expired": "the fault's lease ran out: it was not healed as the schedule says",
    "agent_failed": "the agent of {who} could not undo a fault by itself",
    "hold_expired": "{who} was held for a fault and let go before the fault came",
    "gave_up": "the job was still there after {limit_s} s, and the run was given up",
    "events_cut": "a rank on {who} wrote more events than are passed on: the rest is missing",
    "not_pristine": "{who} was not in a known good state: {differences}",
}


def _doubt(event: Event) -> str:
    who = "the harness"
    for place in ("node", "rank"):
        index = event.get(place) if getattr(event, place) is None else getattr(event, place)
        who = f"{place} {index}" if index is not None else who
    told = _DOUBTFUL[event.kind].format(
        who=who,
        limit_s=event.get("limit_s", "?"),
        count=event.get("count", "some"),
        differences=event.get("differences", ""),
        problem=event.get("problem", "it cannot be read"),
        excerpt=str(event.get("excerpt", ""))[:100],
    )
    return f"{event.kind}: {told}"


def _judged(bound: Bound, record: Record) -> Iterable[Judgement]:
    try:
        return bound.check(bound, record)
    except Exception as problem:  # noqa: BLE001 - a checker that breaks must not decide anything
        missing = f"a verdict: the checker crashed: {type(problem).__name__}: {problem}"
        return (bound.unknown(missing),)


def _stands(judgement: Judgement, history: History, expectation: Expectation) -> bool:
    if not expectation.injections:
        return True
    if judgement.injection is not None:
        return proven(history, expectation, judgement.injection)
    begun = {
        event.get("injection")
        for event in history.of("injected")
        if event.get("injection") in range(len(expectation.injections))
    }
    return bool(begun) and all(proven(history, expectation, index) for index in begun)
