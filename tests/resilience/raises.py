"""charlm, but rank 1 raises an error of its own at step 5."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import charlm

BAD_RANK, BAD_STEP = 1, 5
healthy_step = charlm.CharacterTask.step


def step(task: charlm.CharacterTask, number: int) -> float:
    """Do the step, or raise the planted error."""
    if (task.rank, number) == (BAD_RANK, BAD_STEP):
        raise ValueError(f"planted at step {number}")
    return healthy_step(task, number)


if __name__ == "__main__":
    charlm.CharacterTask.step = step  # type: ignore[method-assign]
    sys.exit(charlm.main())
