"""The peak of attempts to connect, on hand-written histories and against a naive count."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import pytest
from hypothesis import given, strategies as st

from chaoslab.measure import Expectation, Measurement, attempts_seen
from chaoslab.measure.storm import busiest
from tests.measure import stories as told
from tests.measure.test_phases_of_a_recovery import figure

STORM = told.storm_expected()
EFFECT_S = 1.85


def peak(story: told.Story, expected: Expectation = STORM, injection: int = 0) -> Measurement:
    return figure(story, expected, "retry_peak", injection)


def attempts(times_s: Iterable[float], rank: int = 0, what: str = "store") -> told.Story:
    return [told.event(t_s, "attempt", rank, what=what) for t_s in times_s]


def bins(story: told.Story, expected: Expectation = STORM, injection: int = 0) -> dict[float, int]:
    found = attempts_seen(told.history(story), expected, injection)
    return {one.start_s: one.count for one in found}


def test_ranks_that_wait_alike_make_a_storm() -> None:
    """Sixteen ranks without jitter are sixteen attempts in one window, told with when and who."""
    measured = peak(told.storm_story(told.ALIKE_S))
    assert measured.value == 16
    assert measured.how == (
        "in the 100 ms from 0.350 s after the effect: 16 at the store by ranks 0-15"
    )
    assert dict(measured.by_rank) == dict.fromkeys(range(16), 1.0)


def test_ranks_that_wait_at_random_do_not() -> None:
    """The jittered twin has two attempts in its busiest window."""
    assert peak(told.storm_story()).value == 2


def test_one_rank_that_hammers_is_a_storm_of_its_own() -> None:
    """The peak counts attempts, not ranks; those who made them are named."""
    story = told.storm_story() + attempts((2.9 + 0.01 * n for n in range(9)), 5, "peers")
    measured = peak(story)
    assert measured.value == 11
    assert measured.how.endswith("2 at the store, 9 at peers by ranks 5, 10-11")
    assert dict(measured.by_rank)[5] == 9


@pytest.mark.parametrize(("apart_s", "count"), [(0.1, 1), (0.099999, 2), (0.100001, 1), (0.0, 2)])
def test_an_attempt_on_the_edge_of_the_window_is_in_the_next(apart_s: float, count: int) -> None:
    """A window of 100 ms holds its beginning and not its end, to the microsecond."""
    for begun_s in (2.0, 2.003, 2.0123459):
        story = told.without(told.kill_story(), "attempt") + attempts([2.6], 2)
        story += attempts([begun_s], 0) + attempts([round(begun_s, 6) + apart_s], 1)
        assert peak(story, told.kill_expected()).value == count


def test_a_steady_pace_of_one_a_window_is_a_peak_of_one() -> None:
    """An attempt every 100 ms is never two in one window, whoever makes it."""
    story = told.without(told.kill_story(), "attempt")
    story += attempts(2.01 + n / 10 for n in range(8))
    story += attempts([2.81], 1) + attempts([2.91], 2)
    assert peak(story, told.kill_expected()).value == 1


def test_attempts_outside_the_episode_do_not_count() -> None:
    """What was tried before the effect, or after the last rank was back, is another matter."""
    outside = [0.5, 1.0, 1.849999, 4.7, 4.71, 5.5]
    story = told.storm_story() + attempts(outside * 5)
    assert peak(story).value == 2
    assert sum(bins(story).values()) == 16
    at_the_effect = told.storm_story() + attempts([EFFECT_S] * 5)
    assert peak(at_the_effect).value == 5
    assert bins(at_the_effect)[0.0] == 5


def test_an_attempt_of_a_rank_that_is_lost_for_good_does_not_count() -> None:
    """Nothing is expected of a lost node's ranks, so nothing of theirs is counted."""
    story, expected = told.node_loss_story(), told.node_loss_expected()
    before = peak(story, expected).value
    assert peak(story + attempts([2.2] * 9, 2), expected).value == before == 2


def test_each_fault_has_its_own_peak() -> None:
    """Of two faults, each is told by the attempts from its effect to the end of its recovery."""
    first = told.storm_story(told.ALIKE_S)
    second = [
        dataclasses.replace(e, t_s=round(e.t_s + 10, 6)) for e in told.storm_story() if e.t_s > 1.84
    ]
    second = told.changed(second, "injected", injection=1, begun_t_s=11.85)
    second = told.changed(second, "effective", injection=1)
    second = [
        told.event(e.t_s, "step", e.rank, step=e["step"] + 20) if e.kind == "step" else e
        for e in second
    ]
    kept = ("result", "rank_exited", "process_exited", "run_ended")
    story = [e for e in first if e.kind not in kept] + second
    reset = STORM.injections[0]
    expected = Expectation(
        world_size=16, steps=40, injections=(reset, dataclasses.replace(reset, index=1))
    )
    assert peak(story, expected, 0).value == 16
    assert peak(story, expected, 1).value == 2
    assert bins(story, expected, 0) == {0.3: 16}
    assert sum(bins(story, expected, 1).values()) == 16


def test_a_fault_that_nobody_noticed_has_no_retries() -> None:
    """A loss that the job rides out makes nobody connect again: the peak is known, and 0."""
    measured = peak(told.loss_story(), told.loss_expected())
    assert measured.value == 0
    assert measured.how == "no rank had to connect again"


def test_the_peak_of_a_job_that_gave_up_is_known() -> None:
    """A circuit that opens ends the episode with the run; two attempts a rank, well apart."""
    assert peak(told.circuit_story(), told.circuit_expected()).value == 1


KILLED = told.kill_story()


@pytest.mark.parametrize(
    ("story", "missing"),
    [
        (told.without(KILLED, "attempt"), "attempt of ranks 0-1: a failure was noticed, and no"),
        (told.without(KILLED, "attempt", 1), "attempt of rank 1: a failure was noticed, and no"),
        (told.without(KILLED, "attempt", 2), "attempt of rank 2: a group was formed again, with"),
        (told.without(KILLED, "injected"), "trigger AtStep(step=8) was never reached"),
        (told.without(KILLED, "effective"), "effective: nothing shows that the fault bit"),
        (
            [*KILLED, told.event(2.1, "events_lost", 1, count=3)],
            "events_lost: the record of rank 1",
        ),
        (
            [*KILLED, told.event(2.1, "malformed", 2, problem="cut")],
            "malformed: the record of rank",
        ),
    ],
)
def test_an_incomplete_record_has_no_peak(story: told.Story, missing: str) -> None:
    """A try that was not written is no try that was not made; what is missing is said."""
    measured = peak(story, told.kill_expected())
    assert measured.value is None
    assert missing in measured.missing
    assert measured.by_rank == ()


def test_an_attempt_before_the_failure_was_noticed_is_no_answer_to_it() -> None:
    """A rank that tried, and then noticed, must have tried once more."""
    story = told.without(KILLED, "attempt", 0) + attempts([1.89])
    assert "attempt of rank 0" in peak(story, told.kill_expected()).missing


def test_a_record_that_is_cut_short_before_the_recovery_has_no_peak() -> None:
    """Without a recovery the run's end must be on record, and that of every rank."""
    circuit = told.circuit_expected()
    cut = told.without(told.circuit_story(), "run_ended")
    assert peak(cut, circuit).missing == "run_ended: the record is cut short"
    silent = told.silent_after(told.circuit_story(), 1, 4.0)
    assert "process_exited of rank 1" in peak(silent, circuit).missing


def test_a_rank_that_is_killed_before_it_can_try_is_excused() -> None:
    """A second kill takes a rank that had noticed the first; its next process tries."""
    story = told.without(KILLED, "attempt", 1)
    story += told.fault_events(1.96, 1, fault="Kill", ranks=[1])
    story += [
        told.event(1.965, "process_exited", 1, status=-9, incarnation=0),
        told.event(2.3, "process_started", 1, incarnation=1),
    ]
    kill = told.kill_expected().injections[0]
    second = dataclasses.replace(kill, index=1, ranks=(1,))
    expected = Expectation(world_size=3, steps=20, injections=(kill, second))
    assert "attempt of rank 1: a group was formed again" in peak(story, expected).missing
    assert peak(story + attempts([2.51], 1), expected).value == 2


def test_a_fault_that_hits_a_recovery_does_not_ask_for_its_attempts_again() -> None:
    """A group formed after a second effect may stand on an attempt that was made before it."""
    reset = told.reset_expected().injections[0]
    expected = Expectation(
        world_size=3,
        steps=20,
        injections=(*told.kill_expected().injections, dataclasses.replace(reset, index=1)),
    )
    story = KILLED + told.fault_events(2.8, 1, fault="ConnectionReset")
    assert peak(story, expected, 0).value == 2
    assert peak(story, expected, 1).value == 0


def test_each_group_formed_again_stands_on_an_attempt_of_its_own() -> None:
    """One try does not answer for two groups."""
    story = [*KILLED, told.event(2.9, "group_ready", 0, generation=2)]
    assert "attempt of rank 0: a group was" in peak(story, told.kill_expected()).missing
    assert peak(story + attempts([2.95], 0), told.kill_expected()).value == 2


def test_the_first_group_of_a_run_needs_no_attempt() -> None:
    """A fault that comes before the ranks have gathered does not make their gathering a retry."""
    story = told.twin_story() + told.fault_events(0.5, fault="ConnectionReset")
    assert peak(story, told.reset_expected()).value == 0


def test_a_gap_after_a_later_fault_is_not_held_against_an_earlier_one() -> None:
    """The first fault was ridden out; that the second one's tries are not on record is its own."""
    story = told.without(told.changed(KILLED, "injected", injection=1), "attempt")
    story = told.fault_events(1.25, 0) + told.changed(story, "effective", injection=1)
    reset, kill = told.reset_expected().injections[0], told.kill_expected().injections[0]
    expected = Expectation(
        world_size=3, steps=20, injections=(reset, dataclasses.replace(kill, index=1))
    )
    assert peak(story, expected, 0).value == 0
    assert peak(story, expected, 1).value is None


def test_an_odd_attempt_is_counted() -> None:
    """An attempt that does not say at what, or says nonsense, was made all the same."""
    story = [*KILLED, *(told.event(2.25, "attempt", 0, what=["?"]) for _ in range(3))]
    measured = peak(story, told.kill_expected())
    assert measured.value == 5
    assert "3 elsewhere" in measured.how


def test_bins_hold_what_is_on_record_even_where_there_is_no_peak() -> None:
    """The series shows the evidence of an incomplete record, counted from the effect."""
    assert bins(KILLED, told.kill_expected()) == {0.3: 1, 0.4: 1, 0.7: 1}
    assert bins(told.without(KILLED, "attempt", 1), told.kill_expected()) == {0.3: 1, 0.7: 1}
    assert bins(told.without(KILLED, "effective"), told.kill_expected()) == {}


# --- properties -------------------------------------------------------------------------------


@given(times=st.lists(st.integers(0, 60)).map(sorted), width=st.integers(1, 20))
def test_the_sliding_window_finds_what_a_naive_count_finds(times: list[int], width: int) -> None:
    """Windows tried at every place hold no more, and the one that was found holds as many."""
    windows = [[t for t in times if begun <= t < begun + width] for begun in range(-20, 61)]
    found = times[busiest(times, width)]
    assert len(found) == max(map(len, windows))
    assert not found or found[-1] - found[0] < width
    earliest = next((w[0] for w in windows if w and len(w) == len(found)), None)
    assert found[:1] == ([] if earliest is None else [earliest])


TRIES = st.lists(
    st.tuples(st.integers(0, 2_000_000), st.sampled_from(range(3))), min_size=1, max_size=40
)


def played(tries: list[tuple[int, int]]) -> told.Story:
    """Tell of a job that gave up, with these attempts (microseconds from the effect, rank)."""
    story = told.without(told.circuit_story(), "attempt")
    story += attempts([4.8], 0) + attempts([4.95], 1) + attempts([5.1], 2)  # so that all tried
    story = told.without(story, "run_ended")
    tried = [told.event(EFFECT_S + us / 1e6, "attempt", r, what="store") for us, r in tries]
    return [*story, *tried, told.event(9.0, "run_ended", reason="every rank exited")]


@given(tries=TRIES)
def test_the_peak_of_a_history_is_that_of_a_naive_count(tries: list[tuple[int, int]]) -> None:
    """Whatever the times, the figure is the fullest window of 100 ms, counted one by one."""
    measured = peak(played(tries), told.circuit_expected()).value
    times = [us for us, _ in tries]
    naive = max(sum(begun <= us < begun + 100_000 for us in times) for begun in times)
    assert measured == naive


@given(tries=TRIES, more=st.tuples(st.integers(0, 2_000_000), st.sampled_from(range(3))))
def test_one_more_attempt_never_lowers_the_peak(
    tries: list[tuple[int, int]], more: tuple[int, int]
) -> None:
    """The peak grows by one attempt or stays, and is no less than the fullest bin."""
    story, expected = played(tries), told.circuit_expected()
    before = peak(story, expected).value or math.nan
    after = peak(played([*tries, more]), expected).value
    assert after in (before, before + 1)
    assert max(bins(story, expected).values()) <= before
