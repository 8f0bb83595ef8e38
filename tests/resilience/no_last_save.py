"""charlm, but no rank can write the save at step 20, nor the last one, at step 40."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import charlm

from chaoslab.resilience.checkpoint import AtomicCheckpointManager
from chaoslab.resilience.errors import CheckpointWriteFailed

healthy_save = AtomicCheckpointManager.save


def save(manager: AtomicCheckpointManager, step: int, *given: Any, **more: Any) -> Path:
    """Save, or fail as on a full disk."""
    if step % 20 == 0:
        raise CheckpointWriteFailed(f"planted at step {step}")
    return healthy_save(manager, step, *given, **more)


if __name__ == "__main__":
    AtomicCheckpointManager.save = save  # type: ignore[method-assign]
    sys.exit(charlm.main())
