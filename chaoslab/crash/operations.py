"""Operations: what a save did to a file system, as values, in one order over all its threads.

Files are named by number, and a directory's entry by the directory's number and a name: so that an
entry stays what it is when a directory above it is renamed. Number 0 is the directory that was
watched. A number is never used again, as the kernel does with an inode.
"""

from __future__ import annotations

import dataclasses
from typing import Final

ROOT: Final = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operation:
    """One that has succeeded. thread: whose it was, for people."""

    thread: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A name in a directory."""

    directory: int
    name: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Make(Operation):
    """A new file, directory or symbolic link under a name. link_target: of a symbolic link."""

    at: Entry
    file: int
    is_directory: bool = False
    link_target: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link(Operation):
    """Another name for a file."""

    at: Entry
    file: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rename(Operation):
    """A file or directory under another name; what had that name before loses it, or swaps."""

    at: Entry
    to: Entry
    is_exchange: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remove(Operation):
    """A name that is gone: unlink or rmdir."""

    at: Entry


@dataclasses.dataclass(frozen=True, kw_only=True)
class Write(Operation):
    """Bytes at a place. is_durable: written with O_SYNC, O_DSYNC or RWF_(D)SYNC."""

    file: int
    offset: int
    data: bytes | bytearray
    is_durable: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resize(Operation):
    """A file of another size: truncate, O_TRUNC, or fallocate beyond the end."""

    file: int
    size_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Zero(Operation):
    """A range that reads as zeros: fallocate with PUNCH_HOLE or ZERO_RANGE."""

    file: int
    offset: int
    length: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sync(Operation):
    """fsync or fdatasync of a file or a directory."""

    file: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyncAll(Operation):
    """sync or syncfs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Begun(Operation):
    """The save of a step begins: until it is acknowledged it may be there or not."""

    step: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Acknowledged(Operation):
    """The save of a step has returned: from now on it must be there."""

    step: int


NAMING: Final = (Make, Link, Rename, Remove)
"""What changes directories."""

CHANGING: Final = (Write, Resize, Zero)
"""What changes a file's bytes."""
