"""Placement: which nodes' links and which processes an injection acts on. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from chaoslab import faults, schedule
from chaoslab.agent.errors import AgentError
from chaoslab.agent.faults import parse_fault
from chaoslab.errors import InvalidScenario
from chaoslab.scenario import Job


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkAction:
    """One request to one agent. wire: the fault in the terms of the agent's protocol."""

    node: int
    wire: dict[str, Any]
    probe_to: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """Where an injection acts.

    links: requests to agents. ranks: ranks whose processes are hit. containers: nodes whose
    training containers are, with their ranks. store: the store's process is. agents: agents that
    are. lost_nodes: nodes that are gone for good. volume: that of the checkpoints is filled.
    """

    links: tuple[LinkAction, ...] = ()
    ranks: tuple[int, ...] = ()
    containers: tuple[int, ...] = ()
    store: bool = False
    agents: tuple[int, ...] = ()
    lost_nodes: tuple[int, ...] = ()
    volume: bool = False


def place(
    injection: schedule.Injection, *, job: Job, addresses: Sequence[str], seed: int, nth: int
) -> Placement:
    """Work out where the nth injection of a schedule acts.

    addresses: of the nodes, the store's last. Raises: InvalidScenario for a fault that this
    harness cannot place on its target.
    """
    fault, target = injection.fault, injection.on
    if isinstance(fault, faults.ProcessFault):
        return _processes(target, job, seed, nth)
    if isinstance(fault, faults.DiskFull):
        return Placement(volume=True)
    if isinstance(fault, faults.Partition):
        return Placement(links=tuple(_partition(fault, job, addresses)))
    nodes = _nodes(target, job, seed, nth)
    if isinstance(fault, faults.NodeLoss):
        ranks = tuple(rank for node in nodes for rank in job.ranks_of(node))
        links = tuple(_link(node, {"kind": "link_down"}, (), addresses) for node in nodes)
        return Placement(links=links, ranks=ranks, lost_nodes=nodes)
    peers = (target.second,) if isinstance(target, schedule.LinkTarget) else ()
    return Placement(links=tuple(_link_fault(fault, node, peers, addresses) for node in nodes))


def check(placement: Placement, injection: schedule.Injection) -> None:
    """Refuse what the agents would refuse. Raises: InvalidScenario."""
    for link in placement.links:
        try:
            parse_fault(link.wire)
        except AgentError as problem:
            described = schedule.describe(injection.fault)
            raise InvalidScenario(f"{described}: {problem}") from problem


def _processes(target: schedule.Target, job: Job, seed: int, nth: int) -> Placement:
    match target:
        case schedule.RankTarget(rank=rank):
            return Placement(ranks=(rank,))
        case schedule.RanksTarget():
            drawn = schedule.drawn_ranks(target, world_size=job.world_size, seed=seed, nth=nth)
            return Placement(ranks=drawn)
        case schedule.NodeTarget(node=node) | schedule.ContainerTarget(node=node):
            containers = (node,) if isinstance(target, schedule.ContainerTarget) else ()
            return Placement(ranks=job.ranks_of(node), containers=containers)
        case schedule.EverywhereTarget():
            return Placement(ranks=tuple(range(job.world_size)))
        case schedule.StoreTarget():
            return Placement(store=True)
        case schedule.AgentTarget(node=node):
            return Placement(agents=(node,))
    raise InvalidScenario(f"a process fault on {schedule.describe(target)}: want a process")


def _nodes(target: schedule.Target, job: Job, seed: int, nth: int) -> tuple[int, ...]:
    match target:
        case schedule.RankTarget(rank=rank):
            return (job.node_of(rank),)
        case schedule.RanksTarget():
            drawn = schedule.drawn_ranks(target, world_size=job.world_size, seed=seed, nth=nth)
            return tuple(sorted({job.node_of(rank) for rank in drawn}))
        case schedule.NodeTarget(node=node):
            return (node,)
        case schedule.LinkTarget(first=first):
            return (first,)
        case schedule.StoreTarget():
            return (job.nodes,)
        case schedule.EverywhereTarget():
            return tuple(range(job.nodes))
    raise InvalidScenario(f"a network fault on {schedule.describe(target)}: want a link")


def _link(
    node: int, wire: dict[str, Any], peers: Sequence[int], addresses: Sequence[str]
) -> LinkAction:
    reached = peers or [other for other in range(len(addresses)) if other != node]
    return LinkAction(
        node=node, wire=wire, probe_to=tuple(addresses[other] for other in reached if other != node)
    )


def _link_fault(
    fault: faults.Fault, node: int, peers: tuple[int, ...], addresses: Sequence[str]
) -> LinkAction:
    to = tuple(getattr(fault, "to", ())) or peers
    if node in to:
        raise InvalidScenario(
            f"{schedule.describe(fault)} on node {node}: want other nodes in `to`, since a node's "
            "traffic with itself does not pass its link"
        )
    filters = {
        "peers": [addresses[peer] for peer in to],
        "ports": list(getattr(fault, "ports", ())),
    }
    direction = getattr(fault, "direction", "both")
    match fault:
        case faults.NetemFault():
            wire = {"kind": "netem", "direction": direction, **filters, "netem": fault.netem()}
        case faults.SilentDrop():
            wire = {"kind": "silent_drop", "direction": direction, **filters}
        case faults.LinkDown():
            wire = {"kind": "link_down"}
        case faults.ConnectionReset():
            wire = {"kind": "reset", **filters}
        case faults.Flapping():
            of = _link_fault(fault.of, node, peers, addresses).wire
            wire = {"kind": "flap", "of": of, "down_s": fault.down_s, "up_s": fault.up_s}
        case _:
            raise InvalidScenario(f"{type(fault).__name__}: no way to make it real on a link")
    return _link(node, wire, to, addresses)


def _partition(fault: faults.Partition, job: Job, addresses: Sequence[str]) -> Sequence[LinkAction]:
    """Each node drops what it would send to another group; that cuts both ways.

    One way: only the first group's nodes drop. cut_store: both directions, at the nodes that
    are cut from it, since the store's own link must stay whole for the others.
    """
    actions = []
    for nth, group in enumerate(fault.groups):
        others = [node for other in fault.groups if other is not group for node in other]
        for node in group:
            if nth == 0 or not fault.one_way:
                drop = _drop("egress", others, addresses)
                actions.append(_link(node, drop, others, addresses))
            if fault.cut_store and nth > 0:
                drop = _drop("both", [job.nodes], addresses)
                actions.append(_link(node, drop, [job.nodes], addresses))
    return actions


def _drop(direction: str, peers: Sequence[int], addresses: Sequence[str]) -> dict[str, Any]:
    return {
        "kind": "silent_drop",
        "direction": direction,
        "peers": [addresses[peer] for peer in peers],
        "ports": [],
    }
