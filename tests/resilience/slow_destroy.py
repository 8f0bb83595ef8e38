"""charlm, but rank 0's first group takes longer to destroy than `teardown_s`, and not for ever.

As where gloo has forgotten a send: its collective ends by its own timeout.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import charlm
import torch.distributed as dist

from chaoslab.resilience.limits import Limits

SLOW_S = Limits.teardown_s + 0.5
healthy_destroy = dist.destroy_process_group
waits_s = [SLOW_S] if os.environ["RANK"] == "0" else []


def destroy() -> None:
    """Take long, once."""
    if waits_s:
        time.sleep(waits_s.pop())
    healthy_destroy()


if __name__ == "__main__":
    dist.destroy_process_group = destroy  # type: ignore[assignment]
    sys.exit(charlm.main())
