"""Eight ways to save, and ours, after a crash at every point: which are safe, and under what.

Each save is recorded call by call; every state that a kill or a power cut may leave of it is built,
and the newest checkpoint that can be loaded is taken from it. A protocol that is safe under a model
is INTACT there; what else it does is the worst of all states.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chaoslab.crash import MODELS, Verdict, explore, table
from scenarios import protocols
from scenarios.protocols import newest, newest_that_loads, ours, ours_latest

INTACT, NOTHING, LOST, CORRUPT = (
    Verdict.INTACT,
    Verdict.NO_RESTORE,
    Verdict.LOST_ACKED,
    Verdict.SILENT_CORRUPT,
)
MOST_STATES = 2000

TABLE = {  # kill, journal, xfs, posix
    protocols.plain: (INTACT, LOST, CORRUPT, CORRUPT),
    protocols.in_place: (NOTHING, LOST, CORRUPT, CORRUPT),
    protocols.replace: (INTACT, LOST, CORRUPT, CORRUPT),
    protocols.replace_fsync: (INTACT, LOST, LOST, LOST),
    protocols.replace_fsync_directory: (INTACT, INTACT, INTACT, INTACT),
    protocols.remove_then_rename: (NOTHING, NOTHING, NOTHING, NOTHING),
    protocols.dcp_new: (INTACT, LOST, LOST, LOST),
    protocols.dcp_same: (NOTHING, NOTHING, CORRUPT, CORRUPT),
}


@pytest.mark.netem(needed=False)
@pytest.mark.parametrize(
    ("save", "expected"), TABLE.items(), ids=[protocol.__name__ for protocol in TABLE]
)
def test_a_protocol_is_as_safe_as_the_table_says(
    save: Callable[[Path, int], None], expected: tuple[Verdict, ...]
) -> None:
    """With a restore that falls back to the newest that loads."""
    explored = explore(save, newest_that_loads, most_states=MOST_STATES)
    sys.stdout.write(f"\n{save.__name__}\n{table(explored)}")
    assert tuple(result.verdict for result in explored.results) == expected


@pytest.mark.netem(needed=False)
def test_ours_is_intact_in_every_state_of_every_model() -> None:
    """Also while it removes the one before; all states are tried."""
    explored = explore(ours, ours_latest)
    sys.stdout.write(f"\nours\n{table(explored)}")
    assert [result.verdict for result in explored.results] == [INTACT] * len(MODELS)
    assert not any(result.is_bounded for result in explored.results)


@pytest.mark.netem(needed=False)
def test_a_restore_that_takes_the_newest_meets_the_torn_one() -> None:
    """The same save, judged by a restore that does not fall back: a kill is enough."""
    explored = explore(protocols.plain, newest, models=["kill"])
    assert explored.verdict is NOTHING
