"""Savers as they run are judged: each thing left out is found, by the models that show it."""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import savers

from chaoslab.crash.exploration import ExplorationFailed, explore
from chaoslab.crash.judging import Verdict
from chaoslab.crash.models import MODELS

INTACT, NO_RESTORE, LOST, CORRUPT = (
    Verdict.INTACT,
    Verdict.NO_RESTORE,
    Verdict.LOST_ACKED,
    Verdict.SILENT_CORRUPT,
)
Saver = Callable[[Path, int], None]

CAREFUL = [
    (savers.correct, {}),
    (savers.no_directory_sync, {"journal": LOST, "xfs": LOST, "posix": LOST}),
    (savers.no_file_sync, {"journal": NO_RESTORE, "xfs": NO_RESTORE, "posix": NO_RESTORE}),
    (savers.sync_before_flush, {"journal": NO_RESTORE, "xfs": NO_RESTORE, "posix": NO_RESTORE}),
    (savers.no_sync, {"journal": LOST, "xfs": LOST, "posix": LOST}),
    (savers.in_place, dict.fromkeys(MODELS, NO_RESTORE)),
    (savers.pruned_first, {"kill": NO_RESTORE, "journal": NO_RESTORE, "xfs": NO_RESTORE,
                           "posix": NO_RESTORE}),
    (savers.plain, {"journal": LOST, "xfs": LOST, "posix": LOST}),
]  # fmt: skip


@pytest.mark.parametrize(("saver", "worst"), CAREFUL, ids=[one.__name__ for one, _ in CAREFUL])
def test_what_a_saver_leaves_out_is_found_by_the_models_that_show_it(
    saver: Saver, worst: dict[str, Verdict]
) -> None:
    """With a restore that falls back to what is whole; the correct saver is safe under all."""
    explored = explore(saver, savers.careful)
    found = {result.model: result.verdict for result in explored.results}
    assert found == dict.fromkeys(MODELS, INTACT) | worst
    assert explored.verdict is max(found.values(), key=list(Verdict).index)
    for result in explored.results:
        assert bool(result.failures) == (result.verdict is not INTACT)
        assert sum(result.counts.values()) == result.states >= result.unique > 0


SHARDED = [
    (savers.sharded, savers.trusting, set()),
    (savers.sharded, savers.verifying, set()),
    (savers.rename_before_the_last_write, savers.trusting, set(MODELS)),
    (savers.manifest_before_shard, savers.trusting, set(MODELS)),
    (savers.pruned_before_the_commit, savers.verifying, set(MODELS)),
    (savers.acknowledged_before_durable, savers.verifying, {"journal", "xfs", "posix"}),
    (savers.from_another_file_system, savers.trusting, set(MODELS)),
]


@pytest.mark.parametrize(
    ("saver", "restore", "failing"),
    SHARDED,
    ids=[f"{saver.__name__}-{restore.__name__}" for saver, restore, _ in SHARDED],
)
def test_a_defect_of_a_sharded_save_is_found(
    saver: Saver, restore: Callable[[Path], object], failing: set[str]
) -> None:
    """Two shards and a manifest: in its right order intact, and with each step out of order not."""
    explored = explore(saver, restore)
    found = {result.model for result in explored.results if result.verdict is not INTACT}
    assert found == failing


@pytest.mark.parametrize(
    ("saver", "said"),
    [
        (savers.digest_of_the_wrong_file, "step 1, with nothing lost, the restore gives nothing"),
        (savers.rank_0_alone, "step 1, with nothing lost, the restore gives nothing"),
    ],
)
def test_a_save_that_is_not_there_when_it_returns_is_told_at_once(saver: Saver, said: str) -> None:
    """It needs no crash to fail."""
    with pytest.raises(ExplorationFailed, match=said):
        explore(saver, savers.verifying)


def test_a_restore_that_takes_what_it_finds_gives_damage_as_if_it_were_whole() -> None:
    """The same saver, judged by a restore that looks at nothing."""
    explored = explore(savers.no_file_sync, savers.restore)
    assert explored.verdict is CORRUPT
    assert explore(savers.correct, savers.restore).verdict is INTACT


def test_a_failure_is_told_by_what_was_lost() -> None:
    """The step before is left, or none: each by one loss, in words."""
    explored = explore(savers.no_directory_sync, savers.careful, steps=(1, 2), models=["journal"])
    failures = explored.results[0].failures
    assert {failure.verdict for failure in failures} == {LOST, NO_RESTORE}
    lost = "the rename of draft to last did not survive"
    for failure in failures:
        assert failure.words.startswith("after the return of the save of step"), failure.words
        assert failure.words.endswith(f": {lost}"), failure.words


def test_a_restore_that_hangs_or_dies_is_unknown_and_ends_nothing() -> None:
    """On states of one step only; the others have their verdicts."""

    def hangs(root: Path) -> bytes | None:
        data = savers.careful(root)
        if data and not (root / "draft").exists() and data[0] == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return data

    # The reference of step 2 cannot be had: nothing can be judged.
    with pytest.raises(ExplorationFailed, match=r"step 2.*ended its process \(SIGKILL\)"):
        explore(savers.correct, hangs, steps=(1, 2))

    def dies_on_drafts(root: Path) -> bytes | None:
        if (root / "draft").exists() and (root / "last").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return savers.careful(root)

    explored = explore(savers.correct, dies_on_drafts, steps=(1, 2), models=["kill"])
    assert explored.verdict is Verdict.UNKNOWN
    assert explored.results[0].counts[INTACT] > 0

    def sleeps_on_drafts(root: Path) -> bytes | None:
        if (root / "draft").exists() and (root / "last").exists():
            signal.pause()
        return savers.careful(root)

    explored = explore(
        savers.correct, sleeps_on_drafts, steps=(1, 2), models=["kill"], restore_limit_s=0.2
    )
    assert explored.verdict is Verdict.UNKNOWN


def test_a_restore_that_cannot_be_told_apart_is_refused() -> None:
    """The same value after each save: a lost step could not be seen."""
    with pytest.raises(ExplorationFailed, match="gives what it gave before"):
        explore(savers.correct, lambda root: len(savers.careful(root) or b"") or None)
    with pytest.raises(ExplorationFailed, match="gives nothing: want its state"):
        explore(savers.correct, lambda _: None)
    with pytest.raises(ValueError, match="want some of kill, journal, xfs, posix"):
        explore(savers.correct, savers.careful, models=["ext3"])


def test_what_was_not_seen_leaves_the_verdict_unknown() -> None:
    """A saver that stores to a mapping: what its recording shows proves nothing."""

    def maps(root: Path, step: int) -> None:
        savers.correct(root, step)
        with (root / "last").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            mapped[0] = step

    explored = explore(maps, savers.careful, steps=(1, 2))
    assert explored.unseen == ("a shared mapping of last",)
    assert explored.verdict is Verdict.UNKNOWN


def test_the_bound_on_states_is_said() -> None:
    """More states than were to be tried: the result says so."""
    explored = explore(savers.correct, savers.careful, models=["posix"], most_states=10)
    assert explored.results[0].is_bounded
    assert explored.results[0].states == 10
    assert not explore(savers.correct, savers.careful, models=["kill"]).results[0].is_bounded
