"""Take every measurement of a run, and look one up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from chaoslab.history import History
from chaoslab.measure import phases, progress, storm
from chaoslab.measure.episode import Episode, episode
from chaoslab.measure.progress import Resumption
from chaoslab.measure.timeline import Ending, Moments, Timeline, build
from chaoslab.measure.values import Expectation, Measurement, Unit

INJECTION_NAMES: Final[tuple[tuple[str, Unit], ...]] = (
    ("detect_s", "s"),
    ("detect_all_s", "s"),
    ("unnoticed_s", "s"),
    ("teardown_s", "s"),
    ("rendezvous_s", "s"),
    ("restore_s", "s"),
    ("first_step_s", "s"),
    ("recovery_s", "s"),
    ("steady_s", "s"),
    ("circuit_s", "s"),
    ("lost_steps", "steps"),
    ("acknowledged_lost_steps", "steps"),
    ("retries", "count"),
    ("retry_peak", "count"),
)
"""What is measured of each fault, in the order of a recovery."""

RUN_NAMES: Final[tuple[tuple[str, Unit], ...]] = (
    ("stall_s", "s"),
    ("goodput_ratio", "ratio"),
    ("wasted_rank_s", "rank_s"),
    ("restarts", "count"),
    ("regroups", "count"),
    ("leaks", "count"),
)
"""What is measured of the whole run."""

_Taking = tuple[tuple[str, ...], Callable[[Episode], Iterable[Measurement]]]

_OF_A_FAULT: Final[tuple[_Taking, ...]] = (
    (("detect_s", "detect_all_s"), phases.detection),
    (("unnoticed_s",), lambda one: [phases.unnoticed(one)]),
    (("teardown_s", "rendezvous_s", "restore_s", "first_step_s"), phases.phases),
    (("recovery_s",), lambda one: [phases.recovery(one)]),
    (("steady_s",), lambda one: [phases.steady(one)]),
    (("circuit_s",), lambda one: [phases.circuit(one)]),
    (("lost_steps",), lambda one: [progress.lost_steps(one)]),
    (("acknowledged_lost_steps",), lambda one: [progress.acknowledged_lost_steps(one)]),
    (("retries",), lambda one: [progress.retries(one)]),
    (("retry_peak",), lambda one: [storm.retry_peak(one)]),
)


def measure(history: History, expectation: Expectation) -> tuple[Measurement, ...]:
    """Measure a run: INJECTION_NAMES of each fault in turn, then RUN_NAMES.

    Never raises on a history: what cannot be taken has value None and says what is missing.
    """
    try:
        timeline = build(history, expectation)
        episodes = [episode(timeline, moments) for moments in timeline.moments]
    except Exception as problem:  # noqa: BLE001 - an odd event costs the figures, not the report
        return tuple(_all_missing(expectation, _crash(problem)))
    figures = [
        figure
        for moments, one in zip(timeline.moments, episodes, strict=True)
        for figure in _of_a_fault(moments, one)
    ]
    return (*figures, *_of_the_run(timeline))


def find(
    measurements: Iterable[Measurement], name: str, injection: int | None = None
) -> Measurement:
    """Give one measurement. Raises: KeyError when there is none of that name."""
    for figure in measurements:
        if figure.name == name and figure.injection == injection:
            return figure
    raise KeyError(f"{name} of injection {injection}: no such measurement")


def recovered(measurements: Iterable[Measurement], injection: int | None) -> bool:
    """Say whether the job is known to have recovered from a fault."""
    value = find(measurements, "recovery_s", injection).value
    return value is not None and math.isfinite(value)


def proven(history: History, expectation: Expectation, injection: int) -> bool:
    """Say whether a fault is proven to have bitten."""
    return build(history, expectation).moments[injection].proven_s is not None


def doubts_of_faults(history: History, expectation: Expectation) -> list[str]:
    """Say which faults are not proven to have bitten, or to have been healed, or came too late."""
    timeline = build(history, expectation)
    doubts = [
        f"{_name(moments)}: {moments.missing}" for moments in timeline.moments if moments.missing
    ]
    doubts += [
        f"{_name(moments)}: effective: the job had done its last step before the fault bit: want "
        "more steps, or an earlier trigger"
        for moments in timeline.moments
        if not moments.missing and not moments.injection.is_window and _came_late(timeline, moments)
    ]
    return doubts


def _came_late(timeline: Timeline, moments: Moments) -> bool:
    """Tell whether every expected rank finished without a step after the effect was proven."""
    for rank in timeline.expectation.ranks:
        steps = timeline.steps(rank)
        last_s = steps[-1].t_s if steps else -math.inf
        if timeline.ending(rank).outcome != "finished" or last_s > (moments.proven_s or 0.0):
            return False
    return True


def endings(history: History, expectation: Expectation) -> tuple[Ending, ...]:
    """Say how each expected rank ended."""
    timeline = build(history, expectation)
    return tuple(timeline.ending(rank) for rank in expectation.ranks)


def restores(
    history: History, expectation: Expectation, injection: int | None
) -> tuple[Resumption, ...]:
    """Give what the ranks restored after one fault (None: there was none)."""
    if injection is None:
        return ()
    timeline = build(history, expectation)
    one = episode(timeline, timeline.moments[injection])
    return tuple(r for r in progress.resumptions(one) if r.loaded) if one is not None else ()


def attempts_seen(
    history: History, expectation: Expectation, injection: int
) -> tuple[storm.Bin, ...]:
    """Give the attempts to connect that are on record after one fault, a bin of 100 ms each.

    Never raises on a history: where a figure cannot be taken, `retry_peak` says why.
    """
    try:
        timeline = build(history, expectation)
        one = episode(timeline, timeline.moments[injection])
        return storm.series(one) if one is not None else ()
    except Exception:  # noqa: BLE001 - see measure
        return ()


def _name(moments: Moments) -> str:
    injection = moments.injection
    return f"injection {injection.index} ({injection.code or injection.fault})"


def _crash(problem: Exception) -> str:
    return f"a figure: taking it failed: {type(problem).__name__}: {problem}"


def _all_missing(expectation: Expectation, missing: str) -> Iterable[Measurement]:
    for injection in expectation.injections:
        for name, unit in INJECTION_NAMES:
            yield Measurement(
                name=name, value=None, unit=unit, missing=missing, injection=injection.index
            )
    for name, unit in RUN_NAMES:
        yield Measurement(name=name, value=None, unit=unit, missing=missing)


def _of_a_fault(moments: Moments, one: Episode | None) -> Iterable[Measurement]:
    units, index = dict(INJECTION_NAMES), moments.injection.index
    for names, take in _OF_A_FAULT:
        missing = moments.missing
        if one is not None:
            try:
                yield from take(one)
                continue
            except Exception as problem:  # noqa: BLE001 - see measure
                missing = _crash(problem)
        for name in names:
            yield Measurement(
                name=name, value=None, unit=units[name], missing=missing, injection=index
            )


def _of_the_run(timeline: Timeline) -> Sequence[Measurement]:
    try:
        return progress.whole_run(timeline)
    except Exception as problem:  # noqa: BLE001 - see measure
        missing = _crash(problem)
        return [Measurement(name=n, value=None, unit=u, missing=missing) for n, u in RUN_NAMES]
