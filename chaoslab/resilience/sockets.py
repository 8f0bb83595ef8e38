"""Sockets: which TCP connections this process has, and who is at their other ends. Linux only."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
from typing import Final

from chaoslab.resilience.client import StoreClient

TCP_INFO_BYTES, RETRANSMITS = 8, 2
"""tcpi_retransmits is one byte. Source: struct tcp_info in linux/tcp.h."""

SO_SNDBUFFORCE: Final = 32
"""Beyond net.core.wmem_max, where that is allowed. Source: asm-generic/socket.h."""

ROOM_BYTES: Final = 1 << 29

SILENT_AFTER: Final = 2
"""So many retransmissions in a row, 0.6 s without an answer: no chance loss of a packet."""

ADDRESS: Final = re.compile(r"\[([0-9a-fA-F.:]+)\]:(\d+)")
"""How gloo's messages name the other end."""


class Names:
    """Which rank has which end of a connection: each tells its own through the store."""

    def __init__(self, client: StoreClient, *, number: int, rank: int, world_size: int) -> None:
        self._client, self._rank = client, rank
        self.keys = [f"sockets/{number}/{other}" for other in range(world_size)]
        self._owners: dict[str, int] = {}

    def publish(self, sockets: dict[int, int], *, timeout_s: float) -> None:
        """Tell this rank's ends. Raises: StoreError."""
        ends = [f"{end[0]} {end[1]}" for fd in sockets if (end := end_of(fd, own=True))]
        self._client.set(self.keys[self._rank], json.dumps(ends).encode(), timeout_s=timeout_s)

    def learn(self, *, timeout_s: float) -> None:
        """Learn the others' ends, once all have told them. Raises: StoreError."""
        found = self._client.multi_get(self.keys, timeout_s=timeout_s)
        self._owners = {
            end: rank for rank, value in enumerate(found) for end in json.loads(value or b"[]")
        }

    def owner(self, host: str, port: int) -> int | None:
        """Give the rank that has this end of a connection, None where that is not known."""
        return self._owners.get(f"{host} {port}")


def is_unanswered(fd: int) -> bool:
    """Say whether what was sent on a TCP connection is retransmitted again and again in vain.

    Then the other end's host, or the way to it, is gone: a host acknowledges for a process that
    is frozen, too. Where nothing was sent there is nothing to tell by.
    """
    try:
        with borrowed(fd) as sock:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    except OSError:
        return False
    return info[RETRANSMITS] >= SILENT_AFTER


def end_reading(sock: socket.socket) -> None:
    """Make a gloo socket read its end, once what waits to be sent is with the kernel.

    gloo then fails all that waits on the connection, and closes it, which tells the peer; but it
    forgets a send that is still queued, whose rank would wait out its timeout (signalException of
    gloo's tcp/pair.cc looks at op.buf, and not at op.ubuf). So writing stays open, and gets room
    where CAP_NET_ADMIN allows that: gloo writes before it reads. Raises: OSError.
    """
    # Not SO_SNDBUF: its bound, net.core.wmem_max, is below what the kernel grows a buffer to.
    with contextlib.suppress(PermissionError):
        sock.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, ROOM_BYTES)
    sock.shutdown(socket.SHUT_RD)


def borrowed(fd: int) -> socket.socket:
    """Give an object for a copy of a socket's descriptor, to be closed. Raises: OSError.

    The blocking mode, which all copies share, stays as it is: socket.setdefaulttimeout would
    change it.
    """
    copy = os.dup(fd)
    try:
        return socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK, fileno=copy)
    except OSError:
        os.close(copy)
        raise


def inode_of(fd: int) -> int | None:
    """Give a socket's inode, which tells it from a later one of the same descriptor."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_ino if stat.S_ISSOCK(status.st_mode) else None


def connected() -> dict[int, int]:
    """Give this process's connected TCP sockets, as descriptor and inode."""
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names only, no Path needed
        inode = inode_of(int(name))
        if inode is not None and end_of(int(name)) is not None:
            found[int(name)] = inode
    return found


def end_of(fd: int, *, own: bool = False) -> tuple[str, int] | None:
    """Give the peer's or the own end of a connected TCP socket, None for anything else."""
    try:
        with borrowed(fd) as sock:
            if sock.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            host, port = sock.getpeername()[:2]
            if own:
                host, port = sock.getsockname()[:2]
            return host.removeprefix("::ffff:"), port
    except OSError:
        return None
