"""A second fault hits while the job recovers from the first: it recovers all the same.

Rank 2 is killed; then, in each phase of the recovery, something else goes wrong.
"""

import pytest

from chaoslab import (
    Injection,
    Scenario,
    at_step,
    bounds,
    faults,
    node,
    on_event,
    rank,
    run,
    store,
    while_recovering,
)
from scenarios.jobs import CHARLM

pytestmark = pytest.mark.nightly

FIRST = Injection(fault=faults.Kill(), on=rank(2), at=at_step(50))
HOLDS = [
    bounds.recovers_within(12, injection=1),
    bounds.keeps_acknowledged(),
    bounds.same_result_as_twin(),
]

KILL_IN_RESTORE = Scenario(
    job=CHARLM,
    # Four ranks form the first group: the fifth to be ready is the first of the second one.
    schedule=[FIRST, Injection(fault=faults.Kill(), on=rank(1), at=on_event("group_ready", nth=5))],
    bounds=HOLDS,
)

FROZEN_STORE = Scenario(
    job=CHARLM,
    schedule=[FIRST, Injection(fault=faults.Stop(duration_s=4), on=store(), at=while_recovering())],
    bounds=HOLDS,
)

CUT_IN_BACKOFF = Scenario(
    job=CHARLM,
    schedule=[
        FIRST,
        Injection(fault=faults.LinkDown(duration_s=4), on=node(1), at=on_event("backoff")),
    ],
    bounds=HOLDS,
)


def test_a_rank_killed_while_it_restores() -> None:
    """The group of the recovery loses a rank before its first step: the next one holds."""
    run(KILL_IN_RESTORE)


def test_a_store_frozen_during_the_rendezvous() -> None:
    """No call to the store hangs: the ranks wait it out and meet when it goes on."""
    run(FROZEN_STORE)


def test_a_node_cut_off_during_the_backoff() -> None:
    """The node's health check fails until its link is back; the others wait for it."""
    run(CUT_IN_BACKOFF)
