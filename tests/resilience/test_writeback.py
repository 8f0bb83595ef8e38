"""The disk begins on a shard while it is still being written."""

from __future__ import annotations

import ctypes
import errno
import io
import os
from pathlib import Path

import pytest

from chaoslab.resilience import writeback
from chaoslab.resilience.writeback import STRETCH_BYTES, EarlyWriteback

SYS_CACHESTAT = 451
PIECE = os.urandom(1 << 20)
PIECES = 4 * (STRETCH_BYTES // len(PIECE))
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class CacheStat(ctypes.Structure):
    """What the kernel knows of a file's pages. Source: struct cachestat of linux/mman.h."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("cache", "dirty", "writeback", "evicted", "recently_evicted")
    ]


def dirty_bytes(fd: int) -> int:
    """Give how much of a file the disk has not begun on."""
    whole, found = (ctypes.c_uint64 * 2)(0, 0), CacheStat()
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    if syscall(SYS_CACHESTAT, fd, ctypes.byref(whole), ctypes.byref(found), 0) != 0:
        if ctypes.get_errno() == errno.ENOSYS:
            pytest.skip("cachestat(2) needs Linux 6.5 or newer")
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(found.dirty) * PAGE_BYTES


def test_the_disk_begins_before_the_file_is_whole(tmp_path: Path) -> None:
    """All but the last stretch is on its way when the last byte is written; else none is."""
    with (tmp_path / "early").open("wb") as early, (tmp_path / "late").open("wb") as late:
        eager = EarlyWriteback(early)
        for _ in range(PIECES):
            assert eager.write(PIECE) == late.write(PIECE) == len(PIECE)
        if dirty_bytes(late.fileno()) == 0:
            pytest.skip(f"{tmp_path} is on a file system that keeps no dirty pages")
        # A kernel short of memory writes by itself, so that the twin may have less than all.
        assert dirty_bytes(late.fileno()) > STRETCH_BYTES
        assert dirty_bytes(early.fileno()) <= STRETCH_BYTES
    assert (tmp_path / "early").read_bytes() == (tmp_path / "late").read_bytes()


def test_without_the_call_and_without_a_disk_it_is_a_file_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe refuses the call, and a system that has none is written to all the same."""
    read_fd, write_fd = os.pipe()
    with os.fdopen(read_fd, "rb") as reader, os.fdopen(write_fd, "wb", buffering=0) as writer:
        assert EarlyWriteback(writer, stretch_bytes=4).write(b"12345") == 5
        assert reader.read(5) == b"12345"
    monkeypatch.setattr(writeback, "_sync_file_range", None)
    with (tmp_path / "plain").open("wb") as file:
        assert EarlyWriteback(file, stretch_bytes=4).write(b"12345") == 5
    assert (tmp_path / "plain").read_bytes() == b"12345"


def test_what_the_file_refuses_is_raised() -> None:
    """An error of the file's own passes through."""
    closed = io.BytesIO()
    closed.close()
    with pytest.raises(ValueError, match="closed"):
        EarlyWriteback(closed).write(b"1")
