"""AtomicCheckpointManager is intact after every crash that is tried; torch.save alone is not."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from chaoslab.crash import Exploration, Verdict, explore, explore_recording, record
from chaoslab.resilience import AtomicCheckpointManager


def state(step: int) -> dict[str, Any]:
    return {"weight": torch.full((3000,), float(step)), "step": step}


def save(root: Path, step: int) -> None:
    with AtomicCheckpointManager(root, rank=0, world_size=1, keep=1) as manager:
        manager.save(step, state(step))


def save_in_the_background(root: Path, step: int) -> None:
    with AtomicCheckpointManager(root, rank=0, world_size=1, keep=1) as manager:
        manager.async_save(step, state(step))


def restore(root: Path) -> dict[str, Any] | None:
    manager = AtomicCheckpointManager(root, rank=0, world_size=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that all are refused: judged here
        found = manager.latest()
    return None if found is None else manager.load(found.step)


def save_of_ranks(root: Path, world_size: int, marks: Path) -> None:
    """Save two steps from as many processes; a step counts as soon as one of them has returned."""
    fd = os.open(marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for step in (1, 2):
        os.write(fd, f"B {step}\n".encode())
        ranks = []
        for rank in range(world_size):
            if (pid := os.fork()) == 0:
                manager = AtomicCheckpointManager(root, rank=rank, world_size=world_size, keep=1)
                manager.save(step, state(step) | {"rank": rank})
                os.write(fd, f"A {step}\n".encode())
                manager.close()
                os._exit(0)
            ranks.append(pid)
        if any(os.waitpid(pid, 0)[1] for pid in ranks):
            os._exit(1)


def restore_of_ranks(root: Path, world_size: int) -> list[dict[str, Any]] | None:
    """Load every rank's part of the newest that verifies."""
    managers = [
        AtomicCheckpointManager(root, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = managers[0].latest()
    return None if found is None else [manager.load(found.step) for manager in managers]


def verdicts(explored: Exploration) -> dict[str, Verdict]:
    assert not any(result.is_bounded for result in explored.results)
    return {result.model: result.verdict for result in explored.results}


@pytest.mark.parametrize("saver", [save, save_in_the_background])
def test_the_manager_is_intact_under_every_model(saver: Any) -> None:
    """Also while it removes the checkpoint before, and from its background thread."""
    explored = explore(saver, restore)
    told = [f"{one.words}: {one.reason}" for r in explored.results for one in r.failures]
    assert told == []
    assert verdicts(explored) == dict.fromkeys(verdicts(explored), Verdict.INTACT)
    assert len(explored.results) == 4


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_save_of_several_ranks_is_intact_too(tmp_path: Path, world_size: int) -> None:
    """One order of the ranks' calls, of those that there are; no rank returns too early."""
    root, marks = tmp_path / "root", tmp_path / "marks"
    root.mkdir()
    recording = record(root, lambda: save_of_ranks(root, world_size, marks), marks=marks)
    assert len({operation.thread for operation in recording.operations}) > world_size
    explored = explore_recording(
        recording, lambda path: restore_of_ranks(path, world_size), most_states=1000
    )
    told = [f"{one.words}: {one.reason}" for r in explored.results for one in r.failures]
    assert told == []
    assert explored.verdict is Verdict.INTACT


def test_torch_save_into_a_new_file_is_not() -> None:
    """The newest file may be torn after a kill, and hold what nobody saved after a power cut."""

    def plain(root: Path, step: int) -> None:
        torch.save(state(step), root / f"step-{step}.pt")

    def newest(root: Path) -> Any:
        files = sorted(root.iterdir())
        return torch.load(files[-1], weights_only=True) if files else None

    found = verdicts(explore(plain, newest))
    assert found["kill"] is Verdict.NO_RESTORE
    assert found["xfs"] is Verdict.SILENT_CORRUPT
