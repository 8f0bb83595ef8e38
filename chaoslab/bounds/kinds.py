"""The bounds that a scenario can state, one plain function each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from chaoslab.bounds.values import Bound, Judgement, Record, Verdict
from chaoslab.errors import InvalidScenario
from chaoslab.measure import (
    Measurement,
    compare_with_twin,
    endings,
    find,
    number,
    recovered,
    restores,
    tell,
)


def noticed_within(limit_s: float, *, injection: int | None = None) -> Bound:
    """Promise that every surviving rank notices in this long of the effect (detect_all_s)."""
    _check_seconds("noticed_within", limit_s)
    return Bound(
        name="noticed_within", limit=limit_s, unit="s", injection=injection, check=_noticed
    )


def recovers_within(limit_s: float, *, injection: int | None = None) -> Bound:
    """Promise that every expected rank gets beyond the fault's step in this long (recovery_s).

    Counted from the heal for a fault with a window, else from the fault's effect.
    """
    _check_seconds("recovers_within", limit_s)
    return Bound(
        name="recovers_within", limit=limit_s, unit="s", injection=injection, check=_recovers
    )


def circuit_opens_within(limit_s: float, *, injection: int | None = None) -> Bound:
    """Promise that the job gives up in this long of the effect, and is gone (circuit_s).

    Every surviving rank has exited with the circuit-open status, and no leak was found.
    """
    _check_seconds("circuit_opens_within", limit_s)
    return Bound(
        name="circuit_opens_within", limit=limit_s, unit="s", injection=injection, check=_circuit
    )


def loses_at_most(steps: int, *, injection: int | None = None) -> Bound:
    """Promise that at most so many completed steps have to be done again (lost_steps)."""
    _check_count("loses_at_most", "steps", steps)
    return Bound(name="loses_at_most", limit=steps, unit="steps", injection=injection, check=_loses)


def keeps_acknowledged(*, injection: int | None = None) -> Bound:
    """Promise that no acknowledged save is lost: the job goes on from it or a newer one.

    Where the job restored at all, the checkpoint had been verified (restored: verified=true).
    """
    return Bound(name="keeps_acknowledged", injection=injection, check=_keeps)


def same_result_as_twin() -> Bound:
    """Promise that every expected rank ends in the twin's state, bit for bit."""
    return Bound(name="same_result_as_twin", needs_twin=True, check=_same)


def retries_at_most(attempts: int, *, injection: int | None = None) -> Bound:
    """Promise that no rank tries more often than this to get going, a fault (retries)."""
    _check_count("retries_at_most", "attempts", attempts)
    return Bound(
        name="retries_at_most", limit=attempts, unit="count", injection=injection, check=_retries
    )


def spreads_retries(peak_per_100_ms: int, *, injection: int | None = None) -> Bound:
    """Promise that in any 100 ms all ranks together try to connect at most so often (retry_peak).

    Counted from the fault's effect until every rank is back. At least 1: whoever comes back
    has to connect once.
    """
    _check_count("spreads_retries", "attempts", peak_per_100_ms, least=1)
    return Bound(
        name="spreads_retries",
        limit=peak_per_100_ms,
        unit="count",
        injection=injection,
        check=_spreads,
    )


def stalls_at_most(limit_s: float) -> Bound:
    """Promise that no expected rank is longer than this without a completed step (stall_s)."""
    _check_seconds("stalls_at_most", limit_s)
    return Bound(name="stalls_at_most", limit=limit_s, unit="s", check=_stalls)


def never_restarts() -> Bound:
    """Promise that the job rides it out: no process starts and no group is formed again."""
    return Bound(name="never_restarts", check=_never_restarts)


def finishes() -> Bound:
    """Promise that every expected rank does its last step and exits with status 0."""
    return Bound(name="finishes", check=_finishes)


def leaves_nothing_behind() -> Bound:
    """Promise that no process of the job remains; with the last, its sockets and ports are gone."""
    return Bound(name="leaves_nothing_behind", check=_leaves_nothing)


_MAKERS: Final[Mapping[str, Callable[..., Bound]]] = {
    make.__name__: make
    for make in (
        noticed_within,
        recovers_within,
        circuit_opens_within,
        loses_at_most,
        keeps_acknowledged,
        same_result_as_twin,
        retries_at_most,
        spreads_retries,
        stalls_at_most,
        never_restarts,
        finishes,
        leaves_nothing_behind,
    )
}


def from_data(data: Mapping[str, Any]) -> Bound:
    """Make a bound again from what `Bound.to_data` gave. Raises: InvalidScenario."""
    make = _MAKERS.get(str(data.get("name")))
    if make is None:
        raise InvalidScenario(f"bound {data.get('name')!r}: want one of {', '.join(_MAKERS)}")
    limit = [] if data.get("limit") is None else [data["limit"]]
    place = {} if data.get("injection") is None else {"injection": data["injection"]}
    try:
        return make(*limit, **place)
    except TypeError as problem:
        raise InvalidScenario(f"bound data {dict(data)!r}: {problem}") from problem


# --- what they check -------------------------------------------------------------------------


def _check_seconds(name: str, value: Any) -> None:
    number_given = isinstance(value, int | float) and not isinstance(value, bool)
    if not number_given or not 0 < value < math.inf:
        raise InvalidScenario(f"{name}({value!r}): want 0 < limit_s, in seconds")


def _check_count(name: str, what: str, value: Any, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidScenario(f"{name}({value!r}): want a whole number of {what}, {least} or more")


def _noticed(bound: Bound, record: Record) -> tuple[Judgement, ...]:
    judged = _each(bound, record, "detect_all_s", "noticed by every surviving rank")
    return tuple(_stood_still(bound, record, judgement) or judgement for judgement in judged)


def _stood_still(bound: Bound, record: Record, judgement: Judgement) -> Judgement | None:
    """Judge a fault that nobody noticed: it is broken when the job stood still for too long.

    A job that went on had nothing to notice, and one that stood still for less than the limit
    was not yet due to: both stay UNKNOWN.
    """
    if judgement.verdict is not Verdict.UNKNOWN or judgement.injection is None:
        return None
    still = find(record.measurements, "unnoticed_s", judgement.injection)
    if still.value is None or bound.limit is None or still.value <= bound.limit:
        return None
    limit, stood = number(bound.limit, "s"), number(still.value, "s")
    told = f"noticed: by nobody, though the job stood still for {stood}, over {limit}"
    return bound.judgement(
        Verdict.FAILED, told, measured=still.value, injection=judgement.injection
    )


def _recovers(bound: Bound, record: Record) -> tuple[Judgement, ...]:
    return _each(bound, record, "recovery_s", "recovered")


def _loses(bound: Bound, record: Record) -> tuple[Judgement, ...]:
    return _each(bound, record, "lost_steps", "to be done again")


def _retries(bound: Bound, record: Record) -> tuple[Judgement, ...]:
    return _each(bound, record, "retries", "attempts of one rank")


def _spreads(bound: Bound, record: Record) -> tuple[Judgement, ...]:
    return _each(bound, record, "retry_peak", "most attempts of all ranks in 100 ms")


def _stalls(bound: Bound, record: Record) -> tuple[Judgement, ...]:
    figure = find(record.measurements, "stall_s")
    return (_at_most(bound, figure, "longest time without a step"),)


def _never_restarts(bound: Bound, record: Record) -> tuple[Judgement, ...]:
    figures = [find(record.measurements, name) for name in ("restarts", "regroups")]
    broken = [f for f in figures if f.value]
    unknown = [f for f in figures if f.value is None]
    if broken:
        told = "; ".join(figure.how for figure in broken)
        verdict = bound.judgement(Verdict.FAILED, told, measured=broken[0].value)
    elif unknown:
        verdict = bound.unknown(unknown[0].missing)
    else:
        told = "no process started again and no group was formed again"
        verdict = bound.judgement(Verdict.PASSED, told, measured=0)
    return (verdict,)


def _finishes(bound: Bound, record: Record) -> tuple[Judgement, ...]:
    ends = endings(record.history, record.expectation)
    failed = [end for end in ends if end.outcome in ("failed", "given_up")]
    unknown = [end for end in ends if end.outcome == "unknown"]
    if not ends:
        return (bound.unknown("an expected rank: the faults take them all"),)
    if failed:
        return (bound.judgement(Verdict.FAILED, tell(failed)),)
    if unknown:
        return (bound.unknown(unknown[0].missing),)
    return (bound.judgement(Verdict.PASSED, f"all {len(ends)} expected ranks finished"),)


def _leaves_nothing(bound: Bound, record: Record) -> tuple[Judgement, ...]:
    figure = find(record.measurements, "leaks")
    if figure.value is None:
        return (bound.unknown(figure.missing),)
    verdict = Verdict.FAILED if figure.value else Verdict.PASSED
    return (bound.judgement(verdict, figure.how, measured=figure.value),)


def _same(bound: Bound, record: Record) -> tuple[Judgement, ...]:
    found = compare_with_twin(record.history, record.twin, record.expectation)
    if found.equal is None:
        return (bound.unknown(found.missing),)
    verdict = Verdict.PASSED if found.equal else Verdict.FAILED
    return (bound.judgement(verdict, found.message),)


def _keeps(bound: Bound, record: Record) -> tuple[Judgement, ...]:
    judged = []
    for figure in _figures(bound, record, "acknowledged_lost_steps"):
        index = figure.injection
        loads = [
            load
            for load in restores(record.history, record.expectation, figure.injection)
            if load.step > 0  # at step 0 nothing was loaded
        ]
        bad = [load for load in loads if load.verified is False]
        silent = [load for load in loads if load.verified is None]
        if figure.value:
            message = f"{number(figure.value, 'steps')} of an acknowledged save lost: {figure.how}"
            judged.append(_failed(bound, message, figure))
        elif bad:
            message = (
                f"rank {bad[0].rank} restored step {bad[0].step} from an unverified checkpoint"
            )
            judged.append(_failed(bound, message, figure))
        elif figure.value is None:
            judged.append(bound.unknown(figure.missing, injection=index))
        elif silent:
            lack = f"verified in restored of rank {silent[0].rank} (step {silent[0].step})"
            judged.append(bound.unknown(lack, injection=index))
        else:
            judged.append(
                bound.judgement(Verdict.PASSED, figure.how, measured=figure.value, injection=index)
            )
    return tuple(judged) or (_no_fault(bound),)


def _failed(bound: Bound, message: str, figure: Measurement) -> Judgement:
    return bound.judgement(
        Verdict.FAILED, message, measured=figure.value, injection=figure.injection
    )


def _circuit(bound: Bound, record: Record) -> tuple[Judgement, ...]:
    figures = _figures(bound, record, "circuit_s")
    if not figures:
        return (_no_fault(bound),)
    open_to = [figure for figure in figures if not recovered(record.measurements, figure.injection)]
    if not open_to:
        told = "the circuit never opened: the job recovered from every fault"
        return (
            bound.judgement(Verdict.FAILED, told, measured=math.inf, injection=bound.injection),
        )
    left = find(record.measurements, "leaks")
    judgement = _at_most(bound, open_to[0], "given up by every surviving rank")
    if judgement.verdict is Verdict.PASSED and left.value is None:
        judgement = bound.unknown(left.missing, injection=open_to[0].injection)
    elif judgement.verdict is Verdict.PASSED and left.value:
        judgement = _failed(bound, f"given up, but not all is gone: {left.how}", open_to[0])
    return (judgement,)


def _figures(bound: Bound, record: Record, name: str) -> list[Measurement]:
    return [
        figure
        for figure in record.measurements
        if figure.name == name
        and figure.injection is not None
        and bound.injection in (None, figure.injection)
    ]


def _each(bound: Bound, record: Record, name: str, label: str) -> tuple[Judgement, ...]:
    judged = [_at_most(bound, figure, label) for figure in _figures(bound, record, name)]
    return tuple(judged) or (_no_fault(bound),)


def _no_fault(bound: Bound) -> Judgement:
    if bound.injection is None:
        return bound.unknown("a fault: the schedule is empty", injection=None)
    return bound.unknown(f"injection {bound.injection}: the schedule has no such entry")


def _at_most(bound: Bound, figure: Measurement, label: str) -> Judgement:
    if figure.value is None or bound.limit is None:
        return bound.unknown(figure.missing, injection=figure.injection)
    limit = number(bound.limit, figure.unit)
    passed = figure.value <= bound.limit
    if figure.never:
        message = f"{label}: never (limit {limit}): {figure.how}"
    else:
        relation = "within" if passed else "over"
        how = f": {figure.how}" if figure.how else ""
        message = f"{label}: {number(figure.value, figure.unit)}, {relation} {limit}{how}"
    verdict = Verdict.PASSED if passed else Verdict.FAILED
    return bound.judgement(verdict, message, measured=figure.value, injection=figure.injection)
