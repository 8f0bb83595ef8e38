"""Doubts: what keeps a run whose bounds all hold from being PASSED."""

import dataclasses

import pytest

from chaoslab import bounds
from chaoslab.bounds import Verdict, judge
from tests.measure import stories as told


def judged(story):
    return judge(told.history(story), told.loss_expected(), [bounds.recovers_within(5)])


def test_a_whole_window_leaves_no_doubt() -> None:
    """The healthy twin: healed as scheduled, the run is PASSED."""
    assert judged(told.loss_story()).verdict is Verdict.PASSED


def test_a_window_cut_short_by_the_jobs_end_is_a_doubt() -> None:
    """Healed only because the job was over: the bound holds, and the run is UNKNOWN."""
    story = [
        dataclasses.replace(e, fields={**e.fields, "cut_short": True}) if e.kind == "healed" else e
        for e in told.loss_story()
    ]
    findings = judged(story)
    assert findings.verdict is Verdict.UNKNOWN
    assert any("ended inside the window" in doubt for doubt in findings.doubts)


def test_a_job_that_hangs_after_its_recovery_is_a_doubt() -> None:
    """It was back in time, and then the run had to be given up: UNKNOWN, not PASSED."""
    whole = told.kill_story()
    cut = [e for e in whole if e.kind in ("step", "save_begun", "save_committed") or e.t_s < 4.8]
    hung = [e for e in cut if e.t_s < 4.0]
    findings = {}
    for name, story in (
        ("whole", whole),
        ("hung", [*hung, told.event(30.0, "gave_up", limit_s=30)]),
    ):
        findings[name] = judge(
            told.history(story), told.kill_expected(), [bounds.recovers_within(5)]
        )
    assert findings["whole"].verdict is Verdict.PASSED
    assert findings["hung"].judgements[0].verdict is Verdict.PASSED
    assert findings["hung"].verdict is Verdict.UNKNOWN
    assert "still there after 30 s" in findings["hung"].doubts[0]


def test_a_fault_that_finds_nothing_left_to_do_is_a_doubt() -> None:
    """Every rank had done its last step: nothing was recovered from. UNKNOWN."""
    story = [*told.twin_story(), *told.fault_events(3.05)]
    findings = judge(told.history(story), told.circuit_expected(), [bounds.recovers_within(1)])
    assert findings.verdict is Verdict.UNKNOWN
    assert any("had done its last step" in doubt for doubt in findings.doubts)


@pytest.mark.parametrize("kind", ["agent_failed", "events_cut", "hold_expired", "lease_expired"])
def test_an_instrument_that_failed_by_itself_is_a_doubt(kind) -> None:
    """An agent or a hold that did not do its part: UNKNOWN, and the doubt names it."""
    findings = judged([*told.loss_story(), told.event(3.0, kind, 2, node=2)])
    assert findings.verdict is Verdict.UNKNOWN
    assert any(doubt.startswith(kind) for doubt in findings.doubts)
