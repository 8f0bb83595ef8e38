"""Crashes: which ones of those that a model allows are tried, and in what order.

All of them would be too many: for n writes that are pending there are 2^n. Tried are those from
which every other differs by more loss of the same kind: everything kept, everything lost, each
change lost alone, each file kept alone, each cut at several places; then, with a seed, mixtures.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

from chaoslab.crash.durability import Durability, directories_of
from chaoslab.crash.models import PAGE_BYTES, SECTOR_BYTES, Changes, Crash, Loss, Model, changes_of
from chaoslab.crash.operations import NAMING, Operation, Resize, Write

FEW_NAMES: Final = 4
"""Up to so many names that may be lost, all subsets are tried."""

Fate = tuple[Loss, ...]
"""What has become of some operations together."""


def crashes(
    operations: Sequence[Operation], model: Model, *, mixtures: int = 4, seed: int = 0
) -> Iterator[Crash]:
    """Give crashes that the model allows, after each operation in turn.

    mixtures: random ones after each operation and choice of names. Some cannot be built, since
    what they keep needs what they lose (see `disk.Impossible`).
    """
    chooser = random.Random(seed)  # noqa: S311  a choice that can be repeated, no secret
    for after in range(len(operations) + 1):
        if model.data == "all":
            yield Crash(after=after)
            yield from (
                Crash(after=after, losses=fate) for fate in _tears(operations, after, model)
            )
            continue
        durability = Durability(operations, after)
        pending = durability.pending_changes()
        changes = {
            file: changes_of(operations, file, indexes, after) for file, indexes in pending.items()
        }
        for names in _names(operations, durability, model):
            gone = {loss.index for loss in names}
            fates = {
                file: list(_unique(_fates(operations, found, gone, model)))
                for file, found in changes.items()
            }
            for fate in _combined(fates, mixtures, chooser):
                yield Crash(after=after, losses=tuple(sorted((*names, *fate))))


def _tears(operations: Sequence[Operation], after: int, model: Model) -> Iterator[Fate]:
    """Give the places at which the last operation may be torn."""
    last = operations[after - 1] if after else None
    if isinstance(last, Write):
        for place in _cuts(last, model):
            yield (Loss(index=after - 1, kind="torn", begin=place, end=len(last.data)),)


def _names(operations: Sequence[Operation], durability: Durability, model: Model) -> list[Fate]:
    """Give which changes of directories, and of sizes that go with them, are lost together."""
    if model.is_ordered:
        pending = durability.pending_ordered()
        chosen = [pending[place:] for place in range(len(pending), -1, -1)]
    else:
        pending = durability.pending_names(by_directory=True)
        chosen = [pending[place:] for place in range(len(pending), -1, -1)]
        chosen += [_with_dependents(operations, [one], pending) for one in pending]
        chosen += [[other for other in pending if other != one] for one in pending]
        if len(pending) <= FEW_NAMES:
            sizes = range(len(pending) + 1)
            chosen += [list(c) for size in sizes for c in itertools.combinations(pending, size)]
    return list(_unique(tuple(Loss(index=index) for index in sorted(one)) for one in chosen))


def _with_dependents(
    operations: Sequence[Operation], lost: list[int], pending: Sequence[int]
) -> list[int]:
    """Add the later changes of the same entries or file, which need what is lost."""
    found = list(lost)
    for index in pending:
        operation = operations[index]
        assert isinstance(operation, NAMING)
        for earlier in found:
            if index > earlier and _touch(operation, operations[earlier]):
                found.append(index)
                break
    return found


def _touch(one: Operation, other: Operation) -> bool:
    """Tell whether two changes of directories are of the same entry, or in the same new one."""
    made = getattr(other, "file", None)
    assert isinstance(one, NAMING)
    return bool(_entries(one) & _entries(other)) or made in directories_of(one)


def _entries(operation: Operation) -> set[tuple[int, str]]:
    found = (getattr(operation, "at", None), getattr(operation, "to", None))
    return {(entry.directory, entry.name) for entry in found if entry is not None}


def _fates(
    operations: Sequence[Operation], changes: Changes, gone: set[int], model: Model
) -> Iterator[Fate]:
    """Give what may become of one file's pending changes. gone: what is lost with the names."""
    forced, pending = _split(operations, changes, gone, model)
    base = tuple(Loss(index=index) for index in forced)
    yield base
    for place, index in enumerate(pending):
        rest = tuple(
            Loss(index=later)
            for later in pending[place + 1 :]
            if model.data != "first" or later in changes.extending
        )
        yield (*base, Loss(index=index), *rest)
        operation = operations[index]
        if isinstance(operation, Write):
            for cut in _cuts(operation, model):
                torn = Loss(index=index, kind="torn", begin=cut, end=len(operation.data))
                yield (*base, torn, *rest)
        if model.data != "first" or index not in changes.extending:
            yield from ((*base, loss) for loss in _alone(operation, index, model))


def _split(
    operations: Sequence[Operation], changes: Changes, gone: set[int], model: Model
) -> tuple[list[int], list[int]]:
    """Give what must be lost of a file's pending changes, and what may be."""
    pending = [index for index in sorted(changes.pending) if index not in gone]
    if not model.is_ordered:
        return [], pending
    # A size is in the journal: bytes that came after one that is lost had nowhere to go.
    sizes = [index for index in changes.all if isinstance(operations[index], Resize)]
    first = min((index for index in sizes if index in gone), default=len(operations))
    forced = [index for index in pending if index > first]
    free = [index for index in pending if index < first and index not in sizes]
    return forced, free


def _alone(operation: Operation, index: int, model: Model) -> Iterator[Loss]:
    """Give what may become of one change while all others of the file are kept."""
    yield Loss(index=index)
    if isinstance(operation, Write):
        kinds: dict[str, tuple[Literal["zeros", "garbage"], ...]] = {
            "any": ("zeros",),
            "garbage": ("zeros", "garbage"),
        }
        for kind in kinds.get(model.data, ()):
            for begin, end in _ranges(operation, model):
                yield Loss(index=index, kind=kind, begin=begin, end=end)


def _cuts(write: Write, model: Model) -> list[int]:
    """Give places inside a write where what survives may end."""
    length = len(write.data)
    wanted = {PAGE_BYTES, length // 2, length - 1}
    if model.unit_bytes < PAGE_BYTES:
        wanted |= {SECTOR_BYTES}
    if model.unit_bytes == 1:
        wanted |= {1}
    cuts = {
        (write.offset + place) // model.unit_bytes * model.unit_bytes - write.offset
        for place in wanted
    }
    return sorted(cut for cut in cuts if 0 < cut < length)


def _ranges(write: Write, model: Model) -> list[tuple[int, int]]:
    """Give the ranges of a write that may be missing: all, its first unit, a page in the middle."""
    length = len(write.data)
    borders = [0, *_cuts(write, model), length]
    found = {(0, length), (0, borders[1]), (borders[-2], length)}
    middle = borders[len(borders) // 2]
    if middle + PAGE_BYTES <= length:
        found.add((middle, middle + PAGE_BYTES))
    return sorted(found)


def _combined(
    fates: dict[int, list[Fate]], mixtures: int, chooser: random.Random
) -> Iterator[Fate]:
    """Give what may become of all files together. Each file's first fate keeps what may be kept."""
    best = {file: found[0] for file, found in fates.items()}
    worst = {file: max(found, key=_extent) for file, found in fates.items()}
    yield _joined(best.values())
    yield _joined(worst.values())
    for file, found in fates.items():
        yield from (_joined({**best, file: fate}.values()) for fate in found)
        yield _joined({**worst, file: best[file]}.values())
    if len(fates) > 1:
        for _ in range(mixtures):
            yield _joined(chooser.choice(found) for found in fates.values())


def _extent(fate: Fate) -> tuple[int, int]:
    return sum(loss.kind == "lost" for loss in fate), len(fate)


def _joined(fates: Iterable[Fate]) -> Fate:
    return tuple(itertools.chain.from_iterable(fates))


def _unique(found: Iterable[Fate]) -> Iterator[Fate]:
    return iter(dict.fromkeys(found))
