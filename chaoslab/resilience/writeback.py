"""Writeback: lets the disk begin on a file while the rest of it is still to come.

Else the disk idles until fsync, and a save takes the time to copy the bytes and then the disk's. It
makes nothing durable and takes no error away: fsync does the first and still reports the second,
since nothing is waited for here. Source: sync_file_range(2), SYNC_FILE_RANGE_WRITE.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

STRETCH_BYTES: Final = 8 << 20
_SYNC_FILE_RANGE_WRITE: Final = 2


def _library() -> Any:
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):  # not on Linux
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


_sync_file_range: Final = _library()


class EarlyWriteback:
    """A file's `write`, after which the disk begins on each stretch that is whole."""

    def __init__(self, file: Any, *, stretch_bytes: int = STRETCH_BYTES) -> None:
        self._file, self._stretch_bytes = file, stretch_bytes
        self._written_bytes = self._begun_bytes = 0

    def write(self, data: Any) -> int:
        """Write as the file does."""
        done = int(self._file.write(data))
        self._written_bytes += done
        if self._written_bytes - self._begun_bytes >= self._stretch_bytes:
            self._begin()
        return done

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()

    def _begin(self) -> None:
        """Have the disk begin; where that cannot be had, fsync does it all."""
        length_bytes = self._written_bytes - self._begun_bytes
        if _sync_file_range is not None:
            fd, begun = self._file.fileno(), self._begun_bytes
            _sync_file_range(fd, begun, length_bytes, _SYNC_FILE_RANGE_WRITE)
        self._begun_bytes = self._written_bytes
