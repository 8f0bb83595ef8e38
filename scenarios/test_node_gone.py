"""A node is gone for good: the job must not burn the others' hours waiting for it.

Each survivor opens its circuit, releases what it holds and leaves with a status that the
scheduler can tell apart. The node goes at a step after which every rank saves.
"""

from chaoslab import Injection, Scenario, at_step, bounds, faults, node, run
from scenarios.jobs import CHARLM

GONE = Scenario(
    job=CHARLM,
    schedule=[Injection(fault=faults.NodeLoss(), on=node(3), at=at_step(60))],
    bounds=[
        bounds.noticed_within(15),
        bounds.circuit_opens_within(30),
    ],
)


def test_a_node_gone_for_good_opens_the_circuit_within_30_s() -> None:
    """When a node is gone, every survivor gives its hardware back within 30 s."""
    run(GONE)
