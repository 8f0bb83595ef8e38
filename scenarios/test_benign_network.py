"""A link that is a little bad must trigger nothing: no restart, no new group, no lost step."""

import pytest

from chaoslab import Injection, Scenario, at_step, bounds, faults, node, run
from scenarios.jobs import CHARLM

pytestmark = pytest.mark.nightly

HOLDS = [bounds.never_restarts(), bounds.finishes(), bounds.same_result_as_twin()]

SOME_LOSS = Scenario(
    job=CHARLM,
    schedule=[
        Injection(fault=faults.PacketLoss(ratio=0.01, duration_s=10), on=node(2), at=at_step(50))
    ],
    bounds=HOLDS,
)

SOME_DELAY = Scenario(
    job=CHARLM,
    schedule=[
        Injection(fault=faults.Delay(delay_s=0.05, duration_s=10), on=node(2), at=at_step(50))
    ],
    bounds=HOLDS,
)


def test_one_percent_of_loss_restarts_nothing() -> None:
    """TCP repairs it: the job is slower for a while, and that is all."""
    run(SOME_LOSS)


def test_fifty_milliseconds_of_delay_restart_nothing() -> None:
    """50 ms each way: every step takes longer, and that is all."""
    run(SOME_DELAY)
