"""StoreClient: talks to the store; no call lasts longer than its own deadline.

A frozen or unreachable store gives StoreTimeout, never a hang. Every retry opens a new
connection, because TCP's own retransmission timer doubles and outlives a cut that has healed.
Retries back off with full jitter: the clients of a store that was away must not come back at once.
"""

from __future__ import annotations

import itertools
import math
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final, Self

from chaoslab import probe
from chaoslab.resilience import frames
from chaoslab.resilience.backoff import Backoff
from chaoslab.resilience.errors import StoreError, StoreTimeout
from chaoslab.resilience.table import OK, REFUSED, TIMEOUT

FIRST_ATTEMPT_S: Final = 1.0
"""Limit of the first attempt; it doubles, so that a slow link is not mistaken for a dead one."""

LONGEST_ATTEMPT_S: Final = 8.0
WAIT_SLICE_S: Final = 2.0
"""A long wait is asked for in slices, so that a connection that died meanwhile is noticed."""

ANSWER_MARGIN_S: Final = 0.05
"""The store is asked to wait this much less than the deadline, to leave time for its answer."""

LONGEST_MARGIN_S: Final = 0.4
"""What that grows to where answers come too late: half a second of round trip is a slow link."""


class StoreClient:
    """A client of the store; threads may share it, each call uses a connection of its own.

    host, port: the store's address; an IP address, since resolving a name has no deadline.
    timeout_s: deadline of a call that states none. backoff: the waits between the tries of one
    call (None: 0.25 s at first, 2 s at most, at random); give it a seed of this rank's own.

    A try that follows one that failed, or that `suspect` was called before, is told as an event
    `attempt`.
    """

    def __init__(
        self, host: str, port: int, *, timeout_s: float = 5.0, backoff: Backoff | None = None
    ) -> None:
        if not 0 < timeout_s < math.inf:
            raise ValueError(
                f"StoreClient(timeout_s={timeout_s}): want seconds, above 0 and finite"
            )
        self.address = (host, port)
        self.timeout_s = timeout_s
        self.backoff = backoff or Backoff(
            base_s=0.25, cap_s=2.0, seed=int.from_bytes(os.urandom(8))
        )
        self.local_host: str | None = None
        self._idle: list[socket.socket] = []
        self._busy: set[socket.socket] = set()
        self._closed = threading.Event()
        self._suspect = False
        self._margin_s = ANSWER_MARGIN_S

    def again(self, *, timeout_s: float) -> Self:
        """Give another client of the same store, with connections of its own."""
        return type(self)(*self.address, timeout_s=timeout_s, backoff=self.backoff)

    def suspect(self) -> None:
        """Tell that something has failed: the next try counts as one to connect again."""
        self._suspect = True

    def set(self, key: str, value: bytes, *, timeout_s: float | None = None) -> None:
        """Give a key its value. Raises: StoreTimeout."""
        self._call(b"set", [key.encode(), value], timeout_s)

    def multi_set(self, values: Mapping[str, bytes], *, timeout_s: float | None = None) -> None:
        """Give several keys their values in one step. Raises: StoreTimeout."""
        pairs = [field for key, value in values.items() for field in (key.encode(), value)]
        self._call(b"set", pairs, timeout_s)

    def get(self, key: str, *, timeout_s: float | None = None) -> bytes | None:
        """Give a value, or None for a key that has none. Raises: StoreTimeout."""
        return self.multi_get([key], timeout_s=timeout_s)[0]

    def multi_get(
        self, keys: Sequence[str], *, timeout_s: float | None = None
    ) -> list[bytes | None]:
        """Give several values, None for a key that has none. Raises: StoreTimeout."""
        found = self._call(b"get", [key.encode() for key in keys], timeout_s)
        return [value[1:] if value[:1] == b"\1" else None for value in found]

    def add(self, key: str, amount: int, *, timeout_s: float | None = None) -> int:
        """Add to a number (a missing one is 0) and give the sum. Raises: StoreTimeout."""
        return int(self._call(b"add", [key.encode(), str(amount).encode()], timeout_s)[0])

    def append(self, key: str, more: bytes, *, timeout_s: float | None = None) -> None:
        """Add bytes to the end of a value. Raises: StoreTimeout."""
        self._call(b"append", [key.encode(), more], timeout_s)

    def compare_set(
        self, key: str, expected: bytes, desired: bytes, *, timeout_s: float | None = None
    ) -> bytes:
        """Set a value if it is the expected one (b"" for none); give the value that holds now.

        Raises: StoreTimeout.
        """
        return self._call(b"compare_set", [key.encode(), expected, desired], timeout_s)[0]

    def delete(self, key: str, *, timeout_s: float | None = None) -> bool:
        """Remove a key; tell whether it was there. Raises: StoreTimeout."""
        return self._call(b"delete", [key.encode()], timeout_s)[0] == b"1"

    def forget(self, prefixes: Sequence[str], *, below: int, timeout_s: float | None = None) -> int:
        """Remove the keys PREFIX/NUMBER/... of every number below one; give how many they were.

        Raises: StoreTimeout.
        """
        fields = [str(below).encode(), *(prefix.encode() for prefix in prefixes)]
        return int(self._call(b"forget", fields, timeout_s)[0])

    def num_keys(self, *, timeout_s: float | None = None) -> int:
        """Count the keys. Raises: StoreTimeout."""
        return int(self._call(b"num_keys", [], timeout_s)[0])

    def check(self, keys: Sequence[str], *, timeout_s: float | None = None) -> bool:
        """Tell whether every key has a value. Raises: StoreTimeout."""
        return all(value is not None for value in self.multi_get(keys, timeout_s=timeout_s))

    def ping(self, *, timeout_s: float | None = None) -> float:
        """Give the seconds that the store took to answer. Raises: StoreTimeout."""
        start_s = time.monotonic()
        self._call(b"ping", [], timeout_s)
        return time.monotonic() - start_s

    def wait(self, keys: Sequence[str], *, timeout_s: float | None = None) -> None:
        """Wait until every key has a value. Raises: StoreTimeout naming them."""
        fields = [key.encode() for key in keys]
        if self._wait(b"wait", fields, timeout_s) is None:
            raise StoreTimeout(
                f"keys {list(keys)}: not all set within {timeout_s or self.timeout_s} s"
            )

    def wait_change(
        self,
        key: str,
        known: bytes,
        *,
        or_all: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> bytes | None:
        """Wait until a value differs from the known one (b"" for none) and give it.

        or_all: the wait also ends, with the known value, once all of these keys have a value.
        Gives None when neither happened in time. Raises: StoreTimeout when the store could not
        be asked.
        """
        fields = [key.encode(), known, *(other.encode() for other in or_all)]
        answer = self._wait(b"wait_change", fields, timeout_s)
        return None if answer is None else answer[0]

    def close(self) -> None:
        """End every connection; calls in progress in other threads fail at once."""
        self._closed.set()
        for sock in list(self._busy):
            _shut(sock)
        while self._idle:
            self._idle.pop().close()

    def _wait(
        self, operation: bytes, fields: Sequence[bytes], timeout_s: float | None
    ) -> list[bytes] | None:
        """Ask in slices until the condition holds; None when the store says that it does not."""
        deadline_s = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        while True:
            left_s = max(deadline_s - time.monotonic(), 0.0)
            slice_s = min(max(left_s - self._margin_s, 0.0), WAIT_SLICE_S)
            request = [operation, f"{slice_s:.6f}".encode(), *fields]
            try:
                answer = self._request(request, left_s, waits_s=slice_s)
            except StoreTimeout:
                # The link may be slow: leave more time for the answer than was left for this one.
                self._margin_s = min(4 * self._margin_s, LONGEST_MARGIN_S)
                raise
            if answer[0] == OK:
                return answer[1:]
            if slice_s < ANSWER_MARGIN_S:
                return None

    def _call(
        self, operation: bytes, fields: Sequence[bytes], timeout_s: float | None
    ) -> list[bytes]:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        return self._request([operation, *fields], limit_s)[1:]

    def _request(self, request: list[bytes], limit_s: float, waits_s: float = 0.0) -> list[bytes]:
        """Send a request until it is answered, each time on a connection that has not failed."""
        frame = frames.pack([_fresh_name(), *request])
        end_s, problem, failed = time.monotonic() + limit_s, "no attempt was made", 0
        while (left_s := end_s - time.monotonic()) > 0:
            if self._closed.is_set():
                raise StoreError(f"{request[0].decode()}: this client has been closed")
            attempt_s = min(FIRST_ATTEMPT_S * 2**failed, LONGEST_ATTEMPT_S)
            self._tell_attempt()
            try:
                answer = self._attempt(frame, min(left_s, attempt_s + waits_s))
            except OSError as error:
                problem = str(error) or type(error).__name__
                self._pause(failed, end_s)
                failed += 1
                continue
            self._suspect = False
            if answer[0] == REFUSED:
                raise StoreError(f"store refused: {answer[1].decode(errors='replace')}")
            if answer[0] not in (OK, TIMEOUT):
                raise StoreError(f"store answered {answer[0][:40]!r}: is it another program?")
            return answer
        host, port = self.address
        raise StoreTimeout(
            f"store {host}:{port}, {request[0].decode()}: no answer within {limit_s:.3g} s "
            f"({problem}); is the store running and reachable from here?"
        )

    def _tell_attempt(self) -> None:
        if self._suspect:
            probe.emit("attempt", what="store")

    def _pause(self, failed: int, end_s: float) -> None:
        """Wait before the next try, not beyond the end of the call, nor a close."""
        self._suspect = True
        self._closed.wait(min(self.backoff.wait_s(failed), max(end_s - time.monotonic(), 0.0)))

    def _attempt(self, frame: bytes, limit_s: float) -> list[bytes]:
        """Exchange one frame within the limit; the connection is kept only when that worked."""
        deadline_s = time.monotonic() + limit_s
        sock = self._take(limit_s)
        self._busy.add(sock)
        try:
            sock.settimeout(max(deadline_s - time.monotonic(), 0.001))
            sock.sendall(frame)
            size = frames.body_bytes(_receive(sock, frames.LENGTH.size, deadline_s))
            answer = frames.unpack(_receive(sock, size, deadline_s))
        except BaseException:
            self._busy.discard(sock)
            sock.close()
            raise
        self._busy.discard(sock)
        if self._closed.is_set():
            sock.close()
        else:
            self._idle.append(sock)
        return answer or [b""]

    def _take(self, limit_s: float) -> socket.socket:
        try:
            return self._idle.pop()
        except IndexError:
            sock = socket.create_connection(self.address, timeout=limit_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.local_host = sock.getsockname()[0]
        return sock


_numbers = itertools.count(1)
_prefix = [os.urandom(12)]
os.register_at_fork(after_in_child=lambda: _prefix.__setitem__(0, os.urandom(12)))


def _fresh_name() -> bytes:
    """Name a request as no other of any process: the store does each name once."""
    return _prefix[0] + str(next(_numbers)).encode()


def _receive(sock: socket.socket, size: int, deadline_s: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        sock.settimeout(left_s)
        more = sock.recv(min(size - len(data), 1 << 20))
        if not more:
            raise ConnectionResetError("connection closed by the store")
        data += more
    return bytes(data)


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # not connected any more: nothing to wake
