"""Faults: frozen values that say what goes wrong. They do nothing by themselves.

A fault is made real by `chaoslab.inject`, on the target and at the trigger that an
`Injection` names. Durations are seconds, ratios lie in 0..1. A network fault acts on one
node's link, in the stated direction as seen from that node; a delay is one way, so
`direction="both"` adds it twice to a round trip.
"""

from chaoslab.faults.base import Direction, Fault, NetworkFault
from chaoslab.faults.disk import DiskFull
from chaoslab.faults.links import (
    ConnectionReset,
    Flapping,
    LinkDown,
    NodeLoss,
    Partition,
    SilentDrop,
)
from chaoslab.faults.netem import (
    BurstLoss,
    Combined,
    Corruption,
    Delay,
    Distribution,
    Duplication,
    FourStateLoss,
    NetemFault,
    PacketLoss,
    RateLimit,
    Reordering,
    Slots,
)
from chaoslab.faults.processes import Kill, ProcessFault, Signal, Stop

__all__ = [
    "BurstLoss",
    "Combined",
    "ConnectionReset",
    "Corruption",
    "Delay",
    "Direction",
    "DiskFull",
    "Distribution",
    "Duplication",
    "Fault",
    "Flapping",
    "FourStateLoss",
    "Kill",
    "LinkDown",
    "NetemFault",
    "NetworkFault",
    "NodeLoss",
    "PacketLoss",
    "Partition",
    "ProcessFault",
    "RateLimit",
    "Reordering",
    "Signal",
    "SilentDrop",
    "Slots",
    "Stop",
]
