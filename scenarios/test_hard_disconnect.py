"""A node's link goes down for 20 s, as when a cable is pulled and put back.

The others must notice, wait with patience, and go on with the node when it is back; nobody may
hammer the store in the meantime.
"""

from chaoslab import Injection, Scenario, at_step, bounds, faults, node, run
from scenarios.jobs import CHARLM

DISCONNECT = Scenario(
    job=CHARLM,
    schedule=[Injection(fault=faults.LinkDown(duration_s=20), on=node(2), at=at_step(50))],
    bounds=[
        bounds.noticed_within(15),
        bounds.recovers_within(12),
        bounds.retries_at_most(60),
        bounds.keeps_acknowledged(),
        bounds.same_result_as_twin(),
    ],
)


def test_a_disconnected_node_is_noticed_and_taken_back() -> None:
    """A cut of 20 s is noticed within 15 s, and healed within 12 s of the link's return."""
    run(DISCONNECT)
