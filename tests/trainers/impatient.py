"""A defective twin of charlm: its timeout is shorter than a pause that every cluster knows.

A rank that stands still for a second is taken for lost, and the group is formed again.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import charlm

from chaoslab.resilience.runner import FaultTolerantRunner

SHORTER_THAN_A_PAUSE_S = 0.7


def make_runner(options: argparse.Namespace, *, rank: int, world_size: int) -> FaultTolerantRunner:
    """Build a runner that has no patience with a slow peer."""
    runner = charlm.make_runner(options, rank=rank, world_size=world_size)
    runner.limits = dataclasses.replace(runner.limits, timeout_s=SHORTER_THAN_A_PAUSE_S)
    return runner


if __name__ == "__main__":
    sys.exit(charlm.main(make_runner))
