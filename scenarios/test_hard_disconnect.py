"""A node's link goes down for 20 s, as when a cable is pulled and put back.

The others must notice, wait with patience, and go on with the node when it is back.
"""

from chaoslab import Injection, Job, Scenario, at_step, bounds, faults, node, on_failure, run

DISCONNECT = Scenario(
    job=Job(
        script="examples/charlm.py",
        nodes=4,
        steps=200,
        args=("--save-every", "20", "--step-floor-s", "0.05"),
        restart=on_failure(limit=3),
    ),
    schedule=[Injection(fault=faults.LinkDown(duration_s=20), on=node(2), at=at_step(60))],
    bounds=[
        bounds.noticed_within(15),
        bounds.recovers_within(12),
        bounds.keeps_acknowledged(),
        bounds.same_result_as_twin(),
    ],
)


def test_a_disconnected_node_is_noticed_and_taken_back() -> None:
    """A cut of 20 s is noticed within 15 s, and healed within 12 s of the link's return."""
    run(DISCONNECT)
