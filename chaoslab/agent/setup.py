"""Making a node ready: interface, address, fault tree; and the state that counts as pristine."""

from __future__ import annotations

import contextlib
import errno
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chaoslab.agent import interface, tc
from chaoslab.agent.errors import AgentError, bad_request, not_available
from chaoslab.agent.netlink import NetlinkError
from chaoslab.agent.tree import DIRECT_PACKETS, ROOT, Tree, arp_passes, redirect_all

if TYPE_CHECKING:
    from pyroute2 import IPRoute

    from chaoslab.agent.faults import Direction
    from chaoslab.agent.interface import Record
    from chaoslab.agent.netlink import Netlink

IFB_NAME: Final = "chaosifb0"
"""Carries what arrives, so that faults on ingress have a queue."""

_PING_GROUPS: Final = Path("/proc/sys/net/ipv4/ping_group_range")
_UNSUPPORTED: Final = (errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL)


@dataclass(frozen=True, kw_only=True)
class Base:
    """The node as `setup` left it: the tree, and what pristine means."""

    ifindex: int
    address: str
    tree: Tree
    ifb_missing: str | None
    ping_allowed: bool
    recorded: Record
    shape: frozenset[str]


def set_up(netlink: Netlink, iproute: IPRoute, name: str, address: str, prefix_length: int) -> Base:
    """Bring the interface up with its address and build the fault tree; doing it twice is harmless.

    Raises:
        AgentError: there is no such interface, or this kernel has no HTB or u32.
    """
    loopback, link = interface.find(netlink, "lo"), interface.find(netlink, name)
    if link is None or loopback is None:
        there = ", ".join(item.name for item in interface.links(netlink))
        raise bad_request(f"interface={name!r}: want one of this namespace's: {there}")
    interface.set_up(netlink, loopback.ifindex, up=True)
    # One segment per packet: a loss of 1 % on super-packets is many times that in segments.
    interface.set_number(netlink, link.ifindex, gso_max_segs=1)
    interface.add_address(netlink, link.ifindex, address, prefix_length)
    interface.set_up(netlink, link.ifindex, up=True)
    _ensure_root(netlink, link.ifindex)
    devices: dict[Direction, int] = {"egress": link.ifindex}
    ifb_missing = None
    try:
        devices["ingress"] = _ensure_ingress(netlink, link.ifindex)
    except NetlinkError as error:
        ifb_missing = (f"faults on ingress need ifb, clsact, u32 and act_mirred ({error}): "
                       "modprobe -a ifb sch_ingress act_mirred on the host")  # fmt: skip
    return Base(
        ifindex=link.ifindex,
        address=address,
        tree=Tree(netlink, iproute, devices),
        ifb_missing=ifb_missing,
        ping_allowed=_allow_ping(),
        recorded=interface.record(netlink, link.ifindex),
        shape=shape(netlink, devices),
    )


def pristine_differences(netlink: Netlink, base: Base) -> list[str]:
    """Return what differs from the state after `set_up`, one line each; empty when nothing does."""
    now = shape(netlink, base.tree.devices)
    found = [f"missing: {item}" for item in sorted(base.shape - now)]
    found += [f"new: {item}" for item in sorted(now - base.shape)]
    return found + interface.differences(netlink, base.ifindex, base.recorded)


def shape(netlink: Netlink, devices: dict[Direction, int]) -> frozenset[str]:
    """Return a line for each link, qdisc, class and filter of the node's devices."""
    lines = [
        f"link {link.name} {'up' if link.up else 'down'} mtu {link.mtu} gso {link.gso_max_segs}"
        for link in interface.links(netlink)
    ]
    for ifindex in devices.values():
        for what, listed in (
            ("qdisc", tc.qdiscs(netlink, ifindex)),
            ("class", tc.classes(netlink, ifindex)),
            ("filter", tc.filters(netlink, ifindex, ROOT)),
            ("ingress filter", tc.filters(netlink, ifindex, tc.CLSACT_INGRESS)),
        ):
            lines += [
                f"{what} {x.kind} {x.handle:x} parent {x.parent:x} pref {x.preference} on {ifindex}"
                for x in listed
            ]
    return frozenset(lines)


def _ensure_root(netlink: Netlink, ifindex: int) -> None:
    roots = [item for item in tc.qdiscs(netlink, ifindex) if item.parent == tc.TC_H_ROOT]
    if any(item.kind == "htb" and item.handle == ROOT for item in roots):
        return
    options = tc.htb_options(DIRECT_PACKETS)
    try:
        netlink.request(
            tc.add_qdisc(ifindex, tc.TC_H_ROOT, ROOT, "htb", options), arp_passes(ifindex)
        )
    except NetlinkError as error:
        if error.errno not in _UNSUPPORTED:
            raise AgentError("failed", f"building the fault tree: {error}") from error
        raise not_available(f"this kernel lacks sch_htb or cls_u32 ({error})") from error


def _ensure_ingress(netlink: Netlink, ifindex: int) -> int:
    ifb = interface.add(netlink, IFB_NAME, "ifb")
    interface.set_number(netlink, ifb, queue=interface.IFB_QUEUE_PACKETS)
    interface.set_up(netlink, ifb, up=True)
    _ensure_root(netlink, ifb)
    if not any(item.kind == "clsact" for item in tc.qdiscs(netlink, ifindex)):
        netlink.request(tc.add_qdisc(ifindex, tc.TC_H_CLSACT, tc.CLSACT_HANDLE, "clsact"))
    if not tc.filters(netlink, ifindex, tc.CLSACT_INGRESS):
        netlink.request(redirect_all(ifindex, ifb))
    return ifb


def _allow_ping() -> bool:
    """Allow ICMP echo without CAP_NET_RAW; in a container /proc/sys may be read-only."""
    with contextlib.suppress(OSError):
        _PING_GROUPS.write_text("0 2147483647")
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP).close()
    except OSError:
        return False
    return True
