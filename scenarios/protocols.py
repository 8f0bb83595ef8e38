"""Ways to save a checkpoint, as people write them; each leaves out what its name does not say."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from chaoslab.resilience import AtomicCheckpointManager

NUMBERS = 4096


def state(step: int) -> dict[str, Any]:
    """Give a state that is another at each step, in more than one tensor."""
    return {
        "step": torch.tensor(step),
        "weight": torch.full((NUMBERS,), float(step)),
        "moment": torch.full((NUMBERS,), step + 0.5),
    }


def fsync(path: Path) -> None:
    """Make a file or a directory durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def plain(root: Path, step: int) -> None:
    """torch.save into a new file."""
    torch.save(state(step), root / f"ckpt-{step}.pt")


def in_place(root: Path, step: int) -> None:
    """torch.save over the last one."""
    torch.save(state(step), root / "ckpt-last.pt")


def replace(root: Path, step: int) -> None:
    """Save beside, and rename over the last one."""
    torch.save(state(step), root / "draft")
    (root / "draft").replace(root / "ckpt-last.pt")


def replace_fsync(root: Path, step: int) -> None:
    """Do the same, with an fsync of the file before."""
    torch.save(state(step), root / "draft")
    fsync(root / "draft")
    (root / "draft").replace(root / "ckpt-last.pt")


def replace_fsync_directory(root: Path, step: int) -> None:
    """Do the same, with an fsync of the directory after."""
    replace_fsync(root, step)
    fsync(root)


def remove_then_rename(root: Path, step: int) -> None:
    """Make a directory durable beside; remove the last one to make room for its name."""
    draft, last = root / "draft", root / "ckpt-last"
    draft.mkdir()
    torch.save(state(step), draft / "model.pt")
    fsync(draft / "model.pt")
    fsync(draft)
    if last.exists():
        shutil.rmtree(last)
    draft.rename(last)
    fsync(root)


def _dcp_save(path: Path, step: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        state_dict_saver.save(state(step), storage_writer=FileSystemWriter(path), no_dist=True)


def dcp_new(root: Path, step: int) -> None:
    """torch.distributed.checkpoint into a new directory."""
    _dcp_save(root / f"ckpt-{step}", step)


def dcp_same(root: Path, step: int) -> None:
    """torch.distributed.checkpoint into the same directory again."""
    _dcp_save(root / "ckpt-last", step)


def ours(root: Path, step: int) -> None:
    """AtomicCheckpointManager, which removes the one before."""
    with AtomicCheckpointManager(root, rank=0, world_size=1, keep=1) as manager:
        manager.save(step, state(step))


def _number(path: Path) -> int:
    found = re.search(r"ckpt-(\d+)", path.name)
    return int(found[1]) if found else 0


def _load(path: Path) -> Any:
    if path.is_file():
        return torch.load(path, weights_only=True)
    if (path / "model.pt").exists():
        return torch.load(path / "model.pt", weights_only=True)
    found = state(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        state_dict_loader.load(found, storage_reader=FileSystemReader(path), no_dist=True)
    return found


def newest(root: Path) -> Any:
    """Load the newest, whatever it is."""
    found = sorted(root.glob("ckpt-*"), key=_number)
    return _load(found[-1]) if found else None


def newest_that_loads(root: Path) -> Any:
    """Load the newest that can be loaded."""
    for path in sorted(root.glob("ckpt-*"), key=_number, reverse=True):
        try:
            return _load(path)
        except (Exception, CheckpointException):  # noqa: BLE001, S112  the one before, then
            continue
    return None


def ours_latest(root: Path) -> Any:
    """Load the newest that verifies."""
    manager = AtomicCheckpointManager(root, rank=0, world_size=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that all are refused: judged here
        found = manager.latest()
    return None if found is None else manager.load(found.step)
