"""The fault tree: HTB on the interface (egress) and on an ifb device (ingress).

HTB has no default class, so traffic that no fault concerns takes its direct queue, unshaped. A
fault is a class of its own: its leaf qdisc is set while the class is empty, then filters steer
traffic into it. Healing deletes the filters, lets the leaf drain, and removes the class when it is
empty. So no packet of a bystander is dropped, neither at injection nor at heal.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chaoslab.agent import pyroute, tc
from chaoslab.agent.errors import failed

if TYPE_CHECKING:
    from pyroute2 import IPRoute

    from chaoslab.agent.faults import Direction, Fault, Match
    from chaoslab.agent.netlink import Message, Netlink

ROOT: Final = 0x10000
DIRECT_PRIORITY: Final = ROOT
"""A socket with this SO_PRIORITY passes by every fault on egress. Source: sch_htb.c."""

DIRECT_PACKETS: Final = 100_000

_LEAF_BASE: Final = 0x100
_SLOT_MAX: Final = 0xFFF
_SPECIFIC_STEP: Final = 0x1000
_ARP_RANK: Final = 4
_IPPROTO_TCP: Final = 6
_IPPROTO_UDP: Final = 17
_NO_OPTIONS: Final = (0x0F000000, 0x05000000, 0)
"""Key: the IPv4 header has no options, so that ports are at offset 20."""

_FIRST_FRAGMENT: Final = (0x00001FFF, 0, 4)
"""Key: the fragment offset is zero, so that there are ports at all."""


@dataclass(frozen=True, kw_only=True)
class Steer:
    """One direction of one fault: a class, its leaf, and the filters that lead to it."""

    direction: Direction
    ifindex: int
    slot: int
    preference: int
    protocol: int
    filters: int
    kind: str

    @property
    def classid(self) -> int:
        """The class's handle, 1:slot."""
        return ROOT | self.slot

    @property
    def leaf(self) -> int:
        """The leaf qdisc's handle."""
        return (_LEAF_BASE + self.slot) << 16


class Tree:
    """The two HTB trees of a node; `devices` maps a direction to the interface that carries it."""

    def __init__(self, netlink: Netlink, iproute: IPRoute, devices: dict[Direction, int]) -> None:
        self.netlink = netlink
        self._iproute = iproute
        self.devices = devices

    def plan(self, fault: Fault, direction: Direction, slot: int) -> Steer:
        """Return where a fault goes.

        Total drop comes first, then ARP passes, then the most specific filter, then the older
        fault: a packet meets the first fault that matches it, and only that one.
        """
        if not 0 < slot <= _SLOT_MAX:
            raise failed(f"fault slot {slot}: want 1 to {_SLOT_MAX}; heal some faults first")
        match, drop = fault.match, fault.core.kind == "silent_drop"
        rank = (not match.ports) * 2 + (not match.peers) + (0 if drop else _ARP_RANK + 1)
        return Steer(
            direction=direction,
            ifindex=self.devices[direction],
            slot=slot,
            preference=1 + rank * _SPECIFIC_STEP + slot,
            protocol=tc.ETH_P_IP if match.peers or match.ports else tc.ETH_P_ALL,
            filters=len(u32_keys(match, direction)),
            kind="blackhole" if drop else "netem",
        )

    def add_leaf(self, steer: Steer, options: bytes) -> tc.Qdisc:
        """Make the fault's class and leaf, still empty, and return the leaf as read back."""
        self.netlink.request(tc.add_htb_class(steer.ifindex, ROOT, steer.classid))
        pyroute.add_leaf(
            self._iproute,
            ifindex=steer.ifindex,
            parent=steer.classid,
            handle=steer.leaf,
            kind=steer.kind,
            options=options,
        )
        leaf = self.leaf(steer)
        if leaf is None or leaf.kind != steer.kind:
            raise failed(f"a {steer.kind} qdisc was added on {steer.direction} and is not there")
        return leaf

    def add_filters(self, steer: Steer, match: Match) -> None:
        """Steer the matching traffic into the fault's class, and see that every filter is there."""
        target = tc.to_class(steer.classid)
        self.netlink.request(
            *(
                tc.add_u32(
                    steer.ifindex,
                    ROOT,
                    preference=steer.preference,
                    protocol=steer.protocol,
                    keys=keys,
                    target=target,
                )
                for keys in u32_keys(match, steer.direction)
            )
        )
        found = self.count_filters(steer)
        if found != steer.filters:
            raise failed(
                f"{steer.filters} filters were added on {steer.direction}, {found} are there"
            )

    def remove_filters(self, steer: Steer) -> None:
        """Lead the traffic past the fault again, and see that no filter is left."""
        if self.count_filters(steer) == 0:
            return
        self.netlink.request(
            tc.delete_filters(steer.ifindex, ROOT, steer.preference, steer.protocol)
        )
        left = self.count_filters(steer)
        if left:
            raise failed(f"{left} filters of a healed fault are still there on {steer.direction}")

    def remove_leaf(self, steer: Steer) -> None:
        """Remove the fault's class and leaf; packets still queued in it are dropped."""
        if any(item.handle == steer.classid for item in tc.classes(self.netlink, steer.ifindex)):
            self.netlink.request(tc.delete_class(steer.ifindex, ROOT, steer.classid))

    def leaf(self, steer: Steer) -> tc.Qdisc | None:
        """Return the fault's leaf with its counters; None when it is gone."""
        listed = tc.qdiscs(self.netlink, steer.ifindex)
        return next((item for item in listed if item.handle == steer.leaf), None)

    def count_filters(self, steer: Steer) -> int:
        """Return how many filters lead to the fault."""
        listed = tc.filters(self.netlink, steer.ifindex, ROOT)
        mine = [item for item in listed if item.preference == steer.preference]
        # u32 lists the preference itself and its hash table, too: both have no node number.
        return sum(item.handle & 0xFFF != 0 for item in mine)


def redirect_all(ifindex: int, ifb: int) -> Message:
    """Return the request that leads all that arrives on an interface through an ifb device."""
    return tc.add_u32(
        ifindex,
        tc.CLSACT_INGRESS,
        preference=1,
        protocol=tc.ETH_P_ALL,
        keys=(),
        target=tc.to_device(ifb),
    )


def arp_passes(ifindex: int) -> Message:
    """Return the request that leads ARP past every netem fault, not past a total drop.

    ARP has no checksum: a reply that netem corrupted would give a node a wrong hardware address for
    many seconds after the heal, and on a real wire such a frame never arrives. A lost or late reply
    would make the peer unreachable, which is not what was asked for.
    """
    return tc.add_u32(
        ifindex,
        ROOT,
        preference=1 + _ARP_RANK * _SPECIFIC_STEP,
        protocol=tc.ETH_P_ARP,
        keys=(),
        target=tc.to_class(ROOT),
    )


def u32_keys(match: Match, direction: Direction) -> list[tuple[tc.Key, ...]]:
    """Return the keys of each u32 filter that `match` takes: the peer's address, either port."""
    peer_offset = 16 if direction == "egress" else 12
    peers = [_address_key(peer, peer_offset) for peer in match.peers] or [()]
    return [peer + port for peer in peers for port in _port_keys(match.ports)]


def _address_key(peer: str, offset: int) -> tuple[tc.Key, ...]:
    return ((0xFFFFFFFF, int(ipaddress.IPv4Address(peer)), offset),)


def _port_keys(ports: tuple[int, ...]) -> list[tuple[tc.Key, ...]]:
    if not ports:
        return [()]
    return [
        (_NO_OPTIONS, _FIRST_FRAGMENT, (0x00FF0000, protocol << 16, 8), port_key)
        for port in ports
        for protocol in (_IPPROTO_TCP, _IPPROTO_UDP)
        for port_key in ((0xFFFF0000, port << 16, 20), (0x0000FFFF, port, 20))
    ]
