"""A defective twin of charlm: it retries at once and without limit, on a new connection each time.

While a rank is away, every other one hammers the store.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import charlm

from chaoslab import probe
from chaoslab.resilience import rendezvous
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.errors import RendezvousFailed, StoreError
from chaoslab.resilience.failures import Failure
from chaoslab.resilience.runner import FaultTolerantRunner

PACE_S = 0.005
"""Keeps the event files of a run readable; still some hundred times too often."""


class HammeringRunner(FaultTolerantRunner):
    """Asks again and again whether all have come, and never waits in between."""

    def _join(self) -> rendezvous.Generation:
        member = self._member()
        for attempt in itertools.count():
            time.sleep(PACE_S)
            probe.emit("backoff", attempt=attempt, wait_s=0.0)
            client = StoreClient(*self._client.address, timeout_s=self._client.timeout_s)
            try:
                return rendezvous.join(
                    client,
                    member,
                    world_size=self.world_size,
                    after=self._number,
                    patience_s=0.0,
                    last_word_s=PACE_S,
                )
            except (RendezvousFailed, StoreError):
                continue
            finally:
                client.close()
        raise AssertionError("unreachable: the count has no end")

    def _recover(self, failure: Failure) -> None:
        """Neither back off nor check anything."""


def make_runner(options: argparse.Namespace, *, rank: int, world_size: int) -> FaultTolerantRunner:
    """Build a runner that hammers."""
    options.attempts = 10**9
    runner = charlm.make_runner(options, rank=rank, world_size=world_size)
    runner.__class__ = HammeringRunner
    return runner


if __name__ == "__main__":
    sys.exit(charlm.main(make_runner))
