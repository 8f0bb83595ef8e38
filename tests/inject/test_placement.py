"""Placement is pure: which requests go to which agents, in terms that the agent takes."""

import pytest

from chaoslab import (
    Injection,
    Job,
    at_step,
    between,
    container_of,
    everywhere,
    faults,
    node,
    one_rank,
    rank,
    ranks,
    store,
)
from chaoslab.agent.faults import parse_fault
from chaoslab.inject.placement import Placement, place

JOB = Job(script="x.py", nodes=4, steps=100, ranks_per_node=2)
ADDRESSES = ["10.9.9.1", "10.9.9.2", "10.9.9.3", "10.9.9.4", "10.9.9.5"]

ON_A_LINK = [
    faults.PacketLoss(ratio=0.2, correlation_ratio=0.1, to=(1,), ports=(29400,)),
    faults.BurstLoss(enter_ratio=0.1, leave_ratio=0.5, loss_bad_ratio=0.8, loss_good_ratio=0.01),
    faults.FourStateLoss(p13=0.1, p31=0.5, p32=0.2, p23=0.5, p14=0.01),
    faults.Delay(delay_s=0.05, jitter_s=0.01, distribution="pareto", direction="egress"),
    faults.Delay(delay_s=0.05, jitter_s=0.01, distribution=(-100, 0, 100)),
    faults.Duplication(ratio=0.1),
    faults.Corruption(ratio=0.1, direction="ingress"),
    faults.Reordering(ratio=0.3, delay_s=0.01, gap=5),
    faults.RateLimit(rate_bytes_per_s=1 << 33, packet_overhead_bytes=20, cell_size_bytes=48),
    faults.Slots(min_delay_s=0.01, max_delay_s=0.02, packets=5),
    faults.Slots(distribution="normal", delay_s=0.01, jitter_s=0.002, size_bytes=9000),
    faults.Slots(distribution=(-100, 0, 100), delay_s=0.01, jitter_s=0.002),
    faults.PacketLoss(ratio=0.2, seed=7),
    faults.PacketLoss(ratio=0.2, ecn=True, limit_packets=20),
    faults.BurstLoss(enter_ratio=0.1, leave_ratio=0.5, ecn=True),
    faults.Combined(parts=(faults.PacketLoss(ratio=0.1), faults.Delay(delay_s=0.05))),
    faults.LinkDown(),
    faults.SilentDrop(to=(0, 3), direction="egress"),
    faults.ConnectionReset(to=(1,), ports=(29400,)),
    faults.Flapping(down_s=0.5, up_s=1),
    faults.Flapping(of=faults.SilentDrop(), down_s=0.5, up_s=1),
    faults.NodeLoss(),
]


def placed(fault, target, seed=0):
    injection = Injection(fault=fault, on=target, at=at_step(5))
    return place(injection, job=JOB, addresses=ADDRESSES, seed=seed, nth=0)


@pytest.mark.parametrize("fault", ON_A_LINK, ids=lambda fault: type(fault).__name__)
def test_the_agent_takes_every_fault_that_the_harness_can_write(fault) -> None:
    """Each fault becomes a request that the agent's own parser accepts, on the right node."""
    (link,) = placed(fault, node(2)).links
    assert link.node == 2
    assert parse_fault(link.wire).kind == link.wire["kind"]
    assert ADDRESSES[2] not in link.probe_to


def test_a_rank_stands_for_its_nodes_link_and_for_its_own_process() -> None:
    """rank(5) of two a node: node 2's link for a network fault, rank 5 alone for a kill."""
    assert [link.node for link in placed(faults.LinkDown(), rank(5)).links] == [2]
    assert placed(faults.Kill(), rank(5)).ranks == (5,)
    assert placed(faults.Kill(), node(2)).ranks == (4, 5)
    assert placed(faults.Kill(), store()).store
    assert [link.node for link in placed(faults.SilentDrop(), store()).links] == [4]


def test_a_lost_node_loses_all_its_ranks_and_its_link() -> None:
    """NodeLoss names the node, every rank on it, and takes its link down."""
    lost = placed(faults.NodeLoss(), node(1))
    assert lost.lost_nodes == (1,)
    assert lost.ranks == (2, 3)
    assert [link.wire["kind"] for link in lost.links] == ["link_down"]


def test_a_link_between_two_nodes_is_hit_for_that_peer_only() -> None:
    """between(0, 3): node 0 drops packets to and from node 3's address, no other."""
    (link,) = placed(faults.SilentDrop(), between(0, 3)).links
    assert (link.node, link.wire["peers"], link.wire["direction"]) == (0, [ADDRESSES[3]], "both")
    assert link.probe_to == (ADDRESSES[3],)


def cuts(partition):
    """Give the directed pairs of nodes (or 4, the store) that cannot reach each other."""
    pairs = set()
    for link in placed(partition, everywhere()).links:
        for peer in (ADDRESSES.index(address) for address in link.wire["peers"]):
            if link.wire["direction"] in ("egress", "both"):
                pairs.add((link.node, peer))
            if link.wire["direction"] in ("ingress", "both"):
                pairs.add((peer, link.node))
    return pairs


def test_a_partition_cuts_exactly_the_pairs_across_its_groups() -> None:
    """Symmetric: both ways across the groups and none within; one way: from the first only."""
    both = {(a, b) for a in (0, 1) for b in (2, 3)} | {(b, a) for a in (0, 1) for b in (2, 3)}
    groups = ((0, 1), (2, 3))
    assert cuts(faults.Partition(groups=groups)) == both
    assert cuts(faults.Partition(groups=groups, one_way=True)) == {
        (a, b) for a in (0, 1) for b in (2, 3)
    }
    store_too = {(2, 4), (4, 2), (3, 4), (4, 3)}
    assert cuts(faults.Partition(groups=groups, cut_store=True)) == both | store_too


def test_drawn_ranks_follow_the_seed() -> None:
    """The same seed hits the same ranks, and the number asked for."""
    assert placed(faults.Kill(), ranks(3), seed=5) == placed(faults.Kill(), ranks(3), seed=5)
    assert len(placed(faults.Kill(), ranks(3), seed=5).ranks) == 3
    hit = {placed(faults.Kill(), one_rank(), seed=seed).ranks for seed in range(50)}
    assert len(hit) > 4


def test_a_container_is_hit_with_all_ranks_in_it() -> None:
    """One process to signal; its ranks are the ones that are hit. The node's own: each rank."""
    assert placed(faults.Kill(), container_of(2)) == Placement(ranks=(4, 5), containers=(2,))
    assert placed(faults.Kill(), node(2)) == Placement(ranks=(4, 5))
