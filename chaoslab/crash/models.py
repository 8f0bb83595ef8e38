"""Models: what a crash may take, by what the file system promises.

| model | directories | bytes of a file |
|---|---|---|
| kill | all survive: the kernel lives on | all; the last write may be torn at a page |
| journal | in order: the last ones go | the last ones go; overwritten pages any |
| xfs | in order, likewise | any sector may go, and reads as zeros |
| posix | any that no fsync of its directory kept | any byte may go, and reads as anything |

kill: a process dies. Linux copies a write page by page and looks for a fatal signal in between.
Source: generic_perform_write of mm/filemap.c.

journal: ext4 with data=ordered. An fsync of anything commits every change of a directory before it;
bytes reach the disk before the size that shows them. No mercy for renames is assumed (ext4's
auto_da_alloc). Source: Documentation/admin-guide/ext4.rst, "data=ordered", "delalloc".

xfs: the log is in order, too; bytes of one file are written in any order, and the size follows.
Source: xfs_setfilesize of fs/xfs/xfs_aops.c.

posix: what fsync(2) and nothing else promises: a new name needs an fsync of its directory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final, Literal

from chaoslab.crash.durability import Durability
from chaoslab.crash.operations import CHANGING, NAMING, Operation, Resize, Write

PAGE_BYTES: Final = 4096
SECTOR_BYTES: Final = 512

Bytes = Literal["all", "first", "any", "garbage"]


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Loss:
    """What has become of one operation. index: its place in the recording.

    lost: it did not reach the disk. Of a write's bytes begin..end: torn: they did not (and end is
    its end); zeros: they read as zeros; garbage: as anything.
    """

    index: int
    kind: Literal["lost", "torn", "zeros", "garbage"] = "lost"
    begin: int = 0
    end: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Crash:
    """After so many operations; what was lost, in the order of the recording."""

    after: int
    losses: tuple[Loss, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """is_ordered: changes of directories survive in order. data: which bytes survive.

    unit_bytes: in what pieces of a file, counted from its beginning.
    """

    name: str
    is_ordered: bool
    data: Bytes
    unit_bytes: int

    def allows(self, operations: Sequence[Operation], crash: Crash) -> bool:
        """Tell whether a crash may do that. What cannot be built at all is not asked here."""
        losable = (*NAMING, *CHANGING)
        if not all(isinstance(operations[loss.index], losable) for loss in crash.losses):
            return False
        if self.data == "all":
            return not crash.losses or self._is_cut_of_the_last(operations, crash)
        durability = Durability(operations, crash.after)
        lost = {loss.index for loss in crash.losses if loss.kind == "lost"}
        return self._allows_names(durability, crash, lost) and all(
            self._allows_bytes(operations, changes, crash, lost)
            for changes in _changes(operations, durability, crash)
        )

    def _is_cut_of_the_last(self, operations: Sequence[Operation], crash: Crash) -> bool:
        (loss, *others) = crash.losses
        write = operations[loss.index]
        return (
            not others
            and loss.index == crash.after - 1
            and isinstance(write, Write)
            and self._is_tear(write, loss)
        )

    def _is_tear(self, write: Write, loss: Loss) -> bool:
        is_inside = 0 < loss.begin < len(write.data) == loss.end
        return loss.kind == "torn" and is_inside and self._is_border(write, loss.begin)

    def _is_border(self, write: Write, place: int) -> bool:
        at = write.offset + place
        return at % self.unit_bytes == 0 or place in (0, len(write.data))

    def _allows_names(self, durability: Durability, crash: Crash, lost: set[int]) -> bool:
        pending = durability.pending_names(by_directory=not self.is_ordered)
        names = {
            loss.index
            for loss in crash.losses
            if isinstance(durability.operations[loss.index], NAMING)
        }
        if not names <= set(pending) or not names <= lost:
            return False
        if not self.is_ordered:
            return True
        ordered = durability.pending_ordered()
        gone = [index in lost for index in ordered]
        return gone == sorted(gone)

    def _allows_bytes(
        self, operations: Sequence[Operation], changes: Changes, crash: Crash, lost: set[int]
    ) -> bool:
        losses = {loss.index: loss for loss in crash.losses}
        is_cut = is_unsized = False
        for index in changes.all:
            loss, operation = losses.get(index), operations[index]
            if loss is None:
                if is_unsized or (is_cut and index in changes.extending):
                    return False
                continue
            if index not in changes.pending or not self._allows_loss(operation, loss):
                return False
            if self.data == "first" and index in changes.extending:
                if is_cut and index not in lost:
                    return False
                is_cut = True
            if isinstance(operation, Resize) and self.data != "garbage":
                is_unsized = True
        return True

    def _allows_loss(self, operation: Operation, loss: Loss) -> bool:
        if loss.kind == "lost":
            return True
        if not isinstance(operation, Write):
            return False
        if loss.kind == "torn":
            return self._is_tear(operation, loss)
        is_inside = 0 <= loss.begin < loss.end <= len(operation.data)
        is_whole = self._is_border(operation, loss.begin) and self._is_border(operation, loss.end)
        kinds = {"any": ("zeros",), "garbage": ("zeros", "garbage")}.get(self.data, ())
        return is_inside and is_whole and loss.kind in kinds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Changes:
    """The changes of one file's bytes. extending: those after which it is longer."""

    all: tuple[int, ...]
    pending: frozenset[int]
    extending: frozenset[int]


def _changes(
    operations: Sequence[Operation], durability: Durability, crash: Crash
) -> list[Changes]:
    """Give the changes of every file that a crash touches."""
    pending = durability.pending_changes()
    touched = {getattr(operations[loss.index], "file", None) for loss in crash.losses}
    return [
        changes_of(operations, file, pending.get(file, []), crash.after)
        for file in sorted(file for file in touched if file is not None)
    ]


def changes_of(
    operations: Sequence[Operation], file: int, pending: Sequence[int], after: int
) -> Changes:
    """Give the changes of a file's bytes among the first operations."""
    indexes: list[int] = []
    extending: list[int] = []
    size_bytes = 0
    for index, operation in enumerate(operations[:after]):
        if getattr(operation, "file", None) != file:
            continue
        if isinstance(operation, Write):
            end = operation.offset + len(operation.data)
            if end > size_bytes:
                extending.append(index)
            size_bytes = max(size_bytes, end)
        elif isinstance(operation, Resize):
            size_bytes = operation.size_bytes
        elif isinstance(operation, NAMING) or not hasattr(operation, "offset"):
            continue
        indexes.append(index)
    return Changes(all=tuple(indexes), pending=frozenset(pending), extending=frozenset(extending))


KILL: Final = Model(name="kill", is_ordered=True, data="all", unit_bytes=PAGE_BYTES)
JOURNAL: Final = Model(name="journal", is_ordered=True, data="first", unit_bytes=PAGE_BYTES)
XFS: Final = Model(name="xfs", is_ordered=True, data="any", unit_bytes=SECTOR_BYTES)
POSIX: Final = Model(name="posix", is_ordered=False, data="garbage", unit_bytes=1)
MODELS: Final = {model.name: model for model in (KILL, JOURNAL, XFS, POSIX)}
