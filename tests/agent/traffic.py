"""Numbered, time-stamped UDP packets between two nodes, and what became of them."""

from __future__ import annotations

import math
import select
import socket
import struct
import time
import zlib
from dataclasses import dataclass, field
from itertools import pairwise

SO_TIMESTAMPNS = 35
HEADERS_BYTES = 42
Z_ONE_IN_A_MILLION = 4.8916
"""Two-sided quantile of the normal distribution for a chance of 1e-6."""

_STAMP = struct.Struct("!IQI")


@dataclass(kw_only=True)
class Exchange:
    """What was sent and what arrived, in order of arrival; times in seconds of wall-clock time."""

    sent: int
    numbers: list[int] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)
    arrivals_s: list[float] = field(default_factory=list)
    damaged: int = 0

    @property
    def missing(self) -> int:
        return self.sent - len(set(self.numbers))

    @property
    def duplicates(self) -> int:
        return len(self.numbers) - len(set(self.numbers))

    def bursts(self) -> list[int]:
        """Lengths of the runs of consecutive missing numbers."""
        there = set(self.numbers)
        runs, run = [], 0
        for number in range(self.sent):
            if number not in there:
                run += 1
            elif run:
                runs.append(run)
                run = 0
        return runs + ([run] if run else [])

    def delays_by_number(self) -> list[float]:
        return [delay for _, delay in sorted(zip(self.numbers, self.delays_s, strict=True))]


def exchange(
    sender: socket.socket,
    receiver: socket.socket,
    count: int,
    *,
    size_bytes: int = 64,
    interval_s: float = 0.0,
    quiet_s: float = 0.3,
) -> Exchange:
    """Send `count` packets, read until all have come or none has for `quiet_s`."""
    receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    receiver.settimeout(0)
    target, found = receiver.getsockname(), Exchange(sent=count)
    next_s = time.monotonic()
    for number in range(count):
        while interval_s and (left_s := next_s - time.monotonic()) > 0:
            if select.select([receiver], [], [], left_s)[0]:
                _read(receiver, found)
        next_s += interval_s
        body = bytes(size_bytes - _STAMP.size)
        stamp = time.time_ns()
        check = zlib.crc32(struct.pack("!IQ", number, stamp) + body)
        sender.sendto(_STAMP.pack(number, stamp, check) + body, target)
        if number % 64 == 0:
            _read(receiver, found)
    while select.select([receiver], [], [], quiet_s)[0]:
        _read(receiver, found)
    return found


def _read(receiver: socket.socket, found: Exchange) -> None:
    while True:
        try:
            data, control, _, _ = receiver.recvmsg(2048, 128)
        except BlockingIOError:
            return
        number, stamp, check = _STAMP.unpack_from(data)
        if zlib.crc32(struct.pack("!IQ", number, stamp) + data[_STAMP.size :]) != check:
            found.damaged += 1
            continue
        seconds, nanoseconds = struct.unpack_from("=qq", control[0][2])
        found.numbers.append(number)
        found.delays_s.append(seconds + nanoseconds / 1e9 - stamp / 1e9)
        found.arrivals_s.append(seconds + nanoseconds / 1e9)


def binomial_margin(count: int, ratio: float, inflation: float = 1.0) -> float:
    """How far a count of hits may stray from count*ratio, chance 1e-6 two-sided.

    inflation: variance over that of independent draws, (1 + l) / (1 - l) for a two-state chain with
    second eigenvalue l.
    """
    return Z_ONE_IN_A_MILLION * math.sqrt(count * ratio * (1 - ratio) * inflation) + 1


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def deviation(values: list[float]) -> float:
    middle = mean(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / len(values))


def autocorrelation(values: list[float]) -> float:
    """Correlation of each value with the one before it."""
    middle = mean(values)
    pairs = pairwise(values)
    total = sum((value - middle) ** 2 for value in values)
    return sum((a - middle) * (b - middle) for a, b in pairs) / total
