"""A defective twin of charlm: its patience never ends, so its circuit never opens.

When a node is gone for good, the others wait for it for ever.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import charlm

from chaoslab.resilience.runner import FaultTolerantRunner

FOR_EVER_S = 1e9


def make_runner(options: argparse.Namespace, *, rank: int, world_size: int) -> FaultTolerantRunner:
    """Build a runner that never gives up."""
    options.patience_s, options.attempts = FOR_EVER_S, 10**9
    return charlm.make_runner(options, rank=rank, world_size=world_size)


if __name__ == "__main__":
    sys.exit(charlm.main(make_runner))
