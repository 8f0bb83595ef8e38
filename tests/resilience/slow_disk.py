"""charlm, but the disk takes longer for the save at step 20 than a save may last."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import charlm

from chaoslab.resilience import layout

SLOW_STEP, SLOW_S = 20, 4.0
healthy_fsync = os.fsync


def fsync(fd: int) -> None:
    """Take long over a shard of step 20."""
    path = Path(f"/proc/self/fd/{fd}").readlink()
    if path.name.startswith("rank-") and layout.work_step(path.parent.name) == SLOW_STEP:
        time.sleep(SLOW_S + 0.1 * int(os.environ["RANK"]))  # rank 0 is the first to be late
    healthy_fsync(fd)


if __name__ == "__main__":
    os.fsync = fsync
    sys.exit(charlm.main())
