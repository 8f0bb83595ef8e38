"""AtomicCheckpointManager is intact after every crash that is tried; torch.save alone is not."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from chaoslab.crash.exploration import Exploration, explore
from chaoslab.crash.judging import Verdict
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
