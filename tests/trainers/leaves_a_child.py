"""A defective twin of charlm: each rank has a child that outlives it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import charlm

if __name__ == "__main__":
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    sys.exit(charlm.main())
