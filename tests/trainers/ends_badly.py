"""A defective twin of charlm: all its work is done, and then it fails."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import charlm

STATUS = 3

if __name__ == "__main__":
    sys.exit(charlm.main() or STATUS)
