"""Every link of sixteen nodes is cut at once: when they come back, they must not come as one.

Ranks that fail at the same moment and wait alike hit the store together, again and again.
"""

import pytest

from chaoslab import Injection, Job, Scenario, at_step, bounds, everywhere, faults, on_failure, run

pytestmark = pytest.mark.nightly

NODES = 16
ALONE = tuple((node,) for node in range(NODES))

STORM = Scenario(
    job=Job(
        script="examples/charlm.py",
        nodes=NODES,
        steps=60,
        args=("--save-every", "10", "--step-floor-s", "0.05", "--patience-s", "40"),
        restart=on_failure(limit=3),
    ),
    schedule=[
        Injection(
            fault=faults.Partition(groups=ALONE, cut_store=True, duration_s=10),
            on=everywhere(),
            at=at_step(31),
        )
    ],
    bounds=[bounds.spreads_retries(10), bounds.recovers_within(12), bounds.finishes()],
)


def test_sixteen_ranks_cut_at_once_come_back_one_by_one() -> None:
    """At most ten attempts to connect in any 100 ms, and all are back within 12 s."""
    run(STORM)
