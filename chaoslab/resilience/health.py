"""Health: is this node itself fit to take part? Its interface, its peers' sockets, the store.

Linux only: interfaces are asked by ioctl.
"""

from __future__ import annotations

import dataclasses
import fcntl
import socket
import struct
from collections.abc import Sequence

from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.errors import StoreError

SIOCGIFFLAGS, SIOCGIFADDR = 0x8913, 0x8915
"""Source: linux/sockios.h."""

IFF_UP, IFF_RUNNING = 0x1, 0x40
"""Source: linux/if.h."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Health:
    """What a check found. reason: empty when ok. store_s: seconds that the store took.

    silent_ranks: peers that acknowledged nothing before the group was torn down.
    """

    ok: bool
    interface: str | None = None
    address: str | None = None
    store_s: float | None = None
    silent_ranks: tuple[int, ...] = ()
    reason: str = ""


def check(client: StoreClient, *, timeout_s: float, silent_ranks: Sequence[int] = ()) -> Health:
    """Check the interface that leads to the store, then the store itself, within timeout_s.

    silent_ranks: what the peers' sockets told; where the store is silent, too, this node's own
    link is the likely cause.
    """
    found = _check(client, timeout_s=timeout_s)
    if not found.ok and silent_ranks:
        told = (
            f"{found.reason}; ranks {list(silent_ranks)} were silent, too: is it this node's link?"
        )
        found = dataclasses.replace(found, reason=told)
    return dataclasses.replace(found, silent_ranks=tuple(silent_ranks))


def _check(client: StoreClient, *, timeout_s: float) -> Health:
    address = address_towards(client.address)
    if address is None:
        return Health(
            ok=False, reason=f"no route to the store {client.address[0]}; is the link up?"
        )
    interface, is_up = _holder(address) or (None, True)  # not found: a second address, or IPv6
    if not is_up:
        reason = f"interface {interface}, which has the address {address}, is down"
        return Health(ok=False, address=address, reason=reason)
    try:
        store_s = client.ping(timeout_s=timeout_s)
    except StoreError as error:
        return Health(ok=False, interface=interface, address=address, reason=str(error))
    return Health(ok=True, interface=interface, address=address, store_s=round(store_s, 6))


def address_towards(peer: tuple[str, int]) -> str | None:
    """Give this node's address on the way to a peer, None without a route; sends nothing."""
    family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(peer)
            return str(sock.getsockname()[0])
    except OSError:
        return None


def interface_of(address: str) -> str | None:
    """Name the interface that is up, running and has this IPv4 address, None if there is none.

    Only the first address of each interface is known.
    """
    found = _holder(address)
    return found[0] if found and found[1] else None


def _holder(address: str) -> tuple[str, bool] | None:
    """Name the interface whose first IPv4 address this is; tell whether it is up and running."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                held = socket.inet_ntoa(fcntl.ioctl(sock, SIOCGIFADDR, request)[20:24])
                flags = struct.unpack_from("H", fcntl.ioctl(sock, SIOCGIFFLAGS, request), 16)[0]
            except OSError:  # no IPv4 address
                continue
            if held == address:
                return name, bool(flags & IFF_UP and flags & IFF_RUNNING)
    return None
