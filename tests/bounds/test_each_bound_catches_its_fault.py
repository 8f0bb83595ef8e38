"""Every bound: one planted fault that it must catch, and a healthy twin that it must pass."""

from __future__ import annotations

import dataclasses

import pytest

from chaoslab import bounds
from chaoslab.bounds import Bound, Judgement, Verdict, judge
from chaoslab.measure import Expectation
from tests.measure import stories as told

TWIN = told.history(told.twin_story())
KILL, LOSS, CIRCUIT = told.kill_expected(), told.loss_expected(), told.circuit_expected()
STORM = told.storm_expected()


def judged(bound: Bound, story: told.Story, expected: Expectation) -> Judgement:
    found = judge(told.history(story), expected, [bound], TWIN)
    assert len(found.judgements) == 1
    return found.judgements[0]


LEAK = told.event(4.95, "leak", what="process 4711 of rank 1")

CASES = [
    # bound, healthy twin, planted fault, what was expected, words of the message
    (
        bounds.noticed_within(0.2),
        told.kill_story(),
        told.hang_story(),
        KILL,
        "never (limit 0.2 s): no failure_seen of ranks 0, 1: still there when the run",
    ),
    (
        bounds.noticed_within(0.2),
        told.kill_story(),
        [*told.without(told.kill_story(), "failure_seen", 1), told.event(2.2, "failure_seen", 1)],
        KILL,
        "noticed by every surviving rank: 0.35 s, over 0.2 s",
    ),
    (bounds.recovers_within(1.8), told.kill_story(), told.hang_story(), KILL, "recovered: never"),
    (
        bounds.recovers_within(0.3),
        told.loss_story(),
        [*told.without(told.loss_story(), "healed"), told.healed(4.6)],
        LOSS,
        "recovered: 0.502 s, over 0.3 s: from the heal to step 11 of rank 2",
    ),
    (
        bounds.circuit_opens_within(3),
        told.circuit_story(),
        told.circuit_story(status=1),
        CIRCUIT,
        "rank 0: exited with status 1 after step 8 of 20; want status 75",
    ),
    (
        bounds.circuit_opens_within(3),
        told.circuit_story(),
        [*told.circuit_story(), LEAK],
        CIRCUIT,
        "given up, but not all is gone: left behind: process 4711 of rank 1",
    ),
    (
        bounds.loses_at_most(3),
        told.kill_story(),
        told.changed(told.kill_story(), "restored", step=4),
        KILL,
        "to be done again: 4 steps, over 3 steps: rank 0 restored step 4",
    ),
    (
        bounds.keeps_acknowledged(),
        told.kill_story(),
        told.changed(told.kill_story(), "restored", step=3),
        KILL,
        "2 steps of an acknowledged save lost: rank 0 restored step 3; step 5 was acknowledged",
    ),
    (
        bounds.keeps_acknowledged(),
        told.kill_story(),
        told.changed(told.kill_story(), "restored", 1, verified=False),
        KILL,
        "rank 1 restored step 5 from an unverified checkpoint",
    ),
    (
        bounds.same_result_as_twin(),
        told.kill_story(),
        told.changed(told.kill_story(), "result", 2, optimizer="f" * 64),
        KILL,
        "rank 2's optimizer is ffffffffffff..., the twin's oooooooooooo...",
    ),
    (
        bounds.retries_at_most(1),
        told.kill_story(),
        [*told.kill_story(), *(told.event(2.1 + n / 9, "backoff", 0) for n in range(7))],
        KILL,
        "attempts of one rank: 8, over 1: by rank 0",
    ),
    (
        bounds.spreads_retries(4),
        told.storm_story(),
        told.storm_story(told.ALIKE_S),
        STORM,
        "in 100 ms: 16, over 4: in the 100 ms from 0.350 s after the effect: 16 at the store by",
    ),
    (
        bounds.stalls_at_most(2),
        told.kill_story(),
        told.hang_story(),
        KILL,
        "longest time without a step: 28.2 s, over 2 s: of rank 0",
    ),
    (
        bounds.never_restarts(),
        told.loss_story(),
        [*told.loss_story(), told.event(3.2, "group_ready", 1, generation=2)],
        LOSS,
        "rank 1 joined 1 more group",
    ),
    (
        bounds.never_restarts(),
        told.loss_story(),
        [
            *told.loss_story(),
            told.event(2, "process_exited", 1, status=1),
            told.event(3, "process_started", 1, incarnation=1),
        ],
        LOSS,
        "processes started again: 1 x rank 1",
    ),
    (
        bounds.finishes(),
        told.kill_story(),
        told.circuit_story(),
        KILL,
        "ranks 0, 1, 2: exited with status 75 after step 8 of 20",
    ),
    (
        bounds.finishes(),
        told.kill_story(),
        [e for e in told.kill_story() if not (e.kind == "step" and e["step"] > 19)],
        KILL,
        "ranks 0, 1, 2: exited with status 0 after step 19 of 20",
    ),
    (
        bounds.leaves_nothing_behind(),
        told.kill_story(),
        [*told.kill_story(), LEAK],
        KILL,
        "left behind: process 4711 of rank 1",
    ),
]


@pytest.mark.parametrize(("bound", "healthy", "planted", "expected", "words"), CASES)
def test_a_planted_fault_fails_and_its_healthy_twin_passes(
    bound: Bound,
    healthy: told.Story,
    planted: told.Story,
    expected: Expectation,
    words: str,
) -> None:
    """The bound is FAILED with its numbers in words, and PASSED where nothing is wrong."""
    good = judged(bound, healthy, expected)
    assert good.verdict is Verdict.PASSED, good
    bad = judged(bound, planted, expected)
    assert bad.verdict is Verdict.FAILED, bad
    assert words in bad.message


def test_every_bound_has_a_planted_fault() -> None:
    """A bound that is added without a planted fault is noticed here."""
    made = {name for name in bounds.__all__ if name[0].islower()}
    not_bounds = {"contradictions", "find_doubts", "from_data", "judge", "verdict"}
    assert {case[0].name for case in CASES} == made - not_bounds


@pytest.mark.parametrize(
    ("bound", "story", "expected", "missing"),
    [
        (bounds.noticed_within(5), told.loss_story(), LOSS, "rode the fault out"),
        (
            bounds.recovers_within(5),
            told.without(told.loss_story(), "effective"),
            LOSS,
            "nothing shows that the fault bit",
        ),
        (
            bounds.recovers_within(5),
            told.silent_after(told.kill_story(), 1, 3.2),
            KILL,
            "process_exited of rank 1: its events stop at 3.150 s (restored)",
        ),
        (
            bounds.circuit_opens_within(5),
            told.silent_after(told.circuit_story(), 1, 4.6),
            CIRCUIT,
            "process_exited of rank 1: its events stop at 4.500 s (circuit_opened)",
        ),
        (bounds.loses_at_most(9), told.circuit_story(), CIRCUIT, "not judged: the job never"),
        (bounds.keeps_acknowledged(), told.circuit_story(), CIRCUIT, "not judged: the job never"),
        (
            bounds.keeps_acknowledged(),
            told.without(told.kill_story(), "save_committed"),
            KILL,
            "no rank ever acknowledged a save",
        ),
        (
            bounds.keeps_acknowledged(),
            told.changed(told.kill_story(), "restored", 2, verified=None),
            KILL,
            "verified in restored of rank 2 (step 5)",
        ),
        (bounds.same_result_as_twin(), told.circuit_story(), CIRCUIT, "the job never finished"),
        (
            bounds.retries_at_most(99),
            [*told.kill_story(), told.event(2, "events_lost", 1, count=9)],
            KILL,
            "events_lost: the record of rank 1",
        ),
        (
            bounds.spreads_retries(99),
            told.without(told.storm_story(), "attempt"),
            STORM,
            "attempt of ranks 0-15: a failure was noticed, and no try to connect is on record",
        ),
        (
            bounds.spreads_retries(1),
            told.without(told.storm_story(told.ALIKE_S), "attempt", 7),
            STORM,
            "attempt of rank 7",
        ),
        (
            bounds.spreads_retries(1),
            told.without(told.storm_story(told.ALIKE_S), "effective"),
            STORM,
            "nothing shows that the fault bit",
        ),
        (
            bounds.stalls_at_most(99),
            told.without(told.kill_story(), "process_exited", 0),
            KILL,
            "process_exited of rank 0",
        ),
        (
            bounds.never_restarts(),
            told.without(told.loss_story(), "run_ended"),
            LOSS,
            "run_ended",
        ),
        (
            bounds.finishes(),
            told.without(told.kill_story(), "process_exited", 0),
            KILL,
            "process_exited of rank 0",
        ),
        (
            bounds.leaves_nothing_behind(),
            told.without(told.kill_story(), "run_ended"),
            KILL,
            "run_ended",
        ),
        (bounds.recovers_within(5), told.twin_story(), Expectation(world_size=3), "a fault"),
        (bounds.recovers_within(5, injection=3), told.kill_story(), KILL, "injection 3"),
    ],
)
def test_what_is_missing_makes_a_bound_unknown(
    bound: Bound, story: told.Story, expected: Expectation, missing: str
) -> None:
    """Neither passed nor failed follows from a gap; the gap is named."""
    found = judged(bound, story, expected)
    assert found.verdict is Verdict.UNKNOWN, found
    assert missing in found.missing
    assert missing in found.message


def test_an_open_circuit_is_wanted_but_the_job_recovered() -> None:
    """A job that recovers has not given up, and the bound says so."""
    found = judged(bounds.circuit_opens_within(5), told.kill_story(), KILL)
    assert found.verdict is Verdict.FAILED
    assert "the job recovered" in found.message


def test_a_bound_of_one_injection_speaks_of_that_one_only() -> None:
    """With injection=1 the first fault of the schedule is not judged."""
    story = told.fault_events(1.25, 0) + told.changed(
        told.changed(told.kill_story(), "injected", injection=1), "effective", injection=1
    )
    reset = told.reset_expected().injections[0]
    kill = dataclasses.replace(KILL.injections[0], index=1)
    expected = Expectation(world_size=3, steps=20, injections=(reset, kill))
    one = judge(told.history(story), expected, [bounds.recovers_within(1, injection=0)])
    assert [j.verdict for j in one.judgements] == [Verdict.PASSED]
    both = judge(told.history(story), expected, [bounds.recovers_within(1)])
    assert [(j.injection, j.verdict) for j in both.judgements] == [
        (0, Verdict.PASSED),
        (1, Verdict.FAILED),
    ]


def test_an_unverified_restore_is_laid_on_the_fault_that_it_followed() -> None:
    """With two faults, the one that made the job restore is the one that is judged FAILED."""
    story = told.changed(told.kill_story(), "restored", verified=False)
    story = told.changed(told.changed(story, "injected", injection=1), "effective", injection=1)
    reset = told.reset_expected().injections[0]
    kill = dataclasses.replace(KILL.injections[0], index=1)
    expected = Expectation(world_size=3, steps=20, injections=(reset, kill))
    history = told.history(told.fault_events(1.25, 0) + story)
    found = judge(history, expected, [bounds.keeps_acknowledged()])
    verdicts = [(j.injection, j.verdict) for j in found.judgements]
    assert verdicts == [(0, Verdict.PASSED), (1, Verdict.FAILED)]


def test_a_negative_control_fails_by_its_bound_and_no_other() -> None:
    """A job that never recovers breaks the recovery bound; what hangs on it is not judged."""
    given = [
        bounds.recovers_within(5),
        bounds.loses_at_most(5),
        bounds.keeps_acknowledged(),
        bounds.same_result_as_twin(),
        bounds.leaves_nothing_behind(),
    ]
    found = judge(told.history(told.circuit_story()), CIRCUIT, given, TWIN)
    failed = [j.bound for j in found.judgements if j.verdict is Verdict.FAILED]
    assert failed == ["recovers_within(5)"]
    assert found.verdict is Verdict.FAILED


def test_a_job_that_stands_still_for_longer_than_the_limit_unnoticed_is_caught() -> None:
    """Nobody noticed, and for 1.5 s nothing moved: a promise of 1 s is broken, one of 2 s open."""
    planted, expected = told.loss_story(), told.loss_expected()
    broken = judged(bounds.noticed_within(1), planted, expected)
    assert broken.verdict is Verdict.FAILED
    assert "stood still for 1.5 s" in broken.message
    assert judged(bounds.noticed_within(2), planted, expected).verdict is Verdict.UNKNOWN
