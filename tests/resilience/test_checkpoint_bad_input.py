"""Bad input and bad places: a clear error or a reason, and nothing is lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import alone, manager, names, on_disk, save_all, state_of
from hypothesis import assume, given, strategies as st
from own_mounts import MS_BIND, in_own_mounts, make_read_only, mount, mount_tmpfs

from chaoslab.resilience import digests, layout
from chaoslab.resilience.checkpoint import AtomicCheckpointManager
from chaoslab.resilience.errors import (
    CheckpointError,
    CheckpointWriteFailed,
    SaveAbandoned,
)

# Damaging checkpoints is what these tests do; latest() warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:.*checkpoints are refused:RuntimeWarning")

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    "wrong",
    [
        {"world_size": 0},
        {"world_size": -1},
        {"world_size": 1.0},
        {"world_size": True},
        {"rank": 1},
        {"rank": -1},
        {"rank": "0"},
        {"keep": 0},
        {"keep": 1.5},
        {"deadline_s": 0},
        {"deadline_s": -1.0},
        {"deadline_s": INF},
        {"deadline_s": NAN},
    ],
)
def test_a_manager_that_cannot_be_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    """The message shows what was given and what is wanted; nothing is made on disk."""
    with pytest.raises(ValueError, match=r"world_size=.*want keep >= 1") as told:
        AtomicCheckpointManager(tmp_path / "c", **{"rank": 0, "world_size": 1, **wrong})
    assert all(f"{name}={value}" in str(told.value) for name, value in wrong.items())
    assert names(tmp_path) == []


@pytest.mark.parametrize("step", [1.0, 1.5, "1", None, True, -1, [1], NAN])
@pytest.mark.parametrize("call", ["save", "async_save", "load"])
def test_a_step_that_is_none_is_refused(call: str, step: Any, tmp_path: Path) -> None:
    """Before anything is written."""
    saver = alone(tmp_path)
    with pytest.raises(ValueError, match="want an integer >= 0"):
        saver.load(step) if call == "load" else getattr(saver, call)(step, {})
    assert names(tmp_path) == []


def test_an_integer_of_another_type_is_a_step(tmp_path: Path) -> None:
    """NumPy's and torch's integers are integers."""
    saver = alone(tmp_path)
    saver.save(np.int64(3), {"a": 1})
    saver.save(torch.tensor(4), {"a": 1})  # type: ignore[arg-type]
    assert names(tmp_path) == ["step-00000003", "step-00000004"]
    assert saver.load(np.int32(4)) == {"a": 1}


@pytest.mark.parametrize("attempt", ["", "a/b", "../up", "a b", "x" * 101, None, 7])
def test_an_attempt_that_cannot_name_a_directory_is_refused(attempt: Any, tmp_path: Path) -> None:
    """A slash would save somewhere else."""
    with pytest.raises(ValueError, match="it names a directory"):
        alone(tmp_path).save(1, {}, attempt=attempt)
    assert names(tmp_path) == []


@pytest.mark.parametrize("state", [[], None, torch.ones(1), "state"])
def test_a_state_that_is_no_dict_is_refused(state: Any, tmp_path: Path) -> None:
    """What is loaded is one."""
    with pytest.raises(ValueError, match="want a dict"):
        alone(tmp_path).save(1, state)


@pytest.mark.parametrize("limit_s", [-1, -0.1, NAN])
def test_a_negative_limit_is_refused(limit_s: float, tmp_path: Path) -> None:
    """For every wait."""
    saver = alone(tmp_path)
    calls = (saver.wait, saver.close, lambda limit_s: saver.abandon("x", limit_s=limit_s))
    for call in calls:
        with pytest.raises(ValueError, match="want limit_s >= 0"):
            call(limit_s)


def test_a_path_that_is_a_file_is_told_by_every_call(tmp_path: Path) -> None:
    """It is no fresh start: that would begin at step 0 what has been trained."""
    (tmp_path / "file").write_text("")
    saver = alone(tmp_path / "file")
    with pytest.raises(CheckpointWriteFailed, match="want a writable directory"):
        saver.save(1, {})
    for call in (saver.latest, saver.survey, lambda: saver.load(1)):
        with pytest.raises(CheckpointError, match="want a readable directory"):
            call()


def put_a_file(path: Path) -> None:
    path.write_text("mine")


def put_a_link(path: Path) -> None:
    path.symlink_to("/etc")


def put_a_directory(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("mine")


def put_a_tree(path: Path) -> None:
    (path / "rank-00000.pt").mkdir(parents=True)


@pytest.mark.parametrize("put", [put_a_file, put_a_link, put_a_directory, put_a_tree])
def test_what_is_foreign_under_a_checkpoints_name_is_neither_used_nor_removed(
    put: Callable[[Path], None], tmp_path: Path
) -> None:
    """Saving that step is refused with the name; other steps go on around it."""
    for name in ("step-00000002", ".tmp-step-00000002-solo", ".replaced-step-00000003-x"):
        put(tmp_path / name)
    before = {path: path.lstat().st_ino for path in tmp_path.rglob("*")}
    saver = alone(tmp_path, keep=1)
    with pytest.raises(CheckpointWriteFailed, match=r"step-00000002.*move"):
        saver.save(2, {"a": 2})
    for step in (1, 3, 4):
        saver.save(step, {"a": step})
    found = saver.latest()
    assert found is not None
    assert found.step == 4
    after = {path: path.lstat().st_ino for path in tmp_path.rglob("*")}
    assert before.items() <= after.items()
    ours = [name for name in names(tmp_path) if name not in {path.name for path in before}]
    assert ours == ["step-00000004"]


def test_a_note_that_someone_put_into_a_checkpoint_keeps_it(tmp_path: Path) -> None:
    """The checkpoint verifies as before, and retention leaves it alone."""
    saver = alone(tmp_path, keep=1)
    saver.save(1, {"a": 1})
    (tmp_path / "step-00000001" / "best.txt").write_text("the best so far")
    saver.save(2, {"a": 2})
    assert saver.load(1) == {"a": 1}
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_a_checkpoint_moved_to_another_steps_name_is_refused(tmp_path: Path) -> None:
    """What it holds is not what its name promises."""
    saver = alone(tmp_path)
    saver.save(1, {"a": 1})
    shutil.copytree(tmp_path / "step-00000001", tmp_path / "step-00000009")
    found = saver.latest()
    assert found is not None
    assert found.step == 1
    assert "is of step 1: was it moved here?" in found.refused[0].reason


@pytest.mark.parametrize("name", ["manifest.json", "rank-00000.pt"])
def test_a_pipe_in_a_files_place_is_not_waited_for(name: str, tmp_path: Path) -> None:
    """To open one blocks until somebody writes into it."""
    path = alone(tmp_path).save(1, {"a": 1}) / name
    path.unlink()
    os.mkfifo(path)
    with pytest.warns(RuntimeWarning, match=f"all 1 checkpoints are refused: .*{name}"):
        assert alone(tmp_path).latest() is None
    with pytest.raises(CheckpointError):
        alone(tmp_path).load(1)


@pytest.fixture(scope="module")
def saved() -> Iterator[Path]:
    """Save steps 1 and 2; the tests spoil the manifest of 2."""
    with tempfile.TemporaryDirectory() as directory:
        for step in (1, 2):
            save_all(Path(directory), step, ranks=2, world_size=2)
        yield Path(directory)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List every field of a JSON value, however deep."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = [path] if path else []
    if isinstance(value, dict | list):
        for key, item in inner:
            deeper = isinstance(item, dict | list)
            found += places(item, (*path, key)) if deeper else [(*path, key)]
    return found


Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=4,
)
REMOVED = object()


def refused_or_as_saved(directory: Path, text: str) -> str | None:
    """Put a manifest in place of step 2's; give why that is refused, None when it verifies."""
    manifest = directory / "step-00000002" / layout.MANIFEST
    whole = manifest.read_text()
    saver = manager(directory, 1, world_size=2)
    try:
        manifest.write_text(text)
        found, survey = saver.latest(), saver.survey()
        assert found is not None
        if found.step == 2:
            assert survey.steps == (2, 1)
            assert torch.equal(saver.load(2)["weights"], state_of(1, 2)["weights"])
            return None
        assert found.step == 1
        assert survey.refused == found.refused
        with pytest.raises(CheckpointError):
            saver.load(2)
        return found.refused[0].reason
    finally:
        manifest.write_text(whole)


@on_disk
@given(st.data())
def test_any_damaged_field_of_a_manifest_is_refused_with_a_reason(
    saved: Path, data: st.DataObject
) -> None:
    """Changed or missing, at any depth: the checkpoint before is found."""
    whole = (saved / "step-00000002" / layout.MANIFEST).read_text()
    value = json.loads(whole)
    *above, last = data.draw(st.sampled_from(places(value)))
    holder = value
    for key in above:
        holder = holder[key]
    change = data.draw(st.just(REMOVED) | Json)
    if change is REMOVED:
        del holder[last]
    else:
        assume(json.dumps(holder[last]) != json.dumps(change))
        holder[last] = change
    assert refused_or_as_saved(saved, json.dumps(value))


@on_disk
@given(st.data())
def test_a_damaged_field_under_a_valid_digest_does_no_harm(
    saved: Path, data: st.DataObject
) -> None:
    """As a program with a bug might write it: a reason, or the state as it was saved."""
    value = json.loads((saved / "step-00000002" / layout.MANIFEST).read_text())
    value.pop("check")
    *above, last = data.draw(st.sampled_from(places(value)))
    holder = value
    for key in above:
        holder = holder[key]
    holder[last] = data.draw(Json)
    value["check"] = digests.digest_of_text(json.dumps(value, sort_keys=True))
    reason = refused_or_as_saved(saved, json.dumps(value))
    assert reason is None or str(saved) in reason


@on_disk
@given(st.data())
def test_any_flipped_bit_of_a_manifest_is_refused_or_changes_nothing(
    saved: Path, data: st.DataObject
) -> None:
    """Only white space may differ unnoticed."""
    whole = (saved / "step-00000002" / layout.MANIFEST).read_bytes()
    spoilt = bytearray(whole)
    spoilt[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 6))
    reason = refused_or_as_saved(saved, spoilt.decode())
    assert reason is not None or json.loads(spoilt) == json.loads(whole)


@on_disk
@given(st.binary(max_size=60) | st.sampled_from([b"[" * 100_000, b"0" * 9999, b"null"]))
def test_anything_in_a_manifests_place_is_refused(saved: Path, data: bytes) -> None:
    """Bytes that are no text, no JSON, or too deep."""
    assert refused_or_as_saved(saved, data.decode("latin-1"))


def test_the_whole_manifest_passes(saved: Path) -> None:
    """The healthy twin of the damaged ones."""
    text = (saved / "step-00000002" / layout.MANIFEST).read_text()
    assert refused_or_as_saved(saved, text) is None


def test_a_temporary_directory_on_another_file_system_is_told(tmp_path: Path) -> None:
    """A tmpfs is mounted where the save would write: a rename from there cannot be."""
    alone(tmp_path).save(1, {"a": 1})
    work = tmp_path / ".tmp-step-00000002-solo"
    work.mkdir()

    def in_the_namespace() -> None:
        mount_tmpfs(work, 1 << 20)
        with pytest.raises(CheckpointWriteFailed, match=r"another file system.*mounted there"):
            alone(tmp_path).save(2, {"a": 2})
        assert alone(tmp_path).load(1) == {"a": 1}

    in_own_mounts(in_the_namespace)


def test_a_rename_that_fails_is_told_and_frees_every_ranks_shard(tmp_path: Path) -> None:
    """A bind mount has the same device number, so that only the commit itself finds it out."""
    directory, elsewhere = tmp_path / "c", tmp_path / "elsewhere"
    save_all(directory, 1, ranks=2, world_size=2)
    elsewhere.mkdir()
    (directory / ".tmp-step-00000002-one").mkdir()

    def in_the_namespace() -> None:
        mount(elsewhere, directory / ".tmp-step-00000002-one", flags=MS_BIND)
        told, abandoned = save_all(directory, 2, ranks=2, world_size=2, deadline_s=3600)
        assert isinstance(told, CheckpointWriteFailed)
        assert "is something mounted in it" in str(told)
        assert isinstance(abandoned, SaveAbandoned)
        assert not list(elsewhere.glob("*.pt"))
        found = manager(directory, world_size=2).latest()
        assert found is not None
        assert (found.step, found.refused) == (1, ())

    in_own_mounts(in_the_namespace)


def test_a_directory_that_is_a_mount_itself_is_as_good_as_any(tmp_path: Path) -> None:
    """The healthy twin: all of it on one small file system."""

    def in_the_namespace() -> None:
        mount_tmpfs(tmp_path, 4 << 20)
        for step in (1, 2, 2):
            alone(tmp_path, keep=1).save(step, {"a": step}, attempt=f"a{step}")
        assert names(tmp_path) == ["step-00000002"]

    in_own_mounts(in_the_namespace)


@pytest.mark.parametrize("kind", ["save", "async_save"])
def test_a_full_disk_is_told_and_what_was_saved_stays(kind: str, tmp_path: Path) -> None:
    """A real file system of 4 MB: the save fails, frees its bytes, and a smaller one succeeds."""

    def in_the_namespace() -> None:
        mount_tmpfs(tmp_path, 4 << 20)
        saver = alone(tmp_path)
        saver.save(1, {"a": torch.ones(300_000)})
        saver.save(2, {"a": torch.ones(300_000)})
        with pytest.raises(CheckpointWriteFailed, match=os.strerror(errno.ENOSPC)), saver:
            getattr(saver, kind)(3, {"a": torch.ones(600_000)})
        found = saver.latest()
        assert found is not None
        assert (found.step, found.refused) == (2, ())
        assert os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_bsize > 1 << 20
        saver.save(3, {"a": torch.ones(200_000)})
        assert names(tmp_path) == ["step-00000001", "step-00000002", "step-00000003"]

    in_own_mounts(in_the_namespace)


def test_a_read_only_file_system_is_told_and_can_be_loaded_from(tmp_path: Path) -> None:
    """Root included: permissions do not bind it, a read-only mount does."""
    alone(tmp_path).save(1, {"a": 1})

    def in_the_namespace() -> None:
        make_read_only(tmp_path)
        saver = alone(tmp_path)
        with pytest.raises(CheckpointWriteFailed, match=os.strerror(errno.EROFS)):
            saver.save(2, {"a": 2})
        saver.async_save(3, {"a": 3})
        with pytest.raises(CheckpointWriteFailed, match="want a writable directory"):
            saver.wait()
        assert saver.survey().steps == (1,)
        assert saver.load(1) == {"a": 1}

    in_own_mounts(in_the_namespace)
