"""Follows the event files of the ranks and feeds their lines into the history."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Final

from chaoslab.feed import Feed
from chaoslab.history import MAX_LINE_BYTES, RANK_KINDS, Event, event_from_json

_POLL_S: Final = 0.005
_READ_BYTES: Final = 1 << 18
_MAX_EVENTS: Final = 500_000
"""Events taken from one rank: a job that floods its file must not fill the harness's memory."""


class EventFile:
    """One rank's event file, read as it grows. offset_s: added to its times."""

    def __init__(self, path: Path, *, rank: int, node: int, offset_s: float = 0.0) -> None:
        self.path = path
        self._offset_s = offset_s
        self._rank = rank
        self._node = node
        self._fd = -1
        self._rest = b""
        self._skipping = False
        self._count = 0

    def read_new(self, feed: Feed) -> bool:
        """Feed the lines that are new. Returns whether there were any bytes."""
        if self._fd < 0:
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
        data = os.read(self._fd, _READ_BYTES)
        if not data:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self._skipping:
                self._skipping = False
                continue
            self._take(line, feed)
        if len(self._rest) > MAX_LINE_BYTES:
            if not self._skipping:
                self._malformed(self._rest, "longer than 64 KiB", feed)
            self._rest, self._skipping = b"", True
        return True

    def _take(self, line: bytes, feed: Feed) -> None:
        self._count += 1
        if self._count > _MAX_EVENTS:
            if self._count == _MAX_EVENTS + 1:
                self._malformed(line, f"more than {_MAX_EVENTS} events: the rest is left out", feed)
            return
        if len(line) > MAX_LINE_BYTES:
            self._malformed(line, "longer than 64 KiB", feed)
            return
        try:
            event = event_from_json(line.decode("utf-8"))
        except ValueError as problem:
            self._malformed(line, str(problem), feed)
            return
        if event.rank != self._rank or event.kind not in RANK_KINDS:
            self._malformed(line, "not an event of this rank", feed)
            return
        feed.add(_placed(event, self._node, self._offset_s))

    def _malformed(self, line: bytes, problem: str, feed: Feed) -> None:
        excerpt = line[:200].decode("utf-8", errors="replace")
        feed.note("malformed", rank=self._rank, node=self._node, excerpt=excerpt, problem=problem)

    def close(self, feed: Feed) -> None:
        """Read to the end; a line without its newline is a torn one, and said.

        To the end as it is now: a child of the rank's may live on and write for ever.
        """
        self.read_new(feed)  # opens it, if that was not done
        if self._fd >= 0:
            end_bytes = os.fstat(self._fd).st_size
            while os.lseek(self._fd, 0, os.SEEK_CUR) < end_bytes and self.read_new(feed):
                pass
        if self._rest and not self._skipping:
            self._malformed(self._rest, "the last line was cut off", feed)
            self._rest = b""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1


def _placed(event: Event, node: int, offset_s: float) -> Event:
    if event.node == node and not offset_s:
        return event
    return Event(
        t_s=event.t_s + offset_s,
        kind=event.kind,
        rank=event.rank,
        node=node,
        incarnation=event.incarnation,
        fields=event.fields,
    )


class Tail:
    """Follows all event files of a run, until it is cancelled."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._files: dict[Path, EventFile] = {}

    def follow(self, path: Path, *, rank: int, node: int, offset_s: float = 0.0) -> None:
        """Follow one more file; it need not exist yet. offset_s: added to its times."""
        self._files[path] = EventFile(path, rank=rank, node=node, offset_s=offset_s)

    def finish(self, path: Path) -> None:
        """Read a file to its end, its writer being gone, and follow it no more."""
        file = self._files.pop(path, None)
        if file is not None:
            file.close(self._feed)

    def read_all(self) -> bool:
        """Read whatever is new now. Returns whether there was anything."""
        read = [file.read_new(self._feed) for file in self._files.values()]
        return any(read)

    async def run(self) -> None:
        """Read for ever; polling, since a rank's file may lie where inotify does not reach."""
        while True:
            self.read_all()
            await asyncio.sleep(_POLL_S)
