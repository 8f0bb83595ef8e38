"""The verdict: FAILED needs evidence, PASSED allows no doubt, the rest is UNKNOWN."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from chaoslab import bounds
from chaoslab.bounds import Bound, Findings, Judgement, Record, Verdict, judge
from chaoslab.history import Event, History
from chaoslab.measure import Expectation, find, measure
from tests.measure import stories as told

TWIN = told.history(told.twin_story())
KILL, LOSS = told.kill_expected(), told.loss_expected()
ALL = [
    bounds.noticed_within(0.2),
    bounds.recovers_within(1.8),
    bounds.loses_at_most(3),
    bounds.keeps_acknowledged(),
    bounds.same_result_as_twin(),
    bounds.retries_at_most(3),
    bounds.spreads_retries(3),
    bounds.stalls_at_most(3),
    bounds.finishes(),
    bounds.leaves_nothing_behind(),
]
RIDE_OUT = [bounds.recovers_within(1), bounds.never_restarts(), bounds.same_result_as_twin()]


def found(
    story: told.Story, expected: Expectation = KILL, given: list[Bound] | None = None
) -> Findings:
    return judge(told.history(story), expected, ALL if given is None else given, TWIN)


def test_a_recovery_within_every_bound_is_passed() -> None:
    """All bounds hold, every fault is proven, nothing is in doubt."""
    result = found(told.kill_story())
    assert result.verdict is Verdict.PASSED, result.judgements
    assert result.doubts == ()
    assert found(told.loss_story(), LOSS, RIDE_OUT).verdict is Verdict.PASSED


def test_one_broken_bound_is_failed() -> None:
    """A broken bound with evidence decides, whatever the others say."""
    story = told.changed(told.kill_story(), "restored", step=4)
    assert found(story).verdict is Verdict.FAILED


@pytest.mark.parametrize(
    ("story", "doubt"),
    [
        (told.without(told.loss_story(), "effective"), "nothing shows that the fault bit"),
        (told.without(told.loss_story(), "injected"), "AtStep(step=8) was never reached"),
        (told.without(told.loss_story(), "healed"), "nothing shows that the fault is gone"),
        (told.without(told.loss_story(), "run_ended"), "the record is cut short"),
        (
            [*told.loss_story(), told.event(2, "malformed", 1, excerpt="{", problem="cut off")],
            "malformed: a line in the record of rank 1 is no event: cut off: {",
        ),
        (
            [*told.loss_story(), told.event(2, "events_lost", 1, count=4)],
            "events_lost: rank 1 could not write 4 of its events",
        ),
        ([*told.loss_story(), told.event(2, "lease_expired", injection=0)], "lease ran out"),
        ([*told.loss_story(), told.event(2, "hold_expired", 2, nth=2)], "rank 2 was held"),
        (
            [*told.loss_story(), told.event(7, "not_pristine", node=1, differences="a qdisc")],
            "not_pristine: node 1 was not in a known good state: a qdisc",
        ),
    ],
)
def test_a_doubt_keeps_a_run_from_being_passed(story: told.Story, doubt: str) -> None:
    """Bounds that hold are no pass while a fault, or the record, is in doubt."""
    result = found(story, LOSS, [bounds.same_result_as_twin()])
    assert result.verdict is Verdict.UNKNOWN
    assert any(doubt in said for said in result.doubts), result.doubts


def test_one_bound_that_is_not_known_keeps_a_run_from_being_passed() -> None:
    """UNKNOWN is never a pass."""
    given = [*RIDE_OUT, bounds.noticed_within(5)]
    assert found(told.loss_story(), LOSS, given).verdict is Verdict.UNKNOWN


def test_a_bound_broken_under_a_fault_that_is_not_proven_is_unknown() -> None:
    """A job that breaks by itself says nothing about a fault that did not bite."""
    story = told.without(told.hang_story(), "effective")
    result = found(story, KILL, [bounds.finishes()])
    assert result.judgements[0].verdict is Verdict.FAILED
    assert result.verdict is Verdict.UNKNOWN


def test_a_bound_broken_by_the_first_fault_stands_though_the_second_never_came() -> None:
    """A weaker schedule than the one asked for has already broken the job."""
    loss = dataclasses.replace(LOSS.injections[0], index=1, at="WhileRecovering()")
    expected = dataclasses.replace(KILL, injections=(*KILL.injections, loss))
    for bound in (bounds.recovers_within(5), bounds.finishes()):
        assert found(told.hang_story(), expected, [bound]).verdict is Verdict.FAILED
    healthy = found(told.kill_story(), expected, [bounds.recovers_within(5, injection=0)])
    assert healthy.verdict is Verdict.UNKNOWN


def test_a_run_without_faults_is_judged_by_its_bounds() -> None:
    """A schedule may be empty: then a bound on the whole run decides."""
    expected = Expectation(world_size=3, steps=20)
    assert found(told.twin_story(), expected, [bounds.finishes()]).verdict is Verdict.PASSED
    broken = told.without(told.hang_story(), "injected")
    assert found(broken, expected, [bounds.finishes()]).verdict is Verdict.FAILED


def test_a_checker_that_crashes_is_unknown() -> None:
    """What breaks while judging decides nothing, and says what broke."""

    def crash(_bound: Bound, _record: Record) -> tuple[Judgement, ...]:
        raise ZeroDivisionError("planted")

    result = found(told.kill_story(), KILL, [Bound(name="planted", check=crash)])
    assert result.verdict is Verdict.UNKNOWN
    assert "checker crashed: ZeroDivisionError: planted" in result.judgements[0].message


def test_a_verdict_finds_its_doubts_itself() -> None:
    """Judgements alone are drawn to the same verdict as by `judge`."""
    for story in (told.kill_story(), told.without(told.kill_story(), "effective")):
        result = found(story)
        history = told.history(story)
        assert bounds.verdict(result.judgements, history, KILL) is result.verdict
    passed = found(told.kill_story()).judgements
    doubtful = told.history(told.without(told.kill_story(), "run_ended"))
    assert bounds.verdict(passed, doubtful, KILL) is Verdict.UNKNOWN


def test_no_bounds_is_no_pass() -> None:
    """Nothing was asked, so nothing is answered."""
    assert found(told.kill_story(), KILL, []).verdict is Verdict.UNKNOWN


# --- properties -------------------------------------------------------------------------------

STORIES = [
    (told.kill_story(), KILL),
    (told.loss_story(), LOSS),
    (told.circuit_story(), told.circuit_expected()),
    (told.hang_story(), KILL),
    (told.node_loss_story(), told.node_loss_expected()),
    (told.storm_story(), told.storm_expected()),
    (told.storm_story(told.ALIKE_S), told.storm_expected()),
]


def interleaved(story: told.Story, order: list[int]) -> told.Story:
    """Give a story in which each source keeps its own order and sources come as `order` says."""
    sources: dict[int | None, list[Event]] = {}
    for event in told.history(story):
        sources.setdefault(event.rank, []).append(event)
    places = sorted(sources, key=lambda rank: order[-1 if rank is None else rank % 3])
    return [event for place in places for event in sources[place]]


@given(case=st.sampled_from(STORIES), order=st.permutations(range(4)))
def test_the_order_in_which_ranks_report_does_not_matter(
    case: tuple[told.Story, Expectation], order: list[int]
) -> None:
    """Files of ranks are read in any order; figures and verdict are the same."""
    story, expected = case
    assert found(interleaved(story, order), expected) == found(story, expected)


@given(data=st.data(), case=st.sampled_from(STORIES))
def test_an_event_that_is_read_late_changes_nothing(
    data: st.DataObject, case: tuple[told.Story, Expectation]
) -> None:
    """A history that is appended to out of order is judged like one in order."""
    story, expected = case
    keys = data.draw(st.lists(st.floats(0, 0.5), min_size=len(story), max_size=len(story)))
    late = [e for _, e in sorted(zip(keys, story, strict=True), key=lambda p: p[1].t_s + p[0])]
    history = History()
    for event in late:
        history.append(event)
    measured = {(m.name, m.injection): m.value for m in measure(history, expected)}
    straight = {(m.name, m.injection): m.value for m in found(story, expected).measurements}
    assert measured == straight


@given(rank=st.sampled_from([0, 1]), later_s=st.floats(0, 5))
def test_a_failure_noticed_later_never_makes_detection_shorter(rank: int, later_s: float) -> None:
    """Putting one survivor's failure_seen off cannot make detect_all_s smaller."""
    story = [e for e in told.kill_story() if e.kind not in ("torn_down", "backoff")]
    moved = [
        dataclasses.replace(e, t_s=e.t_s + later_s)
        if e.kind == "failure_seen" and e.rank == rank
        else e
        for e in story
    ]
    before = find(measure(told.history(story), KILL), "detect_all_s", 0).value
    after = find(measure(told.history(moved), KILL), "detect_all_s", 0).value
    assert before is not None
    assert after is None or after >= before


@given(limit_s=st.floats(0.01, 100), more_s=st.floats(0, 100))
def test_a_longer_limit_never_turns_a_pass_into_a_failure(limit_s: float, more_s: float) -> None:
    """A bound is monotonic in its limit."""
    short = found(told.kill_story(), KILL, [bounds.recovers_within(limit_s)])
    long = found(told.kill_story(), KILL, [bounds.recovers_within(limit_s + more_s)])
    assert short.verdict is not Verdict.PASSED or long.verdict is Verdict.PASSED


@settings(max_examples=60)
@given(
    case=st.sampled_from(STORIES),
    jitter=st.lists(st.floats(0, 0.004), min_size=40, max_size=40),
    gone=st.sets(st.integers(0, 120), max_size=3),
)
def test_a_saved_history_is_judged_as_the_one_in_memory(
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[told.Story, Expectation],
    jitter: list[float],
    gone: set[int],
) -> None:
    """Judging again offline gives the same figures, judgements and verdict, gaps and all."""
    story, expected = case
    story = [
        dataclasses.replace(e, t_s=e.t_s + jitter[nth % len(jitter)])
        for nth, e in enumerate(story)
        if nth not in gone
    ]
    path = tmp_path_factory.mktemp("saved") / "history.jsonl"
    told.history(story).save(path)
    saved = Expectation.from_data(expected.to_data())
    assert judge(History.load(path), saved, ALL, TWIN) == found(story, expected)
    Path(path).unlink()
