"""charlm, but a process group, once formed, is never destroyed: that call does not return."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import charlm
import torch.distributed as dist


def hang() -> None:
    """Wait for nothing."""
    threading.Event().wait()


if __name__ == "__main__":
    dist.destroy_process_group = hang  # type: ignore[assignment]
    sys.exit(charlm.main())
