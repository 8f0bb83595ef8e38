"""The example, whose ranks tell after giving up which sockets they still hold, and which group.

With KEEPS_ONE in its environment a rank opens a connection while it trains, which nobody closes.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import charlm
import torch.distributed as dist

from chaoslab import probe
from chaoslab.resilience.errors import CircuitOpen
from chaoslab.resilience.runner import FaultTolerantRunner
from chaoslab.resilience.task import Task

KEPT: list[socket.socket] = []


def sockets() -> set[str]:
    """Name this process's sockets by their inodes."""
    links = list(Path("/proc/self/fd").iterdir())
    names = {str(link.readlink()) for link in links if link.is_symlink()}
    return {name for name in names if name.startswith("socket:")}


class Telling(FaultTolerantRunner):
    """Tells what is left of it."""

    def run(self, task: Task, *, steps: int) -> None:
        """Train until the circuit opens."""
        before = sockets()
        if os.environ.get("KEEPS_ONE"):
            KEPT.append(socket.create_server(("127.0.0.1", 0)))
        try:
            super().run(task, steps=steps)
        except CircuitOpen:
            left = sorted(sockets() - before)
            probe.emit("left_behind", sockets=left, group=dist.is_initialized())
            raise


if __name__ == "__main__":
    charlm.FaultTolerantRunner = Telling  # type: ignore[misc]
    sys.exit(charlm.main())
