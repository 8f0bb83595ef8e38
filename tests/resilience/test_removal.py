"""The removal of a large checkpoint: out of sight at once, its space given back later."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import alone, in_a_child, names, state_of

from chaoslab.resilience import removal
from chaoslab.resilience.checkpoint import AtomicCheckpointManager

LIMIT_S = 20.0


class SlowDisk:
    """Deletes nothing before it is told to."""

    def __init__(self) -> None:
        self.go, self._rmtree = threading.Event(), shutil.rmtree

    def rmtree(self, path: Path, **options: Any) -> None:
        self.go.wait(LIMIT_S)
        self._rmtree(path, **options)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk()
    monkeypatch.setattr(removal.shutil, "rmtree", disk.rmtree)
    yield disk
    disk.go.set()


def saver_of_large(directory: Path) -> AtomicCheckpointManager:
    """Give one that keeps one checkpoint, and takes every one for large."""
    saver = alone(directory, keep=1)
    saver._remover = removal.Remover(large_bytes=0)
    return saver


def test_a_save_does_not_wait_for_the_space(tmp_path: Path, slow: SlowDisk) -> None:
    """It returns when the old one is out of sight; closing waits until it is gone."""
    saver = saver_of_large(tmp_path)
    saver.save(1, state_of(0, 1))
    began_s = time.monotonic()
    saver.save(2, state_of(0, 2))
    assert time.monotonic() - began_s < LIMIT_S / 2
    trash, final = names(tmp_path)
    assert (trash.startswith(".trash-step-00000001-"), final) == (True, "step-00000002")
    assert saver.survey().steps == (2,)
    threading.Timer(0.2, slow.go.set).start()
    saver.close()
    assert names(tmp_path) == ["step-00000002"]


def test_the_next_save_has_the_space(tmp_path: Path, slow: SlowDisk) -> None:
    """Two that are no longer wanted never lie there beside each other."""
    saver = saver_of_large(tmp_path)
    saver.save(1, state_of(0, 1))
    saver.save(2, state_of(0, 2))
    threading.Timer(0.3, slow.go.set).start()
    began_s = time.monotonic()
    saver.save(3, state_of(0, 3))
    assert time.monotonic() - began_s > 0.25
    saver.close()
    assert names(tmp_path) == ["step-00000003"]


def test_a_disk_that_hangs_holds_up_nobody_who_is_told_to_stop(
    tmp_path: Path, slow: SlowDisk
) -> None:
    """The save that waits for the space asks whether it should go on."""
    assert not slow.go.is_set()
    saver = saver_of_large(tmp_path)
    saver.save(1, state_of(0, 1))
    saver.save(2, state_of(0, 2))
    began_s = time.monotonic()
    saver._settle(tmp_path / ".tmp-step-00000003-solo", lambda: "the generation has moved on")
    assert time.monotonic() - began_s < LIMIT_S / 2


def test_a_disk_that_hangs_costs_a_save_a_part_of_its_deadline(
    tmp_path: Path, slow: SlowDisk
) -> None:
    """Its peers wait for it meanwhile: it goes without the space."""
    saver = alone(tmp_path, keep=1, deadline_s=2.0)
    saver._remover = removal.Remover(large_bytes=0)
    saver.save(1, state_of(0, 1))
    saver.save(2, state_of(0, 2))
    began_s = time.monotonic()
    assert saver.save(3, state_of(0, 3)).name == "step-00000003"
    assert 0.4 < time.monotonic() - began_s < 1.5
    slow.go.set()
    saver.close()
    assert names(tmp_path) == ["step-00000003"]


def test_what_a_killed_process_has_not_deleted_the_next_one_does(
    tmp_path: Path, slow: SlowDisk
) -> None:
    """Its name says that nobody wants it; its lock ends with the process."""

    def be() -> None:
        saver = saver_of_large(tmp_path)
        saver.save(1, state_of(0, 1))
        saver.save(2, state_of(0, 2))
        os._exit(0)

    assert in_a_child(be) == (0, "")
    assert len(names(tmp_path)) == 2
    slow.go.set()
    assert [path.name[:6] for path in alone(tmp_path, keep=1).sweep()] == [".trash"]
    assert names(tmp_path) == ["step-00000002"]


def test_nobody_sweeps_what_is_being_deleted(tmp_path: Path, slow: SlowDisk) -> None:
    """The lock is held until it is gone."""
    saver = saver_of_large(tmp_path)
    saver.save(1, state_of(0, 1))
    saver.save(2, state_of(0, 2))
    assert alone(tmp_path, keep=1).sweep() == []
    slow.go.set()
    saver.close()
    assert names(tmp_path) == ["step-00000002"]


@pytest.mark.parametrize("how", ["small", "no_thread"])
def test_a_small_one_is_deleted_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """So is a large one where there can be no thread."""
    saver = alone(tmp_path, keep=1)
    if how == "no_thread":
        saver = saver_of_large(tmp_path)

        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
    saver.save(1, state_of(0, 1))
    saver.save(2, state_of(0, 2))
    assert names(tmp_path) == ["step-00000002"]
