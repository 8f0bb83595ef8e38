"""Recordings made by hand: a step's bytes are its number, over and over."""

from __future__ import annotations

from collections.abc import Sequence

from chaoslab.crash.crashes import crashes
from chaoslab.crash.disk import Content, Disk
from chaoslab.crash.models import Model
from chaoslab.crash.operations import (
    ROOT,
    Acknowledged,
    Begun,
    Entry,
    Make,
    Operation,
    Remove,
    Rename,
    Resize,
    Sync,
    Write,
)
from chaoslab.crash.states import Replay, unique

PARTS = 3
PART_BYTES = 8192


def at(name: str, directory: int = ROOT) -> Entry:
    return Entry(directory=directory, name=name)


def body(step: int) -> bytes:
    return bytes([step]) * (PARTS * PART_BYTES)


def writes(file: int, step: int) -> list[Operation]:
    part = body(step)[:PART_BYTES]
    return [Write(file=file, offset=PART_BYTES * n, data=part) for n in range(PARTS)]


def saved(*operations: Operation, step: int) -> list[Operation]:
    return [Begun(step=step), *operations, Acknowledged(step=step)]


def plain(step: int) -> list[Operation]:
    """Write a file of the step's own."""
    file = step
    return saved(Make(at=at(f"step-{step}"), file=file), *writes(file, step), step=step)


def in_place(step: int) -> list[Operation]:
    """Write over the only file."""
    first = [Make(at=at("last"), file=1)] if step == 1 else [Resize(file=1, size_bytes=0)]
    return saved(*first, *writes(1, step), Sync(file=1), Sync(file=ROOT), step=step)


def replaced(
    step: int, *, file_sync: bool = True, directory_sync: bool = True, early: bool = False
) -> list[Operation]:
    """Write beside and rename over; early: the rename comes before the last write."""
    *first, last = writes(step, step)
    rename = Rename(at=at("draft"), to=at("last"))
    middle = [rename, last] if early else [last, rename]
    if file_sync:
        middle.insert(1, Sync(file=step))
    if early and file_sync:
        middle.append(Sync(file=step))
    after = [Sync(file=ROOT)] if directory_sync else []
    return saved(Make(at=at("draft"), file=step), *first, *middle, *after, step=step)


def pruned_first(step: int) -> list[Operation]:
    """Remove the last one before its successor has its name."""
    file, last = step, at("last")
    remove = [Remove(at=last)] if step > 1 else []
    made = [Make(at=at("draft"), file=file), *writes(file, step), Sync(file=file)]
    return saved(*made, *remove, Rename(at=at("draft"), to=last), Sync(file=ROOT), step=step)


def faults(operations: Sequence[Operation], model: Model) -> set[str]:
    """Name what is wrong in some state: lost, missing, or corrupt."""
    replay, found = Replay(operations, Disk()), set()
    for state, _ in unique(replay, crashes(operations, model)):
        acknowledged = replay.acknowledged(state.crash.after) or 0
        files: dict[str, Content] = {path: replay.content(item) for path, item in state.tree}
        finals = [data for path, data in files.items() if path.startswith(("last", "step-"))]
        whole = [step for step in (1, 2, 3) if body(step) in finals]
        if any(data != body(step) for data in finals for step in (data[:1] or b"\0")):
            found.add("damaged")
        if acknowledged and not whole:
            found.add("missing")
        elif acknowledged and max(whole) < acknowledged:
            found.add("lost")
    return found
