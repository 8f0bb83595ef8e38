"""A defective twin of charlm: it retries on the tick, every rank at the next full second.

Ranks that were merely given the same waits would come as far apart as they failed; a clock that
all of them share brings them together.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import charlm

from chaoslab.resilience.backoff import Backoff
from chaoslab.resilience.runner import FaultTolerantRunner


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnTheTick(Backoff):
    """Waits until the clock's next full second."""

    def wait_s(self, attempt: int, *, most_s: float = math.inf) -> float:  # noqa: ARG002
        """Give the time until then, in seconds: the same for all, whatever they were given."""
        return 1.0 - time.monotonic() % 1.0


def make_runner(options: argparse.Namespace, *, rank: int, world_size: int) -> FaultTolerantRunner:
    """Build a runner whose waits end when those of every other rank do."""
    runner = charlm.make_runner(options, rank=rank, world_size=world_size)
    runner._backoff = runner._client.backoff = OnTheTick(base_s=1.0, cap_s=1.0)
    return runner


if __name__ == "__main__":
    sys.exit(charlm.main(make_runner))
