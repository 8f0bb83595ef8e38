"""Saving: the files of a save in progress, and how ranks meet through them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from chaoslab.resilience.errors import SaveAbandoned, SaveTimedOut

FAILED: Final = ".failed"
NOTE: Final = ".note"
POLL_S: Final = 0.002

StopReason = Callable[[], str | None]
"""Asked while a rank waits for its peers: a reason ends the wait, None lets it go on."""


class DigestingFile:
    """What torch.save writes to: passes bytes on and folds them into a digest."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._sum = hashlib.blake2b()
        self.size_bytes = 0

    def write(self, data: Any) -> int:
        """Write all of the data."""
        self._sum.update(data)
        self.size_bytes += len(data)
        return int(self._file.write(data))

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()

    @property
    def digest(self) -> str:
        """Give the BLAKE2b digest (hex) of what was written."""
        return self._sum.hexdigest()


def remove_unlocked(path: Path) -> bool:
    """Remove a directory unless a process holds its lock."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


@contextlib.contextmanager
def shared_lock(work: Path) -> Iterator[None]:
    """Make the directory and hold its lock, which ends with the process, however it ends."""
    work.mkdir(parents=True, exist_ok=True)
    fd = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def names_unless_failed(work: Path) -> set[str]:
    """List a save's files. Raises: SaveAbandoned when a rank has given up; FileNotFoundError."""
    names = set(os.listdir(work))  # noqa: PTH208 - one call in a polling loop
    failed = sorted(name.removesuffix(FAILED) for name in names if name.endswith(FAILED))
    if failed:
        raise SaveAbandoned(f"{work.name}: {failed[0]} could not be written; see that rank's error")
    return names


def pause(deadline_s: float, should_stop: StopReason, awaited: str) -> None:
    """Wait a little for what is awaited.

    Raises: SaveAbandoned when told to stop; SaveTimedOut at the deadline.
    """
    reason = should_stop()
    if reason is not None:
        raise SaveAbandoned(f"waited for {awaited}: {reason}")
    if time.monotonic() > deadline_s:
        raise SaveTimedOut(f"waited for {awaited}: the deadline has passed")
    time.sleep(POLL_S)


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def advice(work: Path, error: Exception) -> str:
    """Word a failed write, with what is wanted."""
    return (
        f"{work.parent}: cannot save: {error}; want a writable directory with room for another "
        "checkpoint beside those kept"
    )
