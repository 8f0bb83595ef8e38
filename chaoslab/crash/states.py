"""States: what is on the disk after a crash, each one once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from chaoslab.crash.disk import Content, Disk, Impossible, changed
from chaoslab.crash.models import Crash, Loss
from chaoslab.crash.operations import CHANGING, Acknowledged, Begun, Operation, Write

GARBAGE = b"\xa5"

Version = tuple[tuple[int, str, int, int], ...]
"""How a file came to be: its changes that survived, and what was lost of each."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """A crash, and the paths that it leaves: a file's number and version, or what it is."""

    crash: Crash
    tree: tuple[tuple[str, tuple[int, Version] | str | None], ...]


class Replay:
    """A recording, to be replayed to any crash. start: what was there before it began."""

    def __init__(self, operations: Sequence[Operation], start: Disk) -> None:
        self.operations, self._start = operations, start
        self._contents: dict[tuple[int, Version], bytes] = {}
        self._names: tuple[tuple[int, frozenset[int]], Disk] | None = None

    def state(self, crash: Crash) -> State:
        """Give the state after a crash. Raises: Impossible."""
        losses = {loss.index: loss for loss in crash.losses}
        disk = self._named(
            crash.after, frozenset(index for index in losses if self._is_name(index))
        )
        versions = self._versions(crash.after, losses)
        tree: list[tuple[str, tuple[int, Version] | str | None]] = []
        for path, number in disk.paths():
            if number in disk.files:
                tree.append((path, (number, versions.get(number, ()))))
            else:
                tree.append((path, disk.links.get(number)))
        return State(crash=crash, tree=tuple(sorted(tree, key=lambda item: item[0])))

    def content(self, found: tuple[int, Version] | str | None) -> Content:
        """Give what is at a path of a state."""
        if not isinstance(found, tuple):
            return found
        if found not in self._contents:
            file, version = found
            data = self._start.files.get(file, b"")
            for index, kind, begin, end in version:
                data = _survived(data, self.operations[index], kind, begin, end)
            self._contents[found] = data
        return self._contents[found]

    def acknowledged(self, after: int) -> int | None:
        """Give the last step whose save had returned by then; None before the first."""
        steps = [op.step for op in self.operations[:after] if isinstance(op, Acknowledged)]
        return steps[-1] if steps else None

    def begun(self, after: int) -> int | None:
        """Give the last step whose save had begun by then."""
        steps = [op.step for op in self.operations[:after] if isinstance(op, Begun)]
        return steps[-1] if steps else None

    def _is_name(self, index: int) -> bool:
        return not isinstance(self.operations[index], CHANGING)

    def _named(self, after: int, lost: frozenset[int]) -> Disk:
        """Replay the names; what was asked last is kept, since crashes come in groups."""
        if self._names is None or self._names[0] != (after, lost):
            disk = self._start.copy()
            for index, operation in enumerate(self.operations[:after]):
                if index not in lost and not isinstance(operation, CHANGING):
                    disk.apply(operation)
            self._names = ((after, lost), disk)
        return self._names[1]

    def _versions(self, after: int, losses: dict[int, Loss]) -> dict[int, Version]:
        found: dict[int, list[tuple[int, str, int, int]]] = {}
        for index, operation in enumerate(self.operations[:after]):
            if isinstance(operation, CHANGING):
                loss = losses.get(index)
                if loss is None:
                    found.setdefault(operation.file, []).append((index, "", 0, 0))
                elif loss.kind != "lost":
                    kept = (index, loss.kind, loss.begin, loss.end)
                    found.setdefault(operation.file, []).append(kept)
        return {file: tuple(changes) for file, changes in found.items()}


def _survived(data: bytes, operation: Operation, kind: str, begin: int, end: int) -> bytes:
    """Give a file's bytes after what has survived of a change."""
    if not kind:
        return changed(data, operation)
    assert isinstance(operation, Write)
    if kind == "torn":
        return changed(data, dataclasses.replace(operation, data=operation.data[:begin]))
    fill = (b"\0" if kind == "zeros" else GARBAGE) * (end - begin)
    left, right = operation.data[:begin], operation.data[end:]
    return changed(data, dataclasses.replace(operation, data=left + fill + right))


def unique(replay: Replay, found: Iterable[Crash]) -> Iterator[tuple[State, bool]]:
    """Give the states of these crashes that there are, and for each whether it is a new one.

    The same files may be demanded to hold more after a later operation: they are given again, to
    be judged again, when that is so.
    """
    known: set[object] = set()
    judged: set[object] = set()
    for crash in found:
        try:
            state = replay.state(crash)
        except Impossible:
            continue
        demand = (state.tree, replay.acknowledged(crash.after), replay.begun(crash.after))
        if demand not in judged:
            judged.add(demand)
            is_new = state.tree not in known
            known.add(state.tree)
            yield state, is_new
