"""A defective twin of charlm: a restart puts back everything but the random states.

The job recovers in time and loses nothing, and ends with another model than it should: dropout
draws other masks after the restart.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import charlm

from chaoslab.resilience import state

if __name__ == "__main__":
    state.set_random_states = lambda states: None  # noqa: ARG005  the defect
    sys.exit(charlm.main())
