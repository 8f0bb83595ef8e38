"""Durability: what of a recording is on the disk for sure, when its first operations were done."""

from __future__ import annotations

from collections.abc import Sequence

from chaoslab.crash.operations import (
    CHANGING,
    NAMING,
    Link,
    Make,
    Operation,
    Remove,
    Rename,
    Resize,
    Sync,
    SyncAll,
    Write,
    Zero,
)


class Durability:
    """Of the first `after` operations of a recording.

    committed: the last operation that had the file system write its journal, -1 for none.
    """

    def __init__(self, operations: Sequence[Operation], after: int) -> None:
        self.operations, self.after = operations, after
        self.committed = self._all = -1
        self._synced: dict[int, int] = {}
        for index, operation in enumerate(operations[:after]):
            if isinstance(operation, Sync):
                self._synced[operation.file] = self.committed = index
            elif isinstance(operation, SyncAll):
                self._all = self.committed = index
            elif isinstance(operation, Write) and operation.is_durable:
                self.committed = index

    def pending_names(self, *, by_directory: bool) -> list[int]:
        """List the changes of directories that may be lost.

        by_directory: each needs an fsync of its own directory; else any fsync takes all before it.
        """
        return [
            index
            for index, operation in enumerate(self.operations[: self.after])
            if isinstance(operation, NAMING)
            and index > self._synced_at(directories_of(operation), by_directory=by_directory)
        ]

    def pending_ordered(self) -> list[int]:
        """List what goes through the journal and may be lost: changes of directories and sizes."""
        return [
            index
            for index, operation in enumerate(self.operations[: self.after])
            if isinstance(operation, (*NAMING, Resize)) and index > self.committed
        ]

    def pending_changes(self) -> dict[int, list[int]]:
        """List the changes of bytes that may be lost, by file."""
        found: dict[int, list[int]] = {}
        for index, operation in enumerate(self.operations[: self.after]):
            if isinstance(operation, CHANGING) and not self._is_kept(index, operation):
                found.setdefault(operation.file, []).append(index)
        return found

    def _synced_at(self, directories: set[int], *, by_directory: bool) -> int:
        if not by_directory:
            return self.committed
        return max(self._all, min(self._synced.get(number, -1) for number in directories))

    def _is_kept(self, index: int, operation: Write | Resize | Zero) -> bool:
        if isinstance(operation, Write) and operation.is_durable:
            return True
        return index < max(self._synced.get(operation.file, -1), self._all)


def directories_of(operation: Make | Link | Rename | Remove) -> set[int]:
    """Give the directories whose entries an operation changes."""
    if isinstance(operation, Rename):
        return {operation.at.directory, operation.to.directory}
    return {operation.at.directory}
