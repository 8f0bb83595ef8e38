"""The node's network interface: making it ready, taking it down, restoring what was recorded.

Source: include/uapi/linux/if_link.h, if_addr.h, rtnetlink.h.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chaoslab.agent.errors import AgentError, failed
from chaoslab.agent.netlink import NLM_F_CREATE_NEW, Message, NetlinkError, attribute, attributes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chaoslab.agent.netlink import Netlink

_RTM_NEWLINK, _RTM_DELLINK, _RTM_GETLINK = 16, 17, 18
_RTM_NEWADDR, _RTM_GETADDR = 20, 22
_RTM_NEWROUTE, _RTM_GETROUTE = 24, 26
_IFINFO: Final = struct.Struct("=BxHiII")
_IFADDR: Final = struct.Struct("=BBBBi")
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_IFF_UP: Final = 1
_IFLA_IFNAME, _IFLA_MTU, _IFLA_TXQLEN, _IFLA_OPERSTATE, _IFLA_LINKINFO = 3, 4, 13, 16, 18
_IFLA_INFO_KIND: Final = 1
_IFLA_GSO_MAX_SEGS: Final = 40
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_OIF: Final = 4
_ROUTE_IDENTITY: Final = frozenset(
    (1, 4, 5, 6, 7, 15)
)  # dst, oif, gateway, priority, prefsrc, table
_RTPROT_KERNEL: Final = 2
_RT_SCOPE_HOST: Final = 254
_RTM_F_CLONED: Final = 0x200
_OPERSTATES: Final = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")
_LINK_LOCAL_SCOPE: Final = 253

IFB_QUEUE_PACKETS: Final = 100_000
"""ifb stops its queue at tx_queue_len packets, 32 by default, fewer than a burst."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """An interface as the kernel lists it."""

    ifindex: int
    name: str
    up: bool
    operstate: str
    mtu: int
    gso_max_segs: int

    @property
    def carries(self) -> bool:
        """Whether packets can leave: up, and with a carrier (some devices do not tell)."""
        return self.up and self.operstate in {"up", "unknown"}


@dataclass(frozen=True, kw_only=True)
class Record:
    """An interface's addresses and routes, in the kernel's own bytes, to restore them."""

    addresses: dict[tuple[object, ...], bytes]
    routes: dict[tuple[object, ...], bytes]


def links(netlink: Netlink) -> list[Link]:
    """Return every interface of this namespace."""
    body = _IFINFO.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    found = netlink.dump(Message(type=_RTM_GETLINK, body=body, what="listing links"))
    return [_parse_link(body) for _, body in found]


def find(netlink: Netlink, name: str) -> Link | None:
    """Return the interface called `name`, or None."""
    return next((link for link in links(netlink) if link.name == name), None)


def get(netlink: Netlink, ifindex: int) -> Link:
    """Return one interface.

    Raises:
        AgentError: it is gone.
    """
    for link in links(netlink):
        if link.ifindex == ifindex:
            return link
    raise failed(f"interface {ifindex}: gone; want the interface that was set up")


def add(netlink: Netlink, name: str, kind: str) -> int:
    """Add a virtual device and return its index; an existing one of that name is taken as it is.

    Raises:
        NetlinkError: EOPNOTSUPP where the kernel has no such kind of device.
    """
    info = attribute(_IFLA_LINKINFO, attribute(_IFLA_INFO_KIND, kind.encode()))
    body = _IFINFO.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    body += attribute(_IFLA_IFNAME, name.encode() + b"\0") + info
    with _already_there():
        netlink.request(
            Message(
                type=_RTM_NEWLINK, flags=NLM_F_CREATE_NEW, body=body, what=f"adding {kind} {name}"
            )
        )
    link = find(netlink, name)
    if link is None:
        raise failed(f"the {kind} device {name} was added and is not there")
    return link.ifindex


def delete(netlink: Netlink, ifindex: int) -> None:
    """Delete a virtual device."""
    body = _IFINFO.pack(socket.AF_UNSPEC, 0, ifindex, 0, 0)
    netlink.request(Message(type=_RTM_DELLINK, body=body, what=f"deleting link {ifindex}"))


def set_up(netlink: Netlink, ifindex: int, *, up: bool) -> None:
    """Set an interface administratively up or down."""
    body = _IFINFO.pack(socket.AF_UNSPEC, 0, ifindex, _IFF_UP if up else 0, _IFF_UP)
    what = f"setting link {ifindex} {'up' if up else 'down'}"
    netlink.request(Message(type=_RTM_NEWLINK, body=body, what=what))


def set_number(netlink: Netlink, ifindex: int, *, queue: int = 0, gso_max_segs: int = 0) -> None:
    """Set an interface's transmit queue length or its largest number of segments per super-packet.

    pyroute2 0.9.7 does not know gso_max_segs and drops it without a word.
    """
    body = _IFINFO.pack(socket.AF_UNSPEC, 0, ifindex, 0, 0)
    for kind, value in ((_IFLA_TXQLEN, queue), (_IFLA_GSO_MAX_SEGS, gso_max_segs)):
        if value:
            body += attribute(kind, struct.pack("=I", value))
    netlink.request(Message(type=_RTM_NEWLINK, body=body, what=f"changing link {ifindex}"))


def record(netlink: Netlink, ifindex: int) -> Record:
    """Return the addresses and routes of an interface, to compare and to restore."""
    return Record(
        addresses={
            _address_identity(body): body
            for body in _dump(netlink, _RTM_GETADDR, _IFADDR.size)
            if _address_of(body, ifindex)
        },
        routes={
            _route_identity(body): body
            for body in _dump(netlink, _RTM_GETROUTE, _ROUTE.size)
            if _route_of(body, ifindex)
        },
    )


def restore(netlink: Netlink, ifindex: int, recorded: Record) -> None:
    """Bring an interface up and put back every recorded address and route that is missing."""
    set_up(netlink, ifindex, up=True)
    for identity, body in recorded.addresses.items():
        if identity not in record(netlink, ifindex).addresses:
            _put_back(netlink, _RTM_NEWADDR, body, "address")
    missing = {
        identity: body
        for identity, body in recorded.routes.items()
        if identity not in record(netlink, ifindex).routes
    }
    # A gateway must be reachable before the route through it: narrow scopes first.
    for body in sorted(missing.values(), key=lambda body: -body[6]):
        _put_back(netlink, _RTM_NEWROUTE, body, "route")


def differences(netlink: Netlink, ifindex: int, recorded: Record) -> list[str]:
    """Return which addresses and routes are missing or new against what was recorded."""
    now = record(netlink, ifindex)
    found = []
    for what, before, after in (
        ("address", recorded.addresses, now.addresses),
        ("route", recorded.routes, now.routes),
    ):
        found += [f"{what} missing: {_readable(item)}" for item in before if item not in after]
        found += [f"{what} new: {_readable(item)}" for item in after if item not in before]
    return found


def _put_back(netlink: Netlink, kind: int, body: bytes, what: str) -> None:
    with _already_there():
        netlink.request(
            Message(
                type=kind, flags=NLM_F_CREATE_NEW, body=body, what=f"restoring a recorded {what}"
            )
        )


@contextlib.contextmanager
def _already_there() -> Iterator[None]:
    try:
        yield
    except NetlinkError as error:
        if error.errno != errno.EEXIST:
            raise


def _dump(netlink: Netlink, kind: int, size: int) -> list[bytes]:
    what = f"listing {'addresses' if kind == _RTM_GETADDR else 'routes'}"
    return [body for _, body in netlink.dump(Message(type=kind, body=bytes(size), what=what))]


def _parse_link(body: bytes) -> Link:
    _, _, ifindex, flags, _ = _IFINFO.unpack_from(body)
    found = dict(attributes(body[_IFINFO.size :]))
    state = found.get(_IFLA_OPERSTATE, b"\0")[0]
    return Link(
        ifindex=ifindex,
        name=found.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode(),
        up=bool(flags & _IFF_UP),
        operstate=_OPERSTATES[state] if state < len(_OPERSTATES) else str(state),
        mtu=int.from_bytes(found.get(_IFLA_MTU, b""), "little"),
        gso_max_segs=int.from_bytes(found.get(_IFLA_GSO_MAX_SEGS, b""), "little"),
    )


def _address_of(body: bytes, ifindex: int) -> bool:
    family, _, _, scope, index = _IFADDR.unpack_from(body)
    # The kernel makes IPv6 link-local addresses itself whenever a link comes up.
    return bool(index == ifindex and (family == socket.AF_INET or scope != _LINK_LOCAL_SCOPE))


def _address_identity(body: bytes) -> tuple[object, ...]:
    family, prefix_length, *_ = _IFADDR.unpack_from(body)
    found = dict(attributes(body[_IFADDR.size :]))
    return family, prefix_length, found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS, b"")


def _route_of(body: bytes, ifindex: int) -> bool:
    family, _, _, _, _, protocol, _, _, flags = _ROUTE.unpack_from(body)
    found = dict(attributes(body[_ROUTE.size :]))
    wanted = family == socket.AF_INET or protocol != _RTPROT_KERNEL
    mine = found.get(_RTA_OIF) == struct.pack("=i", ifindex)
    return bool(mine and wanted and not flags & _RTM_F_CLONED)


def _route_identity(body: bytes) -> tuple[object, ...]:
    family, length, _, _, table, protocol, scope, kind, _ = _ROUTE.unpack_from(body)
    found = attributes(body[_ROUTE.size :])
    values = tuple(sorted((key, value) for key, value in found if key in _ROUTE_IDENTITY))
    return family, length, table, protocol, scope, kind, values


def _readable(identity: tuple[object, ...]) -> str:
    def show(item: object) -> str:
        if isinstance(item, bytes) and len(item) == 4:  # noqa: PLR2004  # an IPv4 address or a number
            return socket.inet_ntoa(item)
        if isinstance(item, tuple):
            return " ".join(show(part) for part in item)
        return str(item)

    return " ".join(show(item) for item in identity)


def add_address(netlink: Netlink, ifindex: int, address: str, prefix_length: int) -> None:
    """Give an interface an IPv4 address; one that is already there is left as it is.

    Raises:
        AgentError: the kernel refuses it.
    """
    packed = socket.inet_aton(address)
    body = _IFADDR.pack(socket.AF_INET, prefix_length, 0, 0, ifindex)
    body += attribute(_IFA_LOCAL, packed) + attribute(_IFA_ADDRESS, packed)
    try:
        _put_back(netlink, _RTM_NEWADDR, body, "address")
    except NetlinkError as error:
        raise AgentError("failed", f"address {address}/{prefix_length}: {error}") from error
