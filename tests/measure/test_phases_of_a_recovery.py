"""Phases of a recovery, on hand-written histories."""

from __future__ import annotations

import dataclasses
import math

import pytest

from chaoslab.measure import Expectation, Measurement, find, measure
from tests.measure import stories as told


def figure(
    story: told.Story, expected: Expectation, name: str, injection: int | None = 0
) -> Measurement:
    return find(measure(told.history(story), expected), name, injection)


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("detect_s", 0.05),
        ("detect_all_s", 0.10),
        ("teardown_s", 0.10),
        ("rendezvous_s", 1.0),
        ("restore_s", 0.15),
        ("first_step_s", 0.102),
        ("recovery_s", 1.752),
        ("steady_s", 2.152),
    ],
)
def test_the_phases_of_a_kill_are_told_apart(name: str, seconds: float) -> None:
    """Each phase of a recovery from a kill has the length that the events give it."""
    measured = figure(told.kill_story(), told.kill_expected(), name)
    assert measured.value == pytest.approx(seconds, abs=1e-6), measured


def test_the_phases_add_up_to_the_first_step() -> None:
    """Phases follow each other without a gap or an overlap."""
    names = ("detect_all_s", "teardown_s", "rendezvous_s", "restore_s", "first_step_s")
    values = [figure(told.kill_story(), told.kill_expected(), n).value for n in names]
    assert sum(v or 0 for v in values) == pytest.approx(3.302 - 1.85, abs=1e-6)


def test_recovery_needs_a_step_beyond_the_highest_before_the_fault() -> None:
    """A job that does old steps again, and no new one, has not recovered."""
    story = [e for e in told.kill_story() if not (e.kind == "step" and e["step"] > 8)]
    measured = figure(
        told.changed(story, "process_exited", 1, status=1), told.kill_expected(), "recovery_s"
    )
    assert measured.never
    assert "rank 1: exited with status 1 after step 8 of 20" in measured.how


def test_a_rank_that_falls_silent_and_exits_with_0_is_not_known_to_have_recovered() -> None:
    """Without its own last word, a rank may have gone on unheard: neither a figure nor never."""
    story = [
        e
        for e in told.kill_story()
        if not (e.kind == "step" and e["step"] > 8) and e.kind != "rank_exited"
    ]
    measured = figure(story, told.kill_expected(), "recovery_s")
    assert measured.value is None
    assert "its events stop after step 8 of 20" in measured.missing


def test_recovery_needs_every_expected_rank() -> None:
    """Two of three ranks that go on are no recovery."""
    story = told.silent_after(told.kill_story(), 1, 3.3)
    story.append(told.event(4.9, "process_exited", 1, status=1))
    measured = figure(story, told.kill_expected(), "recovery_s")
    assert measured.value == math.inf
    assert "rank 1" in measured.how


def test_a_step_that_was_under_way_at_a_lasting_fault_is_no_recovery() -> None:
    """A step completed just after the cut was begun before it: the job is dead all the same."""
    story = told.circuit_story()
    story += [told.event(1.9 + 0.001 * r, "step", r, step=9) for r in range(3)]
    assert figure(story, told.circuit_expected(), "recovery_s").never


def test_a_fault_without_a_window_that_is_ridden_out_is_recovered_from_by_the_next_step() -> None:
    """A reset that the job does not feel is over with the next step that was begun after it."""
    story = told.twin_story() + told.fault_events(1.85)
    measured = figure(story, told.reset_expected(), "recovery_s")
    assert measured.value == pytest.approx(2.002 - 1.85, abs=1e-6)


def test_recovery_of_a_window_starts_at_the_heal() -> None:
    """Loss that TCP hides: recovered with the first step of the last rank after the heal."""
    measured = figure(told.loss_story(), told.loss_expected(), "recovery_s")
    assert measured.value == pytest.approx(5.102 - 4.85, abs=1e-6)
    assert "from the heal" in measured.how


def test_a_job_that_was_done_before_the_heal_has_recovered() -> None:
    """Nothing is left to recover for ranks that had done their last step."""
    story = [*told.without(told.loss_story(), "healed"), told.healed(6.5)]
    assert figure(story, told.loss_expected(), "recovery_s").value == 0


def test_a_lost_node_is_not_waited_for() -> None:
    """Nothing is expected of ranks that a NodeLoss takes for good."""
    measured = figure(told.node_loss_story(), told.node_loss_expected(), "recovery_s")
    assert measured.value == pytest.approx(3.601 - 1.85, abs=1e-6)


def test_a_hang_until_the_limit_is_never_recovered_and_never_noticed() -> None:
    """A run given up with its ranks alive is evidence: neither noticed nor recovered."""
    for name in ("recovery_s", "detect_all_s"):
        measured = figure(told.hang_story(), told.kill_expected(), name)
        assert measured.never
        assert "given up after 30 s" in measured.how


@pytest.mark.parametrize(
    ("story", "missing"),
    [
        (told.without(told.loss_story(), "effective"), "effective"),
        (told.without(told.loss_story(), "healed"), "healed"),
        (told.without(told.loss_story(), "injected"), "trigger AtStep(step=8) was never reached"),
        (told.silent_after(told.loss_story(), 1, 4.8), "process_exited of rank 1"),
    ],
)
def test_recovery_is_not_known_for_want_of_an_event(story: told.Story, missing: str) -> None:
    """What is missing is said, and never taken for a recovery or for none."""
    measured = figure(story, told.loss_expected(), "recovery_s")
    assert measured.value is None
    assert missing in measured.missing


def test_what_the_harness_says_of_a_missing_effect_is_handed_on() -> None:
    """The injector's own reason is shown, not a general one."""
    story = told.without(told.loss_story(), "effective")
    story.append(told.event(2, "not_effective", injection=0, missing="no packet was dropped"))
    measured = figure(story, told.loss_expected(), "recovery_s")
    assert "no packet was dropped" in measured.missing


@pytest.mark.parametrize("kind", ["malformed", "events_lost"])
def test_a_record_with_gaps_proves_no_absence(kind: str) -> None:
    """A step that is not in a damaged record may have been completed."""
    story = told.silent_after(told.kill_story(), 1, 3.3)
    story += [told.event(4.9, "process_exited", 1, status=1), told.event(3.4, kind, 1, count=3)]
    measured = figure(story, told.kill_expected(), "recovery_s")
    assert measured.value is None
    assert measured.missing.startswith(kind)


def test_a_failed_exit_in_a_record_cut_short_is_not_the_end() -> None:
    """Without run_ended a restart may have followed: not known, rather than never."""
    story = [e for e in told.circuit_story() if e.kind != "run_ended"]
    measured = figure(story, told.circuit_expected(), "recovery_s")
    assert measured.value is None
    assert "run_ended" in measured.missing


def test_the_victim_of_a_kill_is_not_asked_to_notice() -> None:
    """Detection is that of surviving ranks."""
    measured = figure(told.kill_story(), told.kill_expected(), "detect_all_s")
    assert dict(measured.by_rank) == pytest.approx({0: 0.05, 1: 0.10})


def test_a_failed_exit_without_failure_seen_counts_as_noticing() -> None:
    """A job that is not instrumented notices by its exit."""
    story = told.without(told.circuit_story(status=1), "failure_seen")
    measured = figure(story, told.circuit_expected(), "detect_s")
    assert measured.value == pytest.approx(4.6 - 1.85)
    assert "exited with status 1" in measured.how


def test_a_rank_that_did_not_notice_though_the_job_recovered_is_not_known() -> None:
    """One survivor's missing failure_seen leaves detect_all_s open, and says whose it is."""
    story = told.without(told.kill_story(), "failure_seen", 1)
    measured = figure(story, told.kill_expected(), "detect_all_s")
    assert measured.value is None
    assert measured.missing == "failure_seen of rank 1"


def test_a_fault_that_is_ridden_out_has_no_detection() -> None:
    """Where nobody saw a failure there is nothing to measure, and the reason is given."""
    measured = figure(told.loss_story(), told.loss_expected(), "detect_all_s")
    assert measured.value is None
    assert "rode the fault out" in measured.missing


def test_a_missing_phase_event_is_named_with_its_rank() -> None:
    """A phase whose end one rank did not write is not known, and says which rank."""
    story = told.without(told.kill_story(), "restored", 1)
    measured = figure(story, told.kill_expected(), "restore_s")
    assert measured.value is None
    assert measured.missing == "restored of rank 1"


def test_steady_is_not_known_when_too_few_steps_follow() -> None:
    """A job that ends right after its recovery has not shown its old rate."""
    story = [e for e in told.kill_story() if not (e.kind == "step" and e["step"] > 12)]
    expected = told.kill_expected()
    short = Expectation(world_size=3, steps=12, injections=expected.injections)
    measured = figure(story, short, "steady_s")
    assert measured.value is None
    assert "5 steps in a row" in measured.missing


def test_steady_waits_for_the_old_rate() -> None:
    """Steps that are slow after the recovery put steady_s off."""
    slow = told.kill_story()
    slow = [e for e in slow if not (e.kind == "step" and e["step"] >= 9)]
    slow += [
        told.event(3.6 + 0.4 * (k - 9), "step", r, step=k) for r in range(3) for k in range(9, 13)
    ]
    slow += told.steps(13, 20, base_s=3.6)
    late = figure(slow, told.kill_expected(), "steady_s").value
    assert late is not None
    assert late > 2.152 + 1


def test_circuit_is_measured_to_the_last_exit() -> None:
    """circuit_s ends when the last surviving rank has exited with the circuit-open status."""
    measured = figure(told.circuit_story(), told.circuit_expected(), "circuit_s")
    assert measured.value == pytest.approx(4.8 - 1.85)


def test_a_crash_is_no_open_circuit() -> None:
    """An exit with another status is never an open circuit."""
    measured = figure(told.circuit_story(status=1), told.circuit_expected(), "circuit_s")
    assert measured.never
    assert "want status 75" in measured.how


def test_a_rank_that_is_started_again_must_end_as_well() -> None:
    """A killed rank that came back and still runs keeps the circuit from being over."""
    story = told.circuit_story()
    kill = told.kill_expected()
    story = told.changed(story, "process_exited", 2, status=-9)
    assert figure(story, kill, "circuit_s").value == pytest.approx(4.7 - 1.85)
    story.append(told.event(4.85, "process_started", 2, incarnation=1))
    assert figure(story, kill, "circuit_s").missing.startswith("process_exited of rank 2")


@pytest.mark.parametrize(
    ("begun_s", "injected_s", "effective_s", "seconds"),
    [(1.85, 1.851, 1.86, 0.05), (None, 1.851, 1.86, 0.049), (None, 1.87, 1.854, 0.046)],
)
def test_durations_start_at_the_earliest_time_at_which_the_fault_can_have_bitten(
    begun_s: float | None, injected_s: float, effective_s: float, seconds: float
) -> None:
    """The request, its answer or the effect seen: the first of them, so nothing is too short."""
    story = [e for e in told.kill_story() if e.kind not in ("injected", "effective")]
    story.append(told.event(injected_s, "injected", injection=0, begun_t_s=begun_s))
    story.append(told.event(effective_s, "effective", injection=0))
    assert figure(story, told.kill_expected(), "detect_s").value == pytest.approx(seconds)


def test_failures_of_a_later_fault_are_not_laid_on_an_earlier_one() -> None:
    """A first fault that nobody noticed stays unnoticed when a second one is noticed."""
    story = told.kill_story()
    reset = told.reset_expected().injections[0]
    first = told.fault_events(1.25, 0)
    second = told.changed(story, "injected", injection=1)
    second = told.changed(second, "effective", injection=1)
    kill = told.kill_expected().injections[0]
    expected = Expectation(
        world_size=3, steps=20, injections=(reset, dataclasses.replace(kill, index=1))
    )
    assert figure(first + second, expected, "detect_s", 0).value is None
    assert figure(first + second, expected, "detect_s", 1).value == pytest.approx(0.05)


def test_a_rank_killed_before_it_noticed_is_excused() -> None:
    """A second kill during the recovery takes a rank that had not noticed the first."""
    story = told.without(told.kill_story(), "failure_seen", 1)
    story = told.without(story, "torn_down", 1)
    story += told.fault_events(1.91, 1, fault="Kill", ranks=[1])
    story.append(told.event(1.915, "process_exited", 1, status=-9))
    kill = told.kill_expected().injections[0]
    second = dataclasses.replace(kill, index=1, ranks=(1,))
    expected = Expectation(world_size=3, steps=20, injections=(kill, second))
    measured = figure(story, expected, "detect_all_s", 0)
    assert dict(measured.by_rank) == pytest.approx({0: 0.05})
    assert measured.value == pytest.approx(0.05)
