"""A process that dies anywhere in a save leaves the old checkpoint or the new one, never none."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import (
    alone,
    flip_a_bit,
    lose_a_shard,
    lose_the_manifest,
    manager,
    names,
    on_disk,
    state_of,
    tear_the_manifest,
    truncate,
)
from hypothesis import given, settings, strategies as st

from chaoslab.resilience import digests, layout, retention, saving
from chaoslab.resilience.errors import CheckpointCorrupt, CheckpointError, SaveAbandoned

# Damaging checkpoints is what these tests do; latest() warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:.*checkpoints are refused:RuntimeWarning")

CRASHED = 99
OPERATIONS = {
    *("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "fcntl.flock"),
    *("os.listdir", "os.scandir", "shutil.rmtree", "os.fsync"),
}


def dies_at(nth: int, directory: Path, work: Callable[[], Any]) -> bool:
    """Do the work in a child that dies before its nth file operation; tell whether it did.

    The real code runs and makes the real calls. It dies by _exit: no handler, no clean-up.
    """
    pid = os.fork()
    if pid != 0:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (0, CRASHED)
        return status == CRASHED
    count = itertools.count(1)

    def before(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in OPERATIONS:
            return
        if event == "open" and not str(arguments[0]).startswith(str(directory)):
            return
        if next(count) == nth:
            os._exit(CRASHED)

    real_fsync = os.fsync

    def fsync(fd: int) -> None:
        before("os.fsync", ())
        real_fsync(fd)

    status = 1
    try:
        torch.set_num_threads(1)  # the parent's pool of threads is not in this process
        os.fsync = fsync  # what is not audited
        sys.addaudithook(before)
        work()
        status = 0
    finally:
        os._exit(status)
    raise AssertionError("unreachable: the child has left")


def crashes(directory: Path, template: Path, work: Callable[[], Any]) -> Iterator[int]:
    """Crash the work at each of its operations in turn, each time on a copy of the template."""
    for nth in itertools.count(1):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(template, directory)
        if not dies_at(nth, directory, work):
            return
        yield nth


def outcome(directory: Path, **options: Any) -> tuple[int | None, int | None]:
    """Give the newest step that verifies, and what was saved in it."""
    saver = alone(directory, **options)
    found = saver.latest()
    return (None, None) if found is None else (found.step, saver.load(found.step)["a"])


CASES = {
    "a new step": ([1, 2], 3),
    "a step that is there already": ([1, 2], 2),
    "a step before those there": ([4, 5, 6], 3),
    "the first step": ([], 3),
}


@pytest.mark.parametrize("case", CASES)
def test_a_crash_at_any_file_operation_leaves_the_old_or_the_new(case: str, tmp_path: Path) -> None:
    """Every operation of a save and of the tidying after it; then a restart goes on as ever."""
    before, step = CASES[case]
    directory, template = tmp_path / "c", tmp_path / "template"
    template.mkdir()
    for old in before:
        alone(template, keep=2).save(old, {"a": old})
    old = (before[-1], before[-1]) if before else (None, None)
    new = (step, -step) if not before or step >= before[-1] else old
    seen = set()

    def save() -> None:
        alone(directory, keep=2).save(step, {"a": -step}, attempt="again")

    for nth in crashes(directory, template, save):
        seen.add(outcome(directory))
        assert seen <= {old, new}, f"after a crash at operation {nth}"
        saver = alone(directory, keep=2)
        saver.save(7, {"a": 7})
        assert outcome(directory) == (7, 7)
        left = names(directory)
        assert len(left) <= 3, (nth, left)
        assert not [name for name in left if layout.is_work(name)], (nth, left)
    assert seen == {old, new}
    assert alone(directory).load(step) == {"a": -step}


def test_a_commit_that_removes_before_it_renames_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault of the test above: at some operation nothing is left."""

    def removes_first(save: saving.Save, manifest: layout.Manifest) -> None:
        (save.work / layout.MANIFEST).write_text(manifest.to_json())
        shutil.rmtree(save.final)
        save.work.rename(save.final)

    directory, template = tmp_path / "c", tmp_path / "template"
    template.mkdir()
    alone(template).save(1, {"a": 1})
    monkeypatch.setattr(retention, "commit", removes_first)
    seen = {
        outcome(directory)
        for _ in crashes(directory, template, lambda: alone(directory).save(1, {"a": -1}))
    }
    assert (None, None) in seen


def test_a_peer_that_crashes_at_any_file_operation_leaves_the_old_or_the_new(
    tmp_path: Path,
) -> None:
    """What rank 0 says about the save is true: committed and whole, or the one before."""
    directory, template = tmp_path / "c", tmp_path / "template"
    template.mkdir()
    pair = [manager(template, rank, world_size=2) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank: pair[rank].save(1, state_of(rank, 1)), range(2)))

    def peer() -> None:
        try:
            manager(directory, 1, world_size=2, deadline_s=1).save(2, state_of(1, 2))
        except CheckpointError:
            os._exit(CRASHED)

    outcomes = set()
    for nth in itertools.count(1):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(template, directory)
        first = manager(directory, 0, world_size=2, deadline_s=0.1)
        first.async_save(2, state_of(0, 2))
        died = dies_at(nth, directory, peer)
        try:
            step = 2 if first.wait() else 0
        except CheckpointError:
            step = 1
        found = first.latest()
        assert found is not None
        assert (found.step, found.refused) == (step, ()), nth
        outcomes.add(step)
        if not died:
            break
    assert outcomes == {1, 2}


def test_a_rank_that_gives_up_while_rank_0_commits_takes_nothing_out_of_the_commit(
    tmp_path: Path,
) -> None:
    """It is told to leave at the moment at which its shard was claimed."""
    for step in range(1, 31):
        note = tmp_path / f".tmp-step-{step:08d}-solo" / "rank-00001.pt.note"
        seen = []

        def reason(note: Path = note, seen: list[bool] = seen) -> str | None:
            seen.append(note.exists())
            return "told to leave" if True in seen and not seen[-1] else None

        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(
                manager(tmp_path, 1, world_size=2).save, step, state_of(1, step), should_stop=reason
            )
            try:
                manager(tmp_path, world_size=2).save(step, state_of(0, step))
                committed = True
            except CheckpointError:
                committed = False
            assert other.exception() is None or isinstance(other.exception(), CheckpointError)
        assert committed
        found = manager(tmp_path, world_size=2).latest()
        assert found is not None
        assert (found.step, found.refused) == (step, ())


@pytest.mark.parametrize("give_up", [0, 1])
def test_a_rank_that_withdraws_before_it_is_claimed_ends_the_save(
    give_up: int, tmp_path: Path
) -> None:
    """The other rank is told at once, whichever gives up, and nothing is committed."""
    savers = [manager(tmp_path, rank, world_size=3, deadline_s=3600) for rank in range(2)]
    for rank, saver in enumerate(savers):
        saver.async_save(1, state_of(rank, 1))  # rank 2 never comes
    savers[give_up].abandon("told to leave")
    # It may be told before it has written its own shard, or while it waits for the others'.
    told = f"rank-0000{give_up}|rank {give_up} has given up"
    with pytest.raises(CheckpointError, match=told):
        savers[1 - give_up].wait()
    assert savers[0].latest() is None
    assert savers[0].sweep()
    assert names(tmp_path) == []


def test_a_shard_that_rank_0_has_claimed_is_not_removed_by_its_rank(tmp_path: Path) -> None:
    """Before the claim it is withdrawn, and the claim fails; afterwards it stays."""
    for is_claimed in (True, False):
        save = saving.Save(
            step=1,
            attempt="a",
            work=tmp_path / f"{is_claimed}",
            final=tmp_path / "final",
            deadline_s=float("inf"),
            should_stop=lambda: None,
        )
        save.work.mkdir()
        shards = []
        for rank in range(2):
            name = layout.shard_name(rank)
            (save.work / name).write_bytes(b"content")
            sums = digests.DIGEST_HEX * "0"
            shards.append(layout.Shard(name=name, size_bytes=7, block_bytes=8, digests=sums))
            saving.put_note(save, shards[-1])
        if is_claimed:
            assert saving.collect(save, 2) == tuple(shards)
        saving.give_up(save.work, 1, delivered=True)
        assert (save.work / "rank-00001.pt").exists() == is_claimed
        if not is_claimed:
            with pytest.raises(SaveAbandoned, match="rank-00001"):
                saving.collect(save, 2)


DAMAGES = (flip_a_bit, truncate, lose_a_shard, lose_the_manifest, tear_the_manifest)


def damage(path: Path, kind: Callable[..., None]) -> None:
    """Spoil a checkpoint of one rank, if it has what is to be spoilt."""
    try:
        kind(path) if kind in (lose_the_manifest, tear_the_manifest) else kind(path, 0)
    except FileNotFoundError:
        return


def verified(directory: Path) -> list[int]:
    """List the steps whose every byte is as it was saved, newest first."""
    found = []
    for step, path in layout.candidates(directory):
        try:
            layout.verify(path, world_size=None)
            found.append(step)
        except CheckpointCorrupt:
            continue
    return found


Commits = st.tuples(st.just("commit"), st.integers(0, 30))
Damage = st.tuples(st.sampled_from(DAMAGES), st.integers(0, 5))
Restarts = st.tuples(st.just("restart"), st.sampled_from(["latest", "survey", "neither"]))


@settings(on_disk, max_examples=60)
@given(st.lists(Commits | Damage | Restarts, max_size=14), st.integers(1, 3))
def test_retention_never_removes_the_newest_that_verifies(
    acts: list[tuple[Any, Any]], keep: int
) -> None:
    """After any commits (back in time, too), damages and restarts; and the number is bounded."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        saver = alone(directory, keep=keep)
        for act, what in acts:
            present = layout.candidates(directory)
            if act == "commit":
                newest = max([what, *verified(directory)])
                saver.save(what, {"a": torch.ones(3)})
                assert what in verified(directory)
                assert verified(directory)[0] == newest
                assert len(names(directory)) <= keep + 1
            elif act == "restart":
                saver = alone(directory, keep=keep)
                getattr(saver, what, dict)()
            elif present:
                damage(present[what % len(present)][1], act)


@settings(on_disk, max_examples=40)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 4))
def test_retention_keeps_the_last_n_in_order_of_steps(gaps: list[int], keep: int) -> None:
    """Without damage: the newest N of all that were committed, forwards in time."""
    with tempfile.TemporaryDirectory() as place:
        saver = alone(Path(place), keep=keep)
        steps = list(itertools.accumulate(gaps))
        for step in steps:
            saver.save(step, {"a": step})
        assert verified(Path(place)) == sorted(set(steps), reverse=True)[:keep]


def test_a_checkpoint_known_to_be_damaged_does_not_count(tmp_path: Path) -> None:
    """With keep=2: the newest that verify stay, a corrupt one does not take a place."""
    saver = alone(tmp_path, keep=2)
    for step in (1, 2):
        saver.save(step, {"a": step})
    flip_a_bit(tmp_path / "step-00000002", 0)
    again = alone(tmp_path, keep=2)
    found = again.latest()
    assert found is not None
    assert found.step == 1
    again.save(3, {"a": 3})
    assert verified(tmp_path) == [3, 1]
    assert names(tmp_path) == ["step-00000001", "step-00000003"]


def test_a_job_that_begins_anew_in_the_directory_of_another_keeps_its_newest(
    tmp_path: Path,
) -> None:
    """Of later checkpoints one stays, the newest that verifies, whatever is committed before."""
    saver = alone(tmp_path, keep=3)
    for step in (100, 200, 300):
        saver.save(step, {"a": step})
    flip_a_bit(tmp_path / "step-00000300", 0)
    mistaken = alone(tmp_path, keep=2)
    for step in (1, 2, 3):
        mistaken.save(step, {"a": step})
        assert 200 in verified(tmp_path)
    assert verified(tmp_path) == [200, 3, 2]


def test_a_checkpoint_that_is_being_read_is_not_removed(tmp_path: Path) -> None:
    """A slow load beside a fast save: it goes at the next tidying."""
    saver = alone(tmp_path, keep=1)
    saver.save(1, {"a": 1})
    shard = layout.read_manifest(tmp_path / "step-00000001").shards[0]
    with (
        saving.reading(tmp_path / "step-00000001"),
        layout.open_shard(tmp_path / "step-00000001", shard) as file,
    ):
        saver.save(2, {"a": 2})
        assert names(tmp_path) == ["step-00000001", "step-00000002"]
        assert torch.load(file, weights_only=True) == {"a": 1}
    saver.save(3, {"a": 3})
    assert names(tmp_path) == ["step-00000003"]


def test_what_a_failed_save_left_does_not_keep_its_step_from_being_saved(tmp_path: Path) -> None:
    """The same name again, after a give-up: the marker of the first try is not the second's."""
    saver = alone(tmp_path)
    with pytest.raises(CheckpointError, match="told to leave"):
        saver.save(1, {"a": torch.ones(600_000)}, should_stop=lambda: "told to leave")
    assert names(tmp_path / ".tmp-step-00000001-solo") == ["rank-00000.pt.failed"]
    saver.save(1, {"a": 1})
    assert saver.load(1) == {"a": 1}
