"""Removal: giving back the space of what is out of sight, while training goes on."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from chaoslab.resilience import saving

LARGE_BYTES: Final = 16 << 20
"""From here on a file system takes longer to remove a checkpoint than a thread takes to start."""

Delete = Callable[[Path, int], None]
"""Deletes a directory of ours that has a name nobody looks for, and gives its lock back."""


def delete(trash: Path, lock: int) -> None:
    """Delete it before this call is over."""
    try:
        shutil.rmtree(trash, ignore_errors=True)
    finally:
        saving.unlock(lock)


class Remover:
    """Deletes large directories in a thread, small ones before the call is over.

    What a process leaves undone when it dies the next sweep does: the name says what it is.
    """

    def __init__(self, large_bytes: int = LARGE_BYTES) -> None:
        self._large_bytes = large_bytes
        self._threads: list[threading.Thread] = []

    def delete(self, trash: Path, lock: int) -> None:
        """Delete it, or begin to."""
        if _size_bytes(trash) < self._large_bytes:
            delete(trash, lock)
            return
        thread = threading.Thread(target=delete, args=(trash, lock), name=f"removal of {trash}")
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter is about to end
            delete(trash, lock)
        else:
            self._threads.append(thread)

    def wait(self, limit_s: float) -> bool:
        """Wait until all is deleted; tell whether it is."""
        end_s = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        return not self._threads


def _size_bytes(directory: Path) -> int:
    """Add up the files' sizes; 0 where that cannot be told."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    return 0
