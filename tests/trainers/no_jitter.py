"""A defective twin of charlm: it backs off, but every rank by the very same waits."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import charlm

from chaoslab.resilience.backoff import Backoff
from chaoslab.resilience.runner import FaultTolerantRunner


@dataclasses.dataclass(frozen=True, kw_only=True)
class InStep(Backoff):
    """Exponential, and without jitter."""

    def wait_s(self, attempt: int) -> float:
        """Give the whole of the range, always."""
        return float(min(self.cap_s, self.base_s * 2.0 ** min(attempt, 60)))


def make_runner(options: argparse.Namespace, *, rank: int, world_size: int) -> FaultTolerantRunner:
    """Build a runner whose waits are those of every other rank."""
    runner = charlm.make_runner(options, rank=rank, world_size=world_size)
    runner._backoff = runner._client.backoff = InStep(base_s=0.5, cap_s=2.0)
    return runner


if __name__ == "__main__":
    sys.exit(charlm.main(make_runner))
