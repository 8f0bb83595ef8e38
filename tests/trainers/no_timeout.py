"""A defective twin of charlm: 30 minutes of timeout and no abort watcher.

A lost peer that says nothing is noticed when the link heals, or not at all.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import charlm

from chaoslab.resilience.group import Group
from chaoslab.resilience.runner import FaultTolerantRunner

TORCH_DEFAULT_TIMEOUT_S = 1800.0


def make_runner(options: argparse.Namespace, *, rank: int, world_size: int) -> FaultTolerantRunner:
    """Build a runner that waits as long as torch does by default."""
    Group._watch = lambda _: None  # type: ignore[assignment,method-assign]  # the defect
    runner = charlm.make_runner(options, rank=rank, world_size=world_size)
    runner.limits = dataclasses.replace(runner.limits, timeout_s=TORCH_DEFAULT_TIMEOUT_S)
    return runner


if __name__ == "__main__":
    sys.exit(charlm.main(make_runner))
