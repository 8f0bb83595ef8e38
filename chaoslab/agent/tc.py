"""Traffic control messages: qdiscs, HTB classes, u32 filters, and their dumps.

Source: include/uapi/linux/rtnetlink.h (struct tcmsg), pkt_sched.h, pkt_cls.h.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chaoslab.agent.netlink import NLM_F_CREATE_NEW, Message, attribute, attributes

if TYPE_CHECKING:
    from chaoslab.agent.netlink import Netlink

RTM_NEWQDISC: Final = 36
RTM_DELQDISC: Final = 37
RTM_GETQDISC: Final = 38
RTM_NEWTCLASS: Final = 40
RTM_DELTCLASS: Final = 41
RTM_GETTCLASS: Final = 42
RTM_NEWTFILTER: Final = 44
RTM_DELTFILTER: Final = 45
RTM_GETTFILTER: Final = 46
TC_H_ROOT: Final = 0xFFFFFFFF
TC_H_CLSACT: Final = 0xFFFFFFF1
CLSACT_HANDLE: Final = 0xFFFF0000
CLSACT_INGRESS: Final = 0xFFFFFFF2
ETH_P_ALL: Final = 0x0003
ETH_P_IP: Final = 0x0800
ETH_P_ARP: Final = 0x0806

_TCMSG: Final = struct.Struct("=BBHiIII")
_KIND: Final = 1
_OPTIONS: Final = 2
_STATS2: Final = 7
_STATS_BASIC: Final = 1
_STATS_QUEUE: Final = 3
_HTB_PARMS, _HTB_INIT = 1, 2
_HTB_DIRECT_QLEN, _HTB_RATE64, _HTB_CEIL64 = 5, 6, 7
_HTB_VERSION: Final = 3
_HTB_QUANTUM_BYTES: Final = 60_000
_HTB_BURST_TICKS: Final = 1 << 24
_CLASS_RATE_BYTES_PER_S: Final = 10**12
"""8 Tbit/s: never shapes, netem's own rate does where one is asked for."""

_LINKLAYER_ETHERNET: Final = 1
_U32_CLASSID, _U32_SEL, _U32_ACT = 1, 5, 7
_U32_TERMINAL: Final = 1
_MIRRED_PARMS: Final = 2
_EGRESS_REDIRECT: Final = 1
_ACT_STOLEN: Final = 4

Key = tuple[int, int, int]
"""A u32 key: mask, value (both as numbers of 32 bits), offset in bytes from the network header."""


@dataclass(frozen=True, kw_only=True)
class Qdisc:
    """A qdisc, a class or a filter as the kernel lists it; counters are since it was made."""

    ifindex: int
    handle: int
    parent: int
    info: int
    kind: str
    options: bytes
    packets: int = 0
    bytes: int = 0
    backlog_packets: int = 0
    backlog_bytes: int = 0
    drops: int = 0
    requeues: int = 0
    overlimits: int = 0

    @property
    def preference(self) -> int:
        """A filter's preference: the lower is looked at first."""
        return self.info >> 16


def qdiscs(netlink: Netlink, ifindex: int) -> list[Qdisc]:
    """Return the qdiscs of one interface."""
    return _listed(netlink, RTM_GETQDISC, ifindex, 0)


def classes(netlink: Netlink, ifindex: int) -> list[Qdisc]:
    """Return the classes of one interface."""
    return _listed(netlink, RTM_GETTCLASS, ifindex, 0)


def filters(netlink: Netlink, ifindex: int, parent: int) -> list[Qdisc]:
    """Return the filters attached to `parent`; u32 lists its preference and hash table, too."""
    return _listed(netlink, RTM_GETTFILTER, ifindex, parent)


def _listed(netlink: Netlink, kind: int, ifindex: int, parent: int) -> list[Qdisc]:
    body = _TCMSG.pack(socket.AF_UNSPEC, 0, 0, ifindex, 0, parent, 0)
    found = netlink.dump(Message(type=kind, body=body, what=f"listing {kind} of link {ifindex}"))
    listed = [_parse(body) for _, body in found]
    return [item for item in listed if item.ifindex == ifindex]


def _parse(body: bytes) -> Qdisc:
    _, _, _, ifindex, handle, parent, info = _TCMSG.unpack_from(body)
    found = dict(attributes(body[_TCMSG.size :]))
    stats = dict(attributes(found.get(_STATS2, b"")))
    basic, queue = stats.get(_STATS_BASIC, b""), stats.get(_STATS_QUEUE, b"")
    sent_bytes, packets = struct.unpack_from("=QI", basic.ljust(12, b"\0"))
    queued = struct.unpack_from("=5I", queue.ljust(20, b"\0"))
    return Qdisc(
        ifindex=ifindex,
        handle=handle,
        parent=parent,
        info=info,
        kind=found.get(_KIND, b"").rstrip(b"\0").decode(),
        options=found.get(_OPTIONS, b""),
        packets=packets,
        bytes=sent_bytes,
        backlog_packets=queued[0],
        backlog_bytes=queued[1],
        drops=queued[2],
        requeues=queued[3],
        overlimits=queued[4],
    )


def add_qdisc(ifindex: int, parent: int, handle: int, kind: str, options: bytes = b"") -> Message:
    """Return the request that adds a qdisc below `parent`."""
    body = _body(ifindex, handle, parent, 0, kind=kind, options=options)
    return Message(
        type=RTM_NEWQDISC, flags=NLM_F_CREATE_NEW, body=body, what=f"adding a {kind} qdisc"
    )


def delete_qdisc(ifindex: int, parent: int, handle: int) -> Message:
    """Return the request that deletes a qdisc."""
    body = _TCMSG.pack(socket.AF_UNSPEC, 0, 0, ifindex, handle, parent, 0)
    return Message(type=RTM_DELQDISC, body=body, what=f"deleting qdisc {handle >> 16:x}:")


def htb_options(direct_packets: int) -> bytes:
    """Return the options of an HTB root with no default class.

    Unclassified packets take HTB's direct queue, of `direct_packets`, which nothing shapes.
    """
    init = attribute(_HTB_INIT, struct.pack("=5I", _HTB_VERSION, 10, 0, 0, 0))
    return init + attribute(_HTB_DIRECT_QLEN, struct.pack("=I", direct_packets))


def add_htb_class(ifindex: int, root: int, classid: int) -> Message:
    """Return the request that adds an HTB class which never shapes."""
    spec = struct.pack("=BBHhHI", 0, _LINKLAYER_ETHERNET, 0, -1, 0, 0xFFFFFFFF)
    burst = (_HTB_BURST_TICKS, _HTB_BURST_TICKS, _HTB_QUANTUM_BYTES, 0, 0)
    rate = struct.pack("=Q", _CLASS_RATE_BYTES_PER_S)
    options = attribute(_HTB_RATE64, rate) + attribute(_HTB_CEIL64, rate)
    options += attribute(_HTB_PARMS, spec + spec + struct.pack("=5I", *burst))
    body = _body(ifindex, classid, root, 0, kind="htb", options=options)
    return Message(
        type=RTM_NEWTCLASS, flags=NLM_F_CREATE_NEW, body=body, what="adding an htb class"
    )


def delete_class(ifindex: int, root: int, classid: int) -> Message:
    """Return the request that deletes a class and the qdisc below it."""
    body = _TCMSG.pack(socket.AF_UNSPEC, 0, 0, ifindex, classid, root, 0)
    return Message(type=RTM_DELTCLASS, body=body, what=f"deleting class {classid & 0xFFFF:x}")


def add_u32(
    ifindex: int,
    parent: int,
    *,
    preference: int,
    protocol: int,
    keys: tuple[Key, ...],
    target: bytes,
) -> Message:
    """Return the request that adds a u32 filter; all `keys` must match (none: everything does)."""
    selector = struct.pack("=BBBxHHhhI", _U32_TERMINAL, 0, max(len(keys), 1), 0, 0, 0, 0, 0)
    for mask, value, offset in keys or ((0, 0, 0),):
        selector += struct.pack("!II", mask, value) + struct.pack("=ii", offset, 0)
    info = preference << 16 | socket.htons(protocol)
    options = target + attribute(_U32_SEL, selector)
    body = _body(ifindex, 0, parent, info, kind="u32", options=options)
    return Message(
        type=RTM_NEWTFILTER, flags=NLM_F_CREATE_NEW, body=body, what="adding a u32 filter"
    )


def to_class(classid: int) -> bytes:
    """Return a u32 filter's target: a class."""
    return attribute(_U32_CLASSID, struct.pack("=I", classid))


def to_device(ifindex: int) -> bytes:
    """Return a u32 filter's target: redirection to another device's egress."""
    mirred = struct.pack("=IIiiiiI", 0, 0, _ACT_STOLEN, 0, 0, _EGRESS_REDIRECT, ifindex)
    action = attribute(1, b"mirred\0") + attribute(2, attribute(_MIRRED_PARMS, mirred))
    return attribute(_U32_ACT, attribute(1, action))


def delete_filters(ifindex: int, parent: int, preference: int, protocol: int) -> Message:
    """Return the request that deletes all filters of one preference at once."""
    info = preference << 16 | socket.htons(protocol)
    body = _TCMSG.pack(socket.AF_UNSPEC, 0, 0, ifindex, 0, parent, info)
    return Message(
        type=RTM_DELTFILTER, body=body, what=f"deleting filters of preference {preference}"
    )


def _body(ifindex: int, handle: int, parent: int, info: int, *, kind: str, options: bytes) -> bytes:
    header = _TCMSG.pack(socket.AF_UNSPEC, 0, 0, ifindex, handle, parent, info)
    return header + attribute(_KIND, kind.encode() + b"\0") + attribute(_OPTIONS, options)
