"""TCP sockets of this namespace: listing them, and destroying them (reset).

Source: include/uapi/linux/inet_diag.h, sock_diag.h; net/ipv4/tcp_diag.c (tcp_diag_destroy).
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chaoslab.agent.errors import failed, not_available
from chaoslab.agent.netlink import NETLINK_SOCK_DIAG, Message, Netlink, NetlinkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaoslab.agent.faults import Match

_SOCK_DIAG_BY_FAMILY: Final = 20
_SOCK_DESTROY: Final = 21
_REQUEST_HEAD: Final = struct.Struct("=BBBxI")
_SOCKET_ID: Final = struct.Struct("!HH16s16s")
_ID_BYTES: Final = 48
_STATES: Final = {1: "established", 2: "syn_sent", 4: "fin_wait1", 5: "fin_wait2", 8: "close_wait"}
_STATE_MASK: Final = sum(1 << state for state in _STATES)
_MISSING: Final = (errno.ENOENT, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EINVAL)


@dataclass(frozen=True, kw_only=True)
class TcpSocket:
    """One TCP socket; `identity` is the kernel's own, cookie included."""

    family: int
    state: str
    local: str
    local_port: int
    peer: str
    peer_port: int
    identity: bytes

    def __str__(self) -> str:
        """Return local -> peer and state."""
        return f"{self.local}:{self.local_port} -> {self.peer}:{self.peer_port} {self.state}"


def connected(match: Match, own_addresses: Sequence[str]) -> list[TcpSocket]:
    """Return the connections that cross the link and match: by peer, and by either end's port.

    A connection to this node itself crosses no link, so it is left out.

    Raises:
        AgentError: this kernel has no inet_diag.
    """
    return [
        item
        for item in _listed()
        if not ipaddress.ip_address(item.peer).is_loopback
        and item.peer not in own_addresses
        and (not match.peers or item.peer in match.peers)
        and (not match.ports or {item.local_port, item.peer_port} & set(match.ports))
    ]


def destroy(victims: Sequence[TcpSocket]) -> None:
    """Destroy sockets: their owners see ECONNABORTED, their peers a reset.

    Raises:
        AgentError: this kernel has no INET_DIAG_DESTROY, or refused.
    """
    messages = [
        Message(
            type=_SOCK_DESTROY,
            body=_REQUEST_HEAD.pack(item.family, socket.IPPROTO_TCP, 0, _STATE_MASK)
            + item.identity,
            what=f"destroying {item}",
        )
        for item in victims
    ]
    with Netlink(NETLINK_SOCK_DIAG) as netlink:
        for message in messages:
            try:
                netlink.request(message)
            except NetlinkError as error:
                if error.errno == errno.ENOENT:
                    continue  # it closed by itself in the meantime
                if error.errno == errno.EOPNOTSUPP:
                    raise not_available(
                        f"this kernel has no INET_DIAG_DESTROY ({error}): run on a kernel "
                        "with CONFIG_INET_DIAG_DESTROY=y (Debian's user-mode-linux 6.1 lacks it)"
                    ) from error
                raise failed(str(error)) from error


def remaining(victims: Sequence[TcpSocket]) -> list[TcpSocket]:
    """Return which of `victims` are still there."""
    there = {item.identity for item in _listed()}
    return [item for item in victims if item.identity in there]


def probe() -> str | None:
    """Reset a connection of our own over the loopback; return None, or why it does not work."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        client = stack.enter_context(socket.create_connection(server.getsockname(), timeout=1))
        port = client.getsockname()[1]
        try:
            mine = [item for item in _listed() if item.local_port == port]
            destroy(mine)
            client.recv(1)
        except ConnectionAbortedError:
            return None
        except Exception as error:  # noqa: BLE001  # whatever it is, it is the reason
            return str(error)
    return "a destroyed connection went on as if nothing had happened"


def _listed() -> list[TcpSocket]:
    found = []
    with Netlink(NETLINK_SOCK_DIAG) as netlink:
        for family in (socket.AF_INET, socket.AF_INET6):
            body = _REQUEST_HEAD.pack(family, socket.IPPROTO_TCP, 0, _STATE_MASK) + bytes(_ID_BYTES)
            message = Message(type=_SOCK_DIAG_BY_FAMILY, body=body, what="listing TCP sockets")
            try:
                found += [_parse(body) for _, body in netlink.dump(message)]
            except NetlinkError as error:
                if error.errno not in _MISSING:
                    raise
                if family == socket.AF_INET:
                    raise not_available(
                        f"this kernel has no inet_diag ({error}): modprobe tcp_diag on the host"
                    ) from error
    return found


def _parse(body: bytes) -> TcpSocket:
    family, state = body[0], body[1]
    identity = body[4 : 4 + _ID_BYTES]
    local_port, peer_port, local, peer = _SOCKET_ID.unpack_from(identity)
    return TcpSocket(
        family=family,
        state=_STATES.get(state, str(state)),
        local=_address(family, local),
        local_port=local_port,
        peer=_address(family, peer),
        peer_port=peer_port,
        identity=identity,
    )


def _address(family: int, packed: bytes) -> str:
    if family == socket.AF_INET:
        return socket.inet_ntoa(packed[:4])
    address = ipaddress.IPv6Address(packed)
    return str(address.ipv4_mapped or address)
