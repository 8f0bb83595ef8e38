"""The order of a save: nothing is visible, or acknowledged, that a power cut could still take."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints import RANKS, save_all

from chaoslab import probe
from chaoslab.resilience import layout

PARENT, STEP = "checkpoints", 7
SHARDS = [layout.shard_name(rank) for rank in range(RANKS)]


@dataclasses.dataclass
class Journal:
    """What a save did, in its order: fsync of a path, rename of a directory, acknowledgement."""

    forgets: Callable[[Path], bool]
    done: list[tuple[str, Path, int]] = dataclasses.field(default_factory=list)
    names: dict[Path, set[str]] = dataclasses.field(default_factory=dict)

    def keep(self, patch: pytest.MonkeyPatch) -> None:
        """Keep it from now on; the calls are made as ever, less the fsyncs to be forgotten."""
        fsync, rename, emit = os.fsync, os.rename, probe.emit

        def noted_fsync(fd: int) -> None:
            path = Path(f"/proc/self/fd/{fd}").readlink()
            if self.forgets(path):
                return
            fsync(fd)
            self._note("fsync", path)

        def noted_rename(source: Path, target: Path) -> None:
            if Path(source).is_dir():
                self.names[Path(target)] = {entry.name for entry in Path(source).iterdir()}
                self._note("rename", Path(source))
            rename(source, target)

        def noted_emit(kind: str, **fields: object) -> None:
            if kind == "save_committed":
                self._note(kind, Path(str(fields["path"])))
            emit(kind, **fields)

        patch.setattr(os, "fsync", noted_fsync)
        patch.setattr(os, "rename", noted_rename)
        patch.setattr(probe, "emit", noted_emit)

    def _note(self, what: str, path: Path) -> None:
        self.done.append((what, path, threading.get_ident()))

    def faults(self, final: Path) -> list[str]:
        """Say what was visible or acknowledged before it was durable."""
        found = []
        (at,) = (i for i, (what, _, _) in enumerate(self.done) if what == "rename")
        work = self.done[at][1]
        before = {path for what, path, _ in self.done[:at] if what == "fsync"}
        found += [name for name in self.names[final] if work / name not in before]
        last_of_a_file = max(
            (i for i, (_, path, _) in enumerate(self.done[:at]) if path.parent == work), default=0
        )
        if ("fsync", work) not in [entry[:2] for entry in self.done[last_of_a_file:at]]:
            found.append("the directory's names")
        for i, (what, _, thread) in enumerate(self.done):
            own = [entry for entry in self.done[at:i] if entry[2] == thread]
            if what == "save_committed" and ("fsync", final.parent) not in [e[:2] for e in own]:
                found.append("the rename")
        return sorted(set(found))


def journal_of_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgets: Callable[[Path], bool]
) -> list[str]:
    directory = tmp_path / PARENT
    directory.mkdir()
    journal = Journal(forgets=forgets)
    with monkeypatch.context() as patch:
        journal.keep(patch)
        outcomes = save_all(directory, STEP)
    final = directory / layout.step_name(STEP)
    assert outcomes == [final] * RANKS
    assert journal.names[final] == {*SHARDS, layout.MANIFEST}
    assert sum(what == "save_committed" for what, _, _ in journal.done) == RANKS
    return journal.faults(final)


def test_all_is_durable_before_it_is_visible_or_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards, manifest and names before the rename; the rename before any rank says committed."""
    assert journal_of_a_save(tmp_path, monkeypatch, lambda _: False) == []


@pytest.mark.parametrize(
    ("forgotten", "is_it"),
    [
        *((name, lambda path, name=name: path.name == name) for name in SHARDS),
        (layout.MANIFEST, lambda path: path.name == layout.MANIFEST),
        ("the directory's names", lambda path: path.name.startswith(".tmp-")),
        ("the rename", lambda path: path.name == PARENT),
    ],
)
def test_a_forgotten_fsync_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    forgotten: str,
    is_it: Callable[[Path], bool],
) -> None:
    """Planted: a save that leaves one of them out."""
    assert journal_of_a_save(tmp_path, monkeypatch, is_it) == [forgotten]
