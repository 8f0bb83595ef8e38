"""A node is gone for good: the job must not burn the others' hours waiting for it.

Each survivor opens its circuit, releases what it holds and leaves with a status that the
scheduler can tell apart.
"""

from chaoslab import Injection, Job, Scenario, at_step, bounds, faults, node, on_failure, run

GONE = Scenario(
    job=Job(
        script="examples/charlm.py",
        nodes=4,
        steps=200,
        args=("--save-every", "20", "--step-floor-s", "0.05"),
        restart=on_failure(limit=3),
    ),
    schedule=[Injection(fault=faults.NodeLoss(), on=node(3), at=at_step(60))],
    bounds=[
        bounds.noticed_within(15),
        bounds.circuit_opens_within(30),
        bounds.leaves_nothing_behind(),
    ],
)


def test_a_node_gone_for_good_opens_the_circuit_within_30_s() -> None:
    """When a node is gone, every survivor gives its hardware back within 30 s."""
    run(GONE)
