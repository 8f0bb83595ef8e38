"""What the runner adds to a healthy step: a task that does nothing, on one rank, with events on.

    python benchmarks/step.py [--steps 20000]

Real store, real gloo group of one rank, events written to a file. Beside it the bare loop.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from chaoslab.resilience import AtomicCheckpointManager, FaultTolerantRunner, StoreClient
from chaoslab.resilience.store import parse_address

MOST_US = 50.0
"""What is claimed: the runner adds this much to a healthy step at most."""

REPEATS = 5


class Nothing:
    """A task without work."""

    def __init__(self) -> None:
        self.began_s = self.ended_s = 0.0

    def reset(self) -> None:
        """Begin."""

    def attach(self) -> None:
        """Wrap nothing."""

    def detach(self) -> None:
        """Drop nothing."""

    def step(self, step: int) -> float:
        """Note when the first and the last step were made."""
        self.ended_s = time.perf_counter()
        if step == 1:
            self.began_s = self.ended_s
        return 0.0

    def state_dict(self) -> dict[str, Any]:
        """Give no state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take no state."""


def one(address: tuple[str, int], steps: int) -> tuple[float, float]:
    """Give microseconds per step: under the runner, and in a bare loop."""
    with tempfile.TemporaryDirectory(prefix="chaoslab-bench-") as directory:
        task = Nothing()
        client = StoreClient(*address, timeout_s=10)
        checkpoints = AtomicCheckpointManager(Path(directory) / "c", rank=0, world_size=1)
        FaultTolerantRunner(
            client=client,
            rank=0,
            world_size=1,
            checkpoints=checkpoints,
            save_every_steps=steps + 1,
        ).run(task, steps=steps)
        client.close()
    bare = Nothing()
    for step in range(1, steps + 1):
        bare.step(step)
    taken = [(t.ended_s - t.began_s) / (steps - 1) * 1e6 for t in (task, bare)]
    return taken[0], taken[1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    chosen = parser.parse_args()
    os.environ.setdefault("CHAOSLAB_EVENTS", os.path.join(tempfile.gettempdir(), "step-events"))  # noqa: PTH118
    command = [sys.executable, "-m", "chaoslab.resilience.store", "--listen", "127.0.0.1:0"]
    figures = []
    for _ in range(REPEATS):  # a store of its own each time: a finished job's says that it is done
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as store:
            assert store.stdout is not None
            try:
                at = parse_address(store.stdout.readline().split()[1])
                figures.append(one(at, chosen.steps))
            finally:
                store.terminate()
    Path(os.environ["CHAOSLAB_EVENTS"]).unlink()
    least = min(runner for runner, _ in figures)
    median = sorted(runner for runner, _ in figures)[len(figures) // 2]
    bare = sorted(bare for _, bare in figures)[len(figures) // 2]
    print(
        f"runner {median:.1f} us a step (least {least:.1f}, n={REPEATS}), bare loop {bare:.2f} us  "
        f"at most {MOST_US:g} us: {'held' if median <= MOST_US else 'NOT HELD'}"
    )


if __name__ == "__main__":
    main()
