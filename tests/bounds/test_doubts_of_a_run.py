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


@pytest.mark.parametrize("kind", ["agent_failed", "hold_expired", "lease_expired"])
def test_an_instrument_that_failed_by_itself_is_a_doubt(kind) -> None:
    """An agent or a hold that did not do its part: UNKNOWN, and the doubt names it."""
    findings = judged([*told.loss_story(), told.event(3.0, kind, 2, node=2)])
    assert findings.verdict is Verdict.UNKNOWN
    assert any(doubt.startswith(kind) for doubt in findings.doubts)
