"""What every cluster lives with must trigger nothing: no restart, no new group, no lost step.

A rank that stands still for a second (a page-in, a busy host), once in a step and once in a save.
"""

import pytest

from chaoslab import Injection, Scenario, at_step, bounds, during_save, faults, rank, run
from scenarios.jobs import CHARLM

pytestmark = pytest.mark.nightly

HOLDS = [bounds.never_restarts(), bounds.finishes(), bounds.same_result_as_twin()]

PAUSE = Scenario(
    job=CHARLM,
    schedule=[Injection(fault=faults.Stop(duration_s=1), on=rank(2), at=at_step(50))],
    bounds=HOLDS,
)

SLOW_SAVE = Scenario(
    job=CHARLM,
    schedule=[
        Injection(fault=faults.Stop(duration_s=1), on=rank(1), at=during_save(nth=3, at=0.5))
    ],
    bounds=HOLDS,
)


def test_a_pause_of_one_second_restarts_nothing() -> None:
    """SIGSTOP for 1 s: the others wait, and all go on."""
    run(PAUSE)


def test_a_slow_save_restarts_nothing() -> None:
    """A rank that is stopped for 1 s in the middle of a write: the save is completed."""
    run(SLOW_SAVE)
