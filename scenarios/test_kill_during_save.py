"""Rank 0 is killed in the middle of `torch.save`: half of a write is on the disk.

The torn checkpoint must never be used, and the last acknowledged one never be lost.
"""

from chaoslab import Injection, Scenario, bounds, during_save, faults, rank, run
from scenarios.jobs import CHARLM

KILL = Scenario(
    job=CHARLM,
    schedule=[Injection(fault=faults.Kill(), on=rank(0), at=during_save(nth=3, at=0.5))],
    bounds=[
        bounds.noticed_within(15),
        bounds.recovers_within(12),
        bounds.keeps_acknowledged(),
        bounds.same_result_as_twin(),
    ],
)


def test_a_rank_killed_inside_torch_save_costs_no_acknowledged_step() -> None:
    """SIGKILL half way through the third save: back within 12 s, nothing acknowledged lost."""
    run(KILL)
