"""A node loses a fifth of its packets, both ways, for half a minute.

TCP hides loss as delay: the job crawls, and may or may not see a timeout. What must hold is
that it is back within 12 s of the link being whole again, that nothing acknowledged is lost,
and that it ends with the very parameters of a run that saw no fault.
"""

from chaoslab import Injection, Scenario, at_step, bounds, faults, node, run
from scenarios.jobs import CHARLM

LOSS = Scenario(
    job=CHARLM,
    schedule=[
        Injection(fault=faults.PacketLoss(ratio=0.20, duration_s=30), on=node(2), at=at_step(50))
    ],
    bounds=[
        bounds.recovers_within(12),
        bounds.keeps_acknowledged(),
        bounds.same_result_as_twin(),
    ],
)


def test_a_lossy_node_recovers_within_12_s() -> None:
    """After 30 s of 20 % loss on one node all ranks are back within 12 s, with the same result."""
    run(LOSS)
