"""Probe packets: ICMP echo without CAP_NET_RAW, else TCP to a closed port; UDP for a given port.

The kernel of any peer answers all three. It answers TCP with a reset as often as it is asked, UDP
with an ICMP error about once a second (net.ipv4.icmp_ratelimit): too seldom to show a loss among
the answers. A bypassing prober's packets go past every fault on egress, so that a fault on ingress
can be seen by itself.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import socket
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from chaoslab.agent.tree import DIRECT_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Sequence

SMALL_BYTES: Final = 16
LARGE_BYTES: Final = 1400
_HEADERS_BYTES: Final = 42
"""Ethernet 14, IPv4 20, ICMP or UDP 8."""

_TCP_RESET_BYTES: Final = 54
"""Ethernet 14, IPv4 20, TCP 20: a peer's answer; the request has up to 20 more, of options."""

_CLOSED_TCP_PORT: Final = 1
"""tcpmux: below the ports that a job may be given; where something listens, it answers as well."""

_CONNECTING_MAX: Final = 128
_WATCHED_MAX: Final = 16
_ECHO_REQUEST: Final = 8
_ECHO_REPLY: Final = 0
_PAYLOAD: Final = struct.Struct("!II")
_ICMP_HEADER_BYTES: Final = 8


@dataclass(kw_only=True)
class Observation:
    """What a prober has seen so far; times in seconds."""

    sent: int = 0
    refused: int = 0
    answered: int = 0
    duplicates: int = 0
    overtaken: int = 0
    longest_s: float = 0.0
    shortest_s: float = float("inf")


class Prober:
    """Sends probe packets to targets and counts what comes back; close it, or use `with`.

    port None: ICMP echo where allowed, else TCP to a closed port, whose probes have one size and
    show no duplicates. A port: UDP to that port, so that a fault on it applies.
    """

    def __init__(
        self, targets: Sequence[str], *, ping: bool, bypass: bool = False, port: int | None = None
    ) -> None:
        self.seen = Observation()
        self.patience_s = 0.5
        self._targets = tuple(targets)
        self._udp = port is not None
        self._tcp = port is None and not ping
        self._priority = DIRECT_PRIORITY if bypass else 0
        self._connecting: dict[int, socket.socket] = {}
        self._token = int.from_bytes(os.urandom(4), "big")
        self._waiting: dict[int, float] = {}
        self._answered: set[int] = set()
        self._newest = -1
        self._sockets = [self._udp_socket(target, port) for target in targets] if port else []
        if not self._udp and not self._tcp:
            self._sockets = [self._socket(socket.SOCK_DGRAM, socket.IPPROTO_ICMP)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (*self._sockets, *self._connecting.values()):
            sock.close()

    def _socket(self, kind: int, protocol: int = 0) -> socket.socket:
        sock = socket.socket(socket.AF_INET, kind | socket.SOCK_CLOEXEC, protocol)
        sock.setblocking(False)  # noqa: FBT003  # the standard library's signature
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, self._priority)
        return sock

    def _udp_socket(self, target: str, port: int) -> socket.socket:
        sock = self._socket(socket.SOCK_DGRAM)
        # With the link down there is no route: every send will be refused, which is counted.
        with contextlib.suppress(OSError):
            sock.connect((target, port))
        return sock

    @property
    def fds(self) -> list[int]:
        """What to wait for."""
        oldest = itertools.islice(self._connecting.values(), _WATCHED_MAX)
        return [sock.fileno() for sock in (*self._sockets, *oldest)]

    def frame_bytes(self, size_bytes: int) -> int:
        """How long a probe of `size_bytes`, or its answer, is at least on the wire."""
        return _TCP_RESET_BYTES if self._tcp else size_bytes + _HEADERS_BYTES

    @property
    def outstanding(self) -> int:
        """Probes that may still be answered."""
        limit = time.monotonic() - self.patience_s
        return sum(sent_s > limit for sent_s in self._waiting.values())

    @property
    def lost(self) -> int:
        """Probes that were not answered in time."""
        return len(self._waiting) - self.outstanding

    def send(self, count: int, size_bytes: int = SMALL_BYTES) -> int | None:
        """Send `count` probes, to the targets in turn; return the errno of the last refusal."""
        refusal = None
        for _ in range(count if self._targets else 0):
            number = self.seen.sent
            self.seen.sent += 1
            self._waiting[number] = time.monotonic()
            payload = _PAYLOAD.pack(self._token, number).ljust(size_bytes, b"\0")
            try:
                self._send_one(number, payload)
            except BlockingIOError:
                del self._waiting[number]
                break
            except OSError as error:
                # ENOBUFS: the queue on the way dropped it and says so to ICMP sockets.
                refusal = error.errno
                self.seen.refused += 1
                self._waiting.pop(number, None)
        return refusal

    def _send_one(self, number: int, payload: bytes) -> None:
        index = number % len(self._targets)
        if self._tcp:
            self._connect(number, self._targets[index])
            return
        if not self._udp:
            header = struct.pack("!BBHHH", _ECHO_REQUEST, 0, 0, 0, number & 0xFFFF)
            self._sockets[0].sendto(header + payload, (self._targets[index], 0))
            return
        try:
            self._sockets[index].send(payload)
        except ConnectionRefusedError:
            self._udp_answer(index, number)
            self._sockets[index].send(payload)

    def _connect(self, number: int, target: str) -> None:
        while len(self._connecting) >= _CONNECTING_MAX:
            self._connecting.pop(next(iter(self._connecting))).close()
        sock = self._socket(socket.SOCK_STREAM)
        error = sock.connect_ex((target, _CLOSED_TCP_PORT))
        if error == errno.EINPROGRESS:
            self._connecting[number] = sock
            return
        sock.close()
        if error in {0, errno.ECONNREFUSED}:
            self._answer(number)
        else:
            raise OSError(error, os.strerror(error))

    def _collect_connects(self) -> None:
        if not self._connecting:
            return
        poll = select.poll()
        for sock in self._connecting.values():
            poll.register(sock, select.POLLOUT)
        ready = {fd for fd, _ in poll.poll(0)}
        limit_s = time.monotonic() - self.patience_s
        for number, sock in list(self._connecting.items()):
            if sock.fileno() in ready:
                error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error in {0, errno.ECONNREFUSED}:
                    self._answer(number)
            elif self._waiting[number] > limit_s:
                continue
            # Given up before the kernel asks again, which would make a loss look like a delay.
            self._connecting.pop(number).close()

    def collect(self) -> None:
        """Read every answer that has come."""
        self._collect_connects()
        for index, sock in enumerate(self._sockets):
            while True:
                try:
                    data = sock.recv(2048)
                except BlockingIOError:
                    break
                except ConnectionRefusedError:
                    self._udp_answer(index, None)
                    continue
                except OSError as error:
                    if error.errno in {errno.ENOTCONN, errno.EDESTADDRREQ}:
                        break
                    continue  # an ICMP error, such as host unreachable: that probe is lost
                self._icmp_answer(data)

    def _icmp_answer(self, data: bytes) -> None:
        if len(data) < _ICMP_HEADER_BYTES + _PAYLOAD.size or data[0] != _ECHO_REPLY:
            return
        token, number = _PAYLOAD.unpack_from(data, _ICMP_HEADER_BYTES)
        if token == self._token:
            self._answer(number)

    def _udp_answer(self, index: int, sending: int | None) -> None:
        # A port-unreachable names no probe: it answers the oldest to that peer.
        mine = [n for n in self._waiting if n % len(self._targets) == index and n != sending]
        if mine:
            self._answer(min(mine))

    def _answer(self, number: int) -> None:
        if number in self._answered:
            self.seen.duplicates += 1
            return
        sent_s = self._waiting.pop(number, None)
        if sent_s is None:
            return
        self._answered.add(number)
        self.seen.answered += 1
        self.seen.overtaken += number < self._newest
        self._newest = max(self._newest, number)
        took_s = time.monotonic() - sent_s
        self.seen.longest_s = max(self.seen.longest_s, took_s)
        self.seen.shortest_s = min(self.seen.shortest_s, took_s)
