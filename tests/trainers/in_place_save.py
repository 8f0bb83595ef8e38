"""A defective twin of charlm: rank 0 saves everything over the one file latest.pt.

A kill in the middle of a save leaves neither the new nor the old state; a restart then begins
at step 0, although a later step was acknowledged.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import charlm
import torch
import torch.distributed as dist

from chaoslab import probe
from chaoslab.resilience.checkpoint import AtomicCheckpointManager, Survey
from chaoslab.resilience.runner import FaultTolerantRunner
from chaoslab.resilience.state import PER_RANK


class InPlaceCheckpoints(AtomicCheckpointManager):
    """Keeps the only copy of the state in one file, and overwrites it."""

    @property
    def file(self) -> Path:
        """Give the file."""
        return self.directory / "latest.pt"

    def save(
        self,
        step: int,
        state: dict[str, Any],
        *,
        attempt: str = "",  # noqa: ARG002 - the interface of the healthy twin
        should_stop: Callable[[], str | None] = lambda: None,  # noqa: ARG002
    ) -> Path:
        """Collect every rank's random states, and let rank 0 overwrite the file."""
        everyone: list[Any] = [None] * self.world_size
        dist.all_gather_object(everyone, state[PER_RANK])
        if self.rank == 0:
            probe.emit("save_begun", step=step)
            self.directory.mkdir(parents=True, exist_ok=True)
            with self.file.open("wb") as raw:
                content = {"step": step, "everyone": everyone, "task": state["task"]}
                torch.save(content, probe.watched(raw))
                raw.flush()
                os.fsync(raw.fileno())
            probe.emit("save_committed", step=step, path=str(self.file))
        return self.file

    def survey(self, *, any_world_size: bool = False) -> Survey:  # noqa: ARG002
        """Read the file; an unreadable one counts as none."""
        content = self._read()
        return Survey(steps=() if content is None else (content["step"],), refused=())

    def load(self, step: int, *, any_world_size: bool = False) -> dict[str, Any]:  # noqa: ARG002
        """Give this rank's state: there is only one."""
        content = self._read() or {}
        content[PER_RANK] = content["everyone"][self.rank]
        return content

    def _read(self) -> dict[str, Any] | None:
        try:
            return dict(torch.load(self.file, weights_only=True))
        except Exception:  # noqa: BLE001 - the defect: any unreadable file means a fresh start
            return None


def make_runner(options: argparse.Namespace, *, rank: int, world_size: int) -> FaultTolerantRunner:
    """Build a runner that saves in place."""
    runner = charlm.make_runner(options, rank=rank, world_size=world_size)
    runner.checkpoints.__class__ = InPlaceCheckpoints
    return runner


if __name__ == "__main__":
    sys.exit(charlm.main(make_runner))
