"""A checkpoint is whole or not there; what is refused is refused with a reason."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from checkpoints import (
    RANKS,
    change_the_format,
    flip_a_bit,
    lose_a_shard,
    lose_the_manifest,
    manager,
    names,
    save_all,
    state_of,
    tear_the_manifest,
    truncate,
    zero_a_hole,
)
from hypothesis import given, strategies as st

from chaoslab.resilience import layout, saving
from chaoslab.resilience.errors import (
    CheckpointCorrupt,
    CheckpointWriteFailed,
    SaveAbandoned,
    SaveTimedOut,
)


def test_what_all_ranks_save_each_can_load(tmp_path: Path) -> None:
    """Every rank gets back its own state; the directory holds shards and manifest, no more."""
    assert save_all(tmp_path, 42) == [tmp_path / "step-00000042"] * RANKS
    for rank in range(RANKS):
        loaded = manager(tmp_path, rank).load(42)
        assert torch.equal(loaded["weights"], state_of(rank, 42)["weights"])
    shards = [f"rank-0000{rank}.pt" for rank in range(RANKS)]
    assert names(tmp_path / "step-00000042") == ["manifest.json", *shards]
    assert names(tmp_path) == ["step-00000042"]


def test_the_last_n_stay_and_foreign_files_are_left_alone(tmp_path: Path) -> None:
    """Retention removes own checkpoints only."""
    foreign = ["README", "step-latest", "step-5", ".tmp-mine", "model.pt"]
    for name in foreign[:-1]:
        (tmp_path / name).mkdir()
    (tmp_path / "model.pt").write_text("not ours")
    for step in (1, 2, 3, 4):
        save_all(tmp_path, step, keep=2)
    assert names(tmp_path) == sorted([*foreign, "step-00000003", "step-00000004"])
    found = manager(tmp_path).latest()
    assert found is not None
    assert (found.step, found.refused) == (4, ())


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (flip_a_bit, "rank-00001.pt does not have the digest"),
        (zero_a_hole, "rank-00001.pt does not have the digest"),
        (truncate, "rank-00002.pt has 100 bytes"),
        (lose_a_shard, "rank-00000.pt cannot be read"),
        (lose_the_manifest, "the save did not finish"),
        (tear_the_manifest, "manifest.json cannot be read"),
        (change_the_format, "want 2"),
    ],
)
def test_a_spoiled_checkpoint_is_refused_and_the_one_before_is_found(
    spoil: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    """latest() falls back and says why; the survey of some rank refuses it, too."""
    save_all(tmp_path, 1)
    save_all(tmp_path, 2)
    spoil(tmp_path / "step-00000002")
    found = manager(tmp_path).latest()
    assert found is not None
    assert found.step == 1
    assert reason in found.refused[0].reason
    surveys = [set(manager(tmp_path, rank).survey().steps) for rank in range(RANKS)]
    assert set.intersection(*surveys) == {1}
    loads = []
    for rank in range(RANKS):
        try:
            manager(tmp_path, rank).load(2)
        except CheckpointCorrupt as error:
            loads.append(str(error))
    assert any(reason in told for told in loads)


def test_a_directory_with_nothing_in_it_has_no_latest(tmp_path: Path) -> None:
    """Neither a missing nor an empty directory is an error: it is a fresh start."""
    assert manager(tmp_path / "missing").latest() is None
    assert manager(tmp_path).latest() is None
    assert manager(tmp_path).survey().steps == ()


def test_a_checkpoint_of_another_size_is_refused(tmp_path: Path) -> None:
    """Shards of two ranks do not restore a job of three."""
    save_all(tmp_path, 1, ranks=2, world_size=2)
    survey = manager(tmp_path).survey()
    assert survey.steps == ()
    assert "want 3" in survey.refused[0].reason


def test_a_missing_rank_ends_the_save_at_its_deadline(tmp_path: Path) -> None:
    """Those who did save give up in time; the checkpoint before is untouched."""
    save_all(tmp_path, 1)
    outcomes = save_all(tmp_path, 2, ranks=2, deadline_s=0.3)
    assert all(isinstance(outcome, SaveAbandoned) for outcome in outcomes)
    assert any(isinstance(outcome, SaveTimedOut) for outcome in outcomes)
    assert "rank-00002" in str(outcomes[0]) or "rank-00001" in str(outcomes[0])
    found = manager(tmp_path).latest()
    assert found is not None
    assert found.step == 1


def test_a_rank_whose_disk_is_full_ends_the_save_everywhere_at_once(tmp_path: Path) -> None:
    """ENOSPC on one rank: it says so, the others do not wait for the deadline."""
    save_all(tmp_path, 1)
    work = tmp_path / ".tmp-step-00000002-one"
    work.mkdir()
    (work / "rank-00001.pt").symlink_to("/dev/full")
    held = saving.lock(work, alone=False)  # else it is swept as stale
    outcomes = save_all(tmp_path, 2, deadline_s=3600)
    assert held is not None
    saving.unlock(held)
    assert [type(o) for o in outcomes] == [SaveAbandoned, CheckpointWriteFailed, SaveAbandoned]
    assert os.strerror(errno.ENOSPC) in str(outcomes[1])
    assert names(tmp_path)[-1] == "step-00000001"
    assert save_all(tmp_path, 3) == [tmp_path / "step-00000003"] * RANKS
    assert names(tmp_path) == ["step-00000001", "step-00000003"]


def test_a_read_only_directory_is_told(tmp_path: Path) -> None:
    """The error names the directory and what is wanted of it."""
    tmp_path.chmod(0o555)
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setresuid(65534, 65534, 65534)
            manager(tmp_path, world_size=1).save(1, state_of(0, 1))
        except CheckpointWriteFailed as error:
            os._exit(0 if "want a writable directory" in str(error) else 2)
        finally:
            os._exit(3)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    tmp_path.chmod(0o755)
    assert status == 0


def test_a_reason_to_stop_ends_the_wait(tmp_path: Path) -> None:
    """A rank that waits for its peers leaves when it is told that the group is lost."""
    with pytest.raises(SaveAbandoned, match="generation moved on"):
        manager(tmp_path).save(1, state_of(0, 1), should_stop=lambda: "generation moved on")


def test_a_state_that_cannot_be_saved_is_the_users_error(tmp_path: Path) -> None:
    """It is raised as it is, and peers are told at once."""
    with pytest.raises(Exception, match=r"pickle|local object"):
        manager(tmp_path, world_size=1).save(1, {"bad": lambda: None})
    assert manager(tmp_path, world_size=1).latest() is None


def test_stale_temporary_directories_are_swept_but_not_those_in_use(tmp_path: Path) -> None:
    """What a killed save left behind goes; what a living process has locked stays."""
    for attempt in ("dead", "alive"):
        (tmp_path / f".tmp-step-00000001-{attempt}").mkdir()
        (tmp_path / f".tmp-step-00000001-{attempt}" / "rank-00000.pt").write_bytes(b"torn")
    fd = os.open(tmp_path / ".tmp-step-00000001-alive", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    save_all(tmp_path, 2)
    assert names(tmp_path) == [".tmp-step-00000001-alive", "step-00000002"]
    os.close(fd)
    assert [path.name for path in manager(tmp_path).sweep()] == [".tmp-step-00000001-alive"]


@pytest.mark.parametrize("number", ["ENOLCK", "ENOSYS", "EOPNOTSUPP"])
def test_a_file_system_without_locks_is_good_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    """Saving works there; another error of a lock is told."""

    def answer(number: int) -> None:
        def flock(*_: object) -> None:
            raise OSError(number, "planted")

        monkeypatch.setattr(saving.fcntl, "flock", flock)

    answer(getattr(errno, number))
    alone = manager(tmp_path, world_size=1)
    assert alone.save(1, {"a": 1}) == tmp_path / "step-00000001"
    answer(errno.EIO)
    with pytest.raises(CheckpointWriteFailed, match="planted"):
        alone.save(2, {"a": 1})


def test_the_torn_shard_of_a_killed_save_is_not_taken_for_the_new_one(tmp_path: Path) -> None:
    """A temporary directory of the same name with old shards and notes in it is overwritten."""
    work = tmp_path / ".tmp-step-00000001-one"
    work.mkdir()
    for rank in range(RANKS):
        (work / f"rank-0000{rank}.pt").write_bytes(b"torn" * 100_000)
    assert save_all(tmp_path, 1) == [tmp_path / "step-00000001"] * RANKS
    assert layout.verify(tmp_path / "step-00000001", world_size=RANKS)


def test_a_directory_swept_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer's sweep comes between `mkdir`, which finds it there, and the look at what it is."""
    work = tmp_path / ".tmp-step-00000001-one"
    work.mkdir()
    healthy, swept = os.mkdir, []

    def mkdir(path: Path, mode: int = 0o777) -> None:
        try:
            healthy(path, mode)
        except FileExistsError:
            if Path(path) == work and not swept:
                swept.append(path)
                work.rmdir()
            raise

    monkeypatch.setattr(os, "mkdir", mkdir)
    alone = manager(tmp_path, world_size=1)
    alone._is_swept = True
    assert alone.save(1, {"a": 1}, attempt="one") == tmp_path / "step-00000001"
    assert swept


def test_two_saves_that_race_leave_one_whole_checkpoint(tmp_path: Path) -> None:
    """Two attempts at one step, with stale directories about: the step is there and verifies."""
    for stale in ("x", "y"):
        (tmp_path / f".tmp-step-00000001-{stale}").mkdir()
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(
            pool.map(lambda a: save_all(tmp_path, 1, attempt=a, deadline_s=3), ("first", "second"))
        )
    assert any(outcome == [tmp_path / "step-00000001"] * RANKS for outcome in outcomes)
    assert layout.verify(tmp_path / "step-00000001", world_size=RANKS)
    manager(tmp_path).sweep()
    assert names(tmp_path) == ["step-00000001"]


def test_saving_a_step_again_never_leaves_a_moment_without_it(tmp_path: Path) -> None:
    """A crash between moving the old one aside and the new one in leaves the old one."""
    save_all(tmp_path, 1)
    (tmp_path / "step-00000001").rename(tmp_path / ".replaced-step-00000001-two")
    found = manager(tmp_path).latest()
    assert found is not None
    assert found.path.name == ".replaced-step-00000001-two"
    assert manager(tmp_path, 1).load(1)["step"] == 1
    manager(tmp_path).sweep()
    assert manager(tmp_path).latest() is not None
    save_all(tmp_path, 1, attempt="three")
    assert names(tmp_path) == ["step-00000001"]


def test_a_refused_checkpoint_is_replaced_when_its_step_is_saved_again(tmp_path: Path) -> None:
    """After a resume from an older step the newer, corrupt one is overwritten in one rename."""
    save_all(tmp_path, 1)
    save_all(tmp_path, 2)
    flip_a_bit(tmp_path / "step-00000002")
    save_all(tmp_path, 2, attempt="again")
    found = manager(tmp_path).latest()
    assert found is not None
    assert (found.step, found.refused) == (2, ())


def test_a_corrupt_future_never_pushes_out_the_good_past(tmp_path: Path) -> None:
    """keep=1 with a corrupt later step: the step just committed stays."""
    save_all(tmp_path, 9)
    shutil.rmtree(tmp_path / "step-00000009" / "rank-00000.pt", ignore_errors=True)
    (tmp_path / "step-00000009" / "rank-00000.pt").unlink()
    save_all(tmp_path, 3, keep=1)
    found = manager(tmp_path).latest()
    assert found is not None
    assert found.step == 3


@given(st.lists(st.integers(0, 50)), st.integers(0, 50), st.integers(1, 5))
def test_retention_keeps_the_newest(steps: list[int], committed: int, keep: int) -> None:
    """The committed step and one later one stay; of the past the newest, `keep` in all."""
    future = max((step for step in steps if step > committed), default=None)
    kept = layout.retained(steps, committed=committed, keep=keep, future=future)
    past = sorted({step for step in [*steps, committed] if step <= committed})
    assert {step for step in kept if step > committed} == ({future} if future else set())
    assert sorted(step for step in kept if step <= committed) == past[-keep:]
