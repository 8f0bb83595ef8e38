"""charlm, but what is left of rank 0's first group takes long to go: gloo has forgotten a send.

Until then its last reference is held, which the group's destructor would wait in.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import charlm

from chaoslab import probe
from chaoslab.resilience import group

SLOW_S = 3.0
healthy_release = group._release
waits_s = [SLOW_S] if os.environ["RANK"] == "0" else []


def release(held: list[object]) -> None:
    """Take long, once."""
    if waits_s:
        time.sleep(waits_s.pop())
        probe.emit("released")
    healthy_release(held)


if __name__ == "__main__":
    group._release = release
    sys.exit(charlm.main())
