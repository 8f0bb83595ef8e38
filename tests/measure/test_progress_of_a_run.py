"""What was lost, done again, wasted and left behind, on hand-written histories."""

from __future__ import annotations

import dataclasses

import pytest

from chaoslab.measure import INJECTION_NAMES, RUN_NAMES, find, measure
from tests.measure import stories as told
from tests.measure.test_phases_of_a_recovery import figure


def test_lost_steps_are_those_completed_beyond_the_restored_one() -> None:
    """Step 8 was done and step 5 restored: three steps are lost."""
    measured = figure(told.kill_story(), told.kill_expected(), "lost_steps")
    assert measured.value == 3
    assert "restored step 5; step 8 had been completed" in measured.how


def test_a_fault_that_stays_is_followed_to_the_last_trouble() -> None:
    """Two steps got through before it was felt: what was lost and recovered comes after them."""
    story, expected = told.lasting_loss_story(), told.lasting_loss_expected()
    assert figure(story, expected, "lost_steps").value == 8
    assert figure(story, expected, "recovery_s").value == pytest.approx(4.602 - 1.85)
    assert figure(story, expected, "retries").value == 1
    assert figure(story, expected, "detect_all_s").value == pytest.approx(3.02 - 1.85)
    assert figure(story, expected, "circuit_s").value is None


def test_a_fault_that_stays_and_ends_the_job_was_not_recovered_from() -> None:
    """The steps that got through are no recovery; the job gave up in order."""
    story, expected = told.lasting_loss_ends_story(), told.lasting_loss_expected()
    assert figure(story, expected, "recovery_s").never
    assert figure(story, expected, "circuit_s").value == pytest.approx(4.8 - 1.85)


def test_a_fault_that_stays_and_is_ridden_out_is_over_at_the_first_step() -> None:
    """The healthy twin: nobody noticed anything, every rank went on."""
    story = told.twin_story() + told.fault_events(1.85)
    assert figure(story, told.lasting_loss_expected(), "recovery_s").value < 0.3
    assert figure(story, told.lasting_loss_expected(), "lost_steps").value == 0


def test_a_rank_that_goes_on_without_a_try_on_record_has_no_number_of_retries() -> None:
    """It noticed failures and formed groups: that it never tried cannot be true."""
    story = [e for e in told.kill_story() if e.kind not in ("backoff", "torn_down")]
    for nth in range(5):
        story.append(told.event(2.0 + 0.1 * nth, "failure_seen", 0, error="RuntimeError"))
        story.append(told.event(2.05 + 0.1 * nth, "group_ready", 0, generation=2 + nth))
    measured = figure(story, told.kill_expected(), "retries")
    assert measured.value is None
    assert "backoff of rank 0" in measured.missing


def test_a_rank_that_never_told_of_a_group_has_no_number_of_regroups() -> None:
    """Its healthy twin told of one."""
    expected = told.loss_expected()
    assert find(measure(told.history(told.loss_story()), expected), "regroups").value == 0
    silent = told.without(told.loss_story(), "group_ready", 1)
    measured = find(measure(told.history(silent), expected), "regroups")
    assert (measured.value, measured.missing) == (None, "group_ready of rank 1")


def test_nothing_is_lost_where_nothing_was_restored() -> None:
    """A fault that the job rides out loses no step."""
    assert figure(told.loss_story(), told.loss_expected(), "lost_steps").value == 0


def test_a_silent_start_from_nothing_is_seen() -> None:
    """A job that starts at step 1 again, without a restored event, has lost all it had."""
    story = told.without(told.kill_story(), "restored")
    story = [e for e in story if not (e.kind == "step" and e.t_s > 2)]
    story += told.steps(1, 20, base_s=3.2)
    measured = figure(story, told.kill_expected(), "lost_steps")
    assert measured.value == 8
    assert "did step 1 again without a restored event" in measured.how


def test_a_restored_event_that_the_next_step_belies_is_not_believed() -> None:
    """It says step 5, and the next step is 2: seven steps are lost."""
    story = told.kill_story() + told.steps(2, 5, base_s=3.0001)
    assert figure(story, told.kill_expected(), "lost_steps").value == 7


def test_a_restored_step_that_is_done_again_was_not_restored() -> None:
    """A rank that says step 5 and does step 5 has restored step 4."""
    story = [*told.kill_story(), told.event(3.25, "step", 2, step=5)]
    measured = figure(story, told.kill_expected(), "lost_steps")
    assert measured.value == 4
    assert "rank 2 restored step 5 and went on with step 5" in measured.how


def test_of_ranks_that_disagree_the_one_that_lost_most_counts() -> None:
    """One rank of three that restores an older step makes the loss."""
    for rank in range(3):
        story = told.changed(told.kill_story(), "restored", rank, step=3)
        story.append(told.event(3.21, "step", rank, step=4))
        assert figure(story, told.kill_expected(), "lost_steps").value == 5
        assert figure(story, told.kill_expected(), "acknowledged_lost_steps").value == 2


def test_lost_steps_are_not_judged_where_nothing_came_back() -> None:
    """A job that never went on has not lost a number of steps: it is not judged."""
    measured = figure(told.circuit_story(), told.circuit_expected(), "lost_steps")
    assert measured.value is None
    assert measured.missing.startswith("not judged")


def test_an_acknowledged_save_that_is_not_restored_is_counted() -> None:
    """Step 5 was acknowledged and step 2 restored: three acknowledged steps are lost."""
    story = told.changed(told.kill_story(), "restored", step=2)
    measured = figure(story, told.kill_expected(), "acknowledged_lost_steps")
    assert measured.value == 3
    healthy = figure(told.kill_story(), told.kill_expected(), "acknowledged_lost_steps")
    assert healthy.value == 0


def test_a_save_committed_after_the_restore_is_not_held_against_it() -> None:
    """Only what was acknowledged before the restore can be lost by it."""
    measured = figure(told.kill_story(), told.kill_expected(), "acknowledged_lost_steps")
    assert "step 5 was acknowledged" in measured.how


def test_a_save_that_one_rank_of_several_acknowledged_counts_only_where_one_is_enough() -> None:
    """acknowledged_by="all": a save is acknowledged when every rank has committed it."""
    story = told.kill_story()
    story += [told.event(1.55, "save_committed", r, step=5) for r in (1, 2)]
    story.append(told.event(1.84, "save_committed", 1, step=8))
    name = "acknowledged_lost_steps"
    every = dataclasses.replace(told.kill_expected(), acknowledged_by="all")
    assert figure(story, told.kill_expected(), name).value == 3
    assert figure(story, every, name).value == 0


def test_a_job_that_never_acknowledges_a_save_is_not_known() -> None:
    """Without any save_committed there is nothing to measure by."""
    story = told.without(told.kill_story(), "save_committed")
    measured = figure(story, told.kill_expected(), "acknowledged_lost_steps")
    assert measured.value is None
    assert measured.missing.startswith("save_committed")


def test_backoffs_count_as_retries() -> None:
    """The rank that backed off most often counts."""
    story = told.kill_story()
    story += [told.event(2.2 + 0.1 * n, "backoff", 1, attempt=n) for n in range(5)]
    assert figure(told.kill_story(), told.kill_expected(), "retries").value == 1
    measured = figure(story, told.kill_expected(), "retries")
    assert measured.value == 6
    assert measured.how == "by rank 1"


def test_a_trainer_that_hammers_without_backoff_is_counted() -> None:
    """Failure after failure without a backoff is a storm, though no backoff says so."""
    story = told.without(told.kill_story(), "backoff")
    for n in range(40):
        story.append(told.event(2.1 + 0.01 * n, "failure_seen", 0, error="refused"))
        story.append(told.event(2.105 + 0.01 * n, "torn_down", 0))
    assert figure(story, told.kill_expected(), "retries").value == 41


def test_two_reports_of_one_failure_are_one_attempt() -> None:
    """A failure that is written twice before the teardown is no retry."""
    story = told.without(told.kill_story(), "backoff")
    story += [told.event(1.96, "failure_seen", 1, error="again")]
    assert figure(story, told.kill_expected(), "retries").value == 1


def test_a_crash_loop_counts_as_retries() -> None:
    """Processes that start and fail again and again are attempts."""
    story = told.kill_story()
    for n in range(10):
        story.append(told.event(1.9 + 0.02 * n, "process_started", 2, incarnation=1 + n))
        story.append(told.event(1.91 + 0.02 * n, "process_exited", 2, status=1))
    assert figure(story, told.kill_expected(), "retries").value == 11


def test_stall_is_the_longest_time_without_a_step() -> None:
    """From step 8 of rank 2 to the first step after its restore."""
    measured = figure(told.kill_story(), told.kill_expected(), "stall_s", None)
    assert measured.value == pytest.approx(1.5)
    healthy = figure(told.twin_story(), told.kill_expected(), "stall_s", None)
    assert healthy.value == pytest.approx(0.1)


def test_a_hang_at_the_end_is_a_stall() -> None:
    """The time from the last step to where the run was given up counts."""
    measured = figure(told.hang_story(), told.kill_expected(), "stall_s", None)
    assert measured.value == pytest.approx(30.0 - 1.8)


def test_goodput_of_a_healthy_run_is_one_and_of_a_broken_one_less() -> None:
    """Work done again and waiting are wasted."""
    healthy = figure(told.twin_story(), told.reset_expected(), "goodput_ratio", None)
    broken = figure(told.kill_story(), told.kill_expected(), "goodput_ratio", None)
    wasted = figure(told.kill_story(), told.kill_expected(), "wasted_rank_s", None)
    assert healthy.value == pytest.approx(1.0, abs=0.01)
    assert broken.value == pytest.approx(1.9 / 3.602, abs=0.001)
    assert wasted.value == pytest.approx(3 * (3.602 - 1.9), abs=0.01)


def test_restarts_and_regroups_are_counted_apart() -> None:
    """A process that starts again is a restart; a group formed again is a regroup."""
    story, expected = told.kill_story(), told.kill_expected()
    assert figure(story, expected, "restarts", None).value == 1
    assert figure(story, expected, "regroups", None).value == 1
    assert figure(told.loss_story(), told.loss_expected(), "restarts", None).value == 0
    assert figure(told.loss_story(), told.loss_expected(), "regroups", None).value == 0


def test_leaks_are_counted_and_named() -> None:
    """What was found after the end is listed."""
    story = [*told.kill_story(), told.event(9, "leak", what="process 4711 of rank 2")]
    measured = figure(story, told.kill_expected(), "leaks", None)
    assert measured.value == 1
    assert "process 4711" in measured.how
    assert figure(told.kill_story(), told.kill_expected(), "leaks", None).value == 0


def test_a_record_cut_short_knows_nothing_of_the_whole_run() -> None:
    """Without run_ended nothing that needs the end is told."""
    story = [e for e in told.kill_story() if e.t_s < 4.0]
    figures = measure(told.history(story), told.kill_expected())
    for name, _ in RUN_NAMES:
        measured = find(figures, name)
        assert measured.value is None, measured
        assert measured.missing


def test_an_event_without_its_field_costs_figures_and_not_the_report() -> None:
    """A step event without its step is told as what is missing; nothing is raised."""
    story = [*told.kill_story(), told.event(3.35, "step", 1)]
    figures = measure(told.history(story), told.kill_expected())
    assert len(figures) == len(INJECTION_NAMES) + len(RUN_NAMES)
    assert "KeyError: 'step'" in find(figures, "recovery_s", 0).missing
