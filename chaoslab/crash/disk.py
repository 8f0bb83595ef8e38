"""A disk: directories and files in memory, to which operations are applied one by one."""

from __future__ import annotations

import dataclasses

from chaoslab.crash.operations import (
    ROOT,
    Entry,
    Link,
    Make,
    Operation,
    Remove,
    Rename,
    Resize,
    Write,
    Zero,
)


class Impossible(Exception):
    """An operation that cannot be: what it needs was lost. Such a state does not exist."""


@dataclasses.dataclass
class Disk:
    """directories: the entries of each directory, by its number. files: each file's bytes.

    links: the targets of symbolic links, by number.
    """

    directories: dict[int, dict[str, int]] = dataclasses.field(default_factory=lambda: {ROOT: {}})
    files: dict[int, bytes] = dataclasses.field(default_factory=dict)
    links: dict[int, str] = dataclasses.field(default_factory=dict)

    def copy(self) -> Disk:
        """Give another with the same content."""
        return Disk(
            directories={number: dict(names) for number, names in self.directories.items()},
            files=dict(self.files),
            links=dict(self.links),
        )

    def apply(self, operation: Operation) -> None:
        """Do an operation. Raises: Impossible."""
        match operation:
            case Make():
                self._make(operation)
            case Link():
                if operation.file not in self.files:
                    raise Impossible
                self._set(operation.at, operation.file)
            case Rename():
                self._rename(operation)
            case Remove():
                self._remove(operation.at)
            case Write() | Resize() | Zero():
                if operation.file in self.files:  # else it was removed, or never made
                    self.files[operation.file] = changed(self.files[operation.file], operation)
            case _:
                pass

    def paths(self) -> list[tuple[str, int]]:
        """List every path below the watched directory with the number of what is there."""
        found: list[tuple[str, int]] = []
        waiting = [("", ROOT)]
        while waiting:
            place, number = waiting.pop()
            for name, child in self.directories[number].items():
                found.append((f"{place}{name}", child))
                if child in self.directories:
                    waiting.append((f"{place}{name}/", child))
        return found

    def _names(self, directory: int) -> dict[str, int]:
        try:
            return self.directories[directory]
        except KeyError:
            raise Impossible from None

    def _set(self, at: Entry, number: int) -> None:
        self._names(at.directory)[at.name] = number

    def _taken(self, at: Entry) -> int:
        try:
            return self._names(at.directory).pop(at.name)
        except KeyError:
            raise Impossible from None

    def _make(self, made: Make) -> None:
        if made.at.name in self._names(made.at.directory):
            raise Impossible
        if made.is_directory:
            self.directories[made.file] = {}
        elif made.link_target is not None:
            self.links[made.file] = made.link_target
        else:
            self.files[made.file] = b""
        self._set(made.at, made.file)

    def _rename(self, renamed: Rename) -> None:
        number, there = self._taken(renamed.at), self._names(renamed.to.directory)
        before = there.get(renamed.to.name)
        if renamed.is_exchange:
            if before is None:
                raise Impossible
            self._set(renamed.at, before)
        elif before is not None and self.directories.get(before):
            raise Impossible  # a directory that is not empty
        there[renamed.to.name] = number

    def _remove(self, at: Entry) -> None:
        if self.directories.get(self._taken(at)):
            raise Impossible  # as above


Content = bytes | str | None
"""A file's bytes, a symbolic link's target, or None for a directory."""


def changed(data: bytes, operation: Operation) -> bytes:
    """Give a file's bytes after an operation on them."""
    match operation:
        case Write():
            end = operation.offset + len(operation.data)
            padded = data.ljust(operation.offset, b"\0")
            return padded[: operation.offset] + operation.data + padded[end:]
        case Resize():
            return data[: operation.size_bytes].ljust(operation.size_bytes, b"\0")
        case Zero():
            begin, end = operation.offset, min(operation.offset + operation.length, len(data))
            return data[:begin] + bytes(max(0, end - begin)) + data[max(begin, end) :]
        case _:
            return data
