"""Savers on a real file system, each with one thing left out, and a restore that takes the last."""

from __future__ import annotations

import os
from pathlib import Path

SIZE_BYTES = 3 * 8192


def body(step: int) -> bytes:
    return bytes([step]) * SIZE_BYTES


def sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def write(path: Path, step: int, *, is_synced: bool = True) -> None:
    with path.open("wb", buffering=0) as file:
        for begin in range(0, SIZE_BYTES, 8192):
            file.write(body(step)[begin : begin + 8192])
        if is_synced:
            os.fsync(file.fileno())


def plain(root: Path, step: int) -> None:
    write(root / f"step-{step}", step, is_synced=False)


def in_place(root: Path, step: int) -> None:
    write(root / "last", step)
    sync(root)


def no_sync(root: Path, step: int) -> None:
    write(root / "draft", step, is_synced=False)
    (root / "draft").replace(root / "last")


def no_file_sync(root: Path, step: int) -> None:
    no_sync(root, step)
    sync(root)


def no_directory_sync(root: Path, step: int) -> None:
    write(root / "draft", step)
    (root / "draft").replace(root / "last")


def correct(root: Path, step: int) -> None:
    no_directory_sync(root, step)
    sync(root)


def pruned_first(root: Path, step: int) -> None:
    write(root / "draft", step)
    (root / "last").unlink(missing_ok=True)
    (root / "draft").rename(root / "last")
    sync(root)


def sync_before_flush(root: Path, step: int) -> None:
    with (root / "draft").open("wb") as file:
        file.write(body(step)[:-100])
        os.fsync(file.fileno())
        file.write(body(step)[-100:])  # in Python's buffer until the file is closed
    (root / "draft").replace(root / "last")
    sync(root)


def restore(root: Path) -> bytes | None:
    """Take the newest of what is there, of whatever length."""
    names = sorted(path for path in root.iterdir() if path.name != "draft")
    return names[-1].read_bytes() if names else None


def careful(root: Path) -> bytes | None:
    """Take the newest that is whole."""
    names = sorted(path for path in root.iterdir() if path.name != "draft")
    for path in reversed(names):
        data = path.read_bytes()
        if data and data == body(data[0]):
            return data
    return None
