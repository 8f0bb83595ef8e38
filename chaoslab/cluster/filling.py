"""Filling a file system to the last byte, and freeing it again."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Any, Final

FILLER: Final = ".chaoslab-filler"
_PROBE: Final = ".chaoslab-probe"
_CHUNK_BYTES: Final = 1 << 20


def fill(directory: Path, *, full: bool) -> dict[str, Any]:
    """Fill the file system of a directory, or free it again; then try to write a byte.

    Returns refused (the name of the error that the byte met, None where it was taken), free_bytes
    and t_s. Raises: OSError for whatever is no full disk.
    """
    filler = directory / FILLER
    if full:
        _take_all(filler)
    else:
        filler.unlink(missing_ok=True)
    refused = _refused(directory / _PROBE)
    status = os.statvfs(directory)
    free_bytes = status.f_bavail * status.f_frsize
    return {"refused": refused, "free_bytes": free_bytes, "t_s": time.monotonic()}


def _take_all(filler: Path) -> None:
    fd = os.open(filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = _CHUNK_BYTES
        zeros = memoryview(bytes(size))
        while size:
            try:
                os.write(fd, zeros[:size])
            except OSError as problem:
                if problem.errno != errno.ENOSPC:
                    raise
                size //= 2
    finally:
        os.close(fd)


def _refused(probe: Path) -> str | None:
    """Write one byte that the disk has to take, and take it back."""
    try:
        fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, b"x")
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as problem:
        if problem.errno != errno.ENOSPC:
            raise
        return errno.errorcode[problem.errno]
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    return None
