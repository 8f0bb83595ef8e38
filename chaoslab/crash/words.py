"""Words: what a crash took, as a person would say it."""

from __future__ import annotations

from collections.abc import Sequence

from chaoslab.crash.disk import Disk, Impossible
from chaoslab.crash.models import Crash, Loss
from chaoslab.crash.operations import (
    NAMING,
    ROOT,
    Acknowledged,
    Begun,
    Entry,
    Link,
    Make,
    Operation,
    Remove,
    Rename,
    Resize,
    Sync,
    Write,
    Zero,
)

_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


class Words:
    """Names the operations of a recording by the paths that they had then."""

    def __init__(self, operations: Sequence[Operation], start: Disk) -> None:
        self._operations = operations
        self._places: list[dict[int, str]] = []
        self._writes: dict[int, int] = {}
        disk, writes = start.copy(), dict[int, int]()
        for index, operation in enumerate(operations):
            before = _places(disk)
            try:
                disk.apply(operation)
            except Impossible as error:
                raise ValueError(f"operation {index}: {operation}: cannot have happened") from error
            self._places.append(_places(disk) | before)
            if isinstance(operation, Write):
                writes[operation.file] = self._writes[index] = writes.get(operation.file, 0) + 1

    def of_operation(self, index: int) -> str:
        """Name one operation."""
        operation = self._operations[index]
        match operation:
            case Make() | Link() | Rename() | Remove():
                return self._of_name(index, operation)
            case Write() | Resize() | Zero() | Sync():
                return self._of_file(index, operation)
            case Begun():
                return f"the beginning of the save of step {operation.step}"
            case Acknowledged():
                return f"the return of the save of step {operation.step}"
            case _:
                return "the sync of everything"

    def _of_name(self, index: int, operation: Make | Link | Rename | Remove) -> str:
        at = self._at(index, operation.at)
        match operation:
            case Rename():
                to = self._at(index, operation.to)
                how = "exchange" if operation.is_exchange else "rename"
                return f"the {how} of {at} {'and' if operation.is_exchange else 'to'} {to}"
            case Remove():
                return f"the removal of {at}"
            case Make(is_directory=True):
                return f"the creation of {at}/"
            case _:
                return f"the creation of {at}"

    def _of_file(self, index: int, operation: Write | Resize | Zero | Sync) -> str:
        file = self._of(index, operation.file)
        match operation:
            case Write():
                return f"the {_nth(self._writes[index])} write of {file}"
            case Resize():
                return f"the change of {file} to {operation.size_bytes} bytes"
            case Zero():
                return f"the hole in {file}"
            case _:
                return f"the fsync of {file or 'the directory'}"

    def of_crash(self, crash: Crash) -> str:
        """Say when a crash came, what it took, and what of the names survived all the same."""
        when = f"after {self.of_operation(crash.after - 1)}" if crash.after else "at the beginning"
        if not crash.losses:
            return f"{when}: nothing was lost"
        taken = "; ".join(self._of_loss(loss) for loss in crash.losses)
        lost = {loss.index for loss in crash.losses}
        first = crash.losses[0].index
        kept = [
            self.of_operation(index)
            for index in range(first + 1, crash.after)
            if index not in lost and isinstance(self._operations[index], NAMING)
        ]
        survived = f"; {kept[-1]} survived" if kept else ""
        return f"{when}: {taken}{survived}"

    def _of_loss(self, loss: Loss) -> str:
        what = self.of_operation(loss.index)
        piece = f"bytes {loss.begin} to {loss.end} of {what}"
        return {
            "lost": f"{what} did not survive",
            "torn": f"{what} was torn after {loss.begin} of {loss.end} bytes",
            "zeros": f"{piece} read as zeros",
            "garbage": f"{piece} read as something else",
        }[loss.kind]

    def _at(self, index: int, entry: Entry) -> str:
        above = self._places[index].get(entry.directory, f"directory {entry.directory}")
        return f"{above}/{entry.name}" if above else entry.name

    def _of(self, index: int, file: int) -> str:
        return self._places[index].get(file, f"file {file}, which has no name")


def _places(disk: Disk) -> dict[int, str]:
    return {ROOT: ""} | {number: path for path, number in disk.paths()}


def _nth(number: int) -> str:
    is_teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if is_teen else _ENDINGS.get(number % 10, 'th')}"
