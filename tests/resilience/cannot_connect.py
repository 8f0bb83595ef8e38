"""A job whose ranks all come together, and three times cannot connect to each other.

As on a link that loses many packets: each try takes a second and a half, longer in all than the
ranks would wait for one that does not come.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import charlm

from chaoslab.resilience import group, runner

FAILING_GENERATIONS = range(2, 5)
TRY_S = 1.5


class Unconnectable(group.Group):
    """Fails to connect after a while, in some generations."""

    def __init__(self, *given: Any, number: int, **more: Any) -> None:
        if number in FAILING_GENERATIONS:
            time.sleep(TRY_S)
            raise RuntimeError("Gloo connectFullMesh failed: planted")
        super().__init__(*given, number=number, **more)


if __name__ == "__main__":
    runner.Group = Unconnectable  # type: ignore[misc]
    sys.exit(charlm.main())
