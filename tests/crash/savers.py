"""Savers on a real file system, each with one thing left out, and a restore that takes the last."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

SIZE_BYTES = 3 * 8192


def body(step: int) -> bytes:
    return bytes([step]) * SIZE_BYTES


def sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def write(path: Path, step: int, *, is_synced: bool = True) -> None:
    with path.open("wb", buffering=0) as file:
        for begin in range(0, SIZE_BYTES, 8192):
            file.write(body(step)[begin : begin + 8192])
        if is_synced:
            os.fsync(file.fileno())


def plain(root: Path, step: int) -> None:
    write(root / f"step-{step}", step, is_synced=False)


def in_place(root: Path, step: int) -> None:
    write(root / "last", step)
    sync(root)


def no_sync(root: Path, step: int) -> None:
    write(root / "draft", step, is_synced=False)
    (root / "draft").replace(root / "last")


def no_file_sync(root: Path, step: int) -> None:
    no_sync(root, step)
    sync(root)


def no_directory_sync(root: Path, step: int) -> None:
    write(root / "draft", step)
    (root / "draft").replace(root / "last")


def correct(root: Path, step: int) -> None:
    no_directory_sync(root, step)
    sync(root)


def pruned_first(root: Path, step: int) -> None:
    write(root / "draft", step)
    (root / "last").unlink(missing_ok=True)
    (root / "draft").rename(root / "last")
    sync(root)


def sync_before_flush(root: Path, step: int) -> None:
    with (root / "draft").open("wb") as file:
        file.write(body(step)[:-100])
        os.fsync(file.fileno())
        file.write(body(step)[-100:])  # in Python's buffer until the file is closed
    (root / "draft").replace(root / "last")
    sync(root)


def restore(root: Path) -> bytes | None:
    """Take the newest of what is there, of whatever length."""
    names = sorted(path for path in root.iterdir() if path.name != "draft")
    return names[-1].read_bytes() if names else None


def careful(root: Path) -> bytes | None:
    """Take the newest that is whole."""
    names = sorted(path for path in root.iterdir() if path.name != "draft")
    for path in reversed(names):
        data = path.read_bytes()
        if data and data == body(data[0]):
            return data
    return None


RANKS = (0, 1)


def shard(step: int, rank: int) -> bytes:
    return bytes([step, rank]) * (SIZE_BYTES // 2)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(path: Path, data: bytes) -> None:
    with path.open("wb", buffering=0) as file:
        file.write(data)
        os.fsync(file.fileno())


def put_manifest(work: Path, step: int, *, wrong: bool = False) -> None:
    found = [digest(shard(step, 0 if wrong else rank)) for rank in RANKS]
    put(work / "manifest", json.dumps(found).encode())


def directory_of(root: Path) -> Path:
    work = root / "draft"
    work.mkdir()
    return work


def committed(root: Path, work: Path, step: int) -> None:
    sync(work)
    work.rename(root / f"step-{step}")


def sharded(root: Path, step: int) -> None:
    """Two ranks' shards, a manifest of their digests, one rename: nothing is left out."""
    work = directory_of(root)
    for rank in RANKS:
        put(work / f"rank-{rank}", shard(step, rank))
    put_manifest(work, step)
    committed(root, work, step)
    sync(root)


def rename_before_the_last_write(root: Path, step: int) -> None:
    work = directory_of(root)
    put(work / "rank-0", shard(step, 0))
    put_manifest(work, step)
    committed(root, work, step)
    put(root / f"step-{step}" / "rank-1", shard(step, 1))
    sync(root / f"step-{step}")
    sync(root)


def manifest_before_shard(root: Path, step: int) -> None:
    final = root / f"step-{step}"
    final.mkdir()
    put_manifest(final, step)
    for rank in RANKS:
        put(final / f"rank-{rank}", shard(step, rank))
    sync(final)
    sync(root)


def digest_of_the_wrong_file(root: Path, step: int) -> None:
    work = directory_of(root)
    for rank in RANKS:
        put(work / f"rank-{rank}", shard(step, rank))
    put_manifest(work, step, wrong=True)
    committed(root, work, step)
    sync(root)


def pruned_before_the_commit(root: Path, step: int) -> None:
    work = directory_of(root)
    for rank in RANKS:
        put(work / f"rank-{rank}", shard(step, rank))
    put_manifest(work, step)
    for old in root.glob("step-*"):
        shutil.rmtree(old)
    committed(root, work, step)
    sync(root)


def acknowledged_before_durable(root: Path, step: int) -> None:
    sync(root)  # what the save before has left to do
    work = directory_of(root)
    for rank in RANKS:
        put(work / f"rank-{rank}", shard(step, rank))
    put_manifest(work, step)
    committed(root, work, step)


def rank_0_alone(root: Path, step: int) -> None:
    """Rank 0 commits and returns; rank 1 writes when the next step is saved."""
    for late in root.glob("step-*"):
        put(late / "rank-1", shard(int(late.name.removeprefix("step-")), 1))
    work = directory_of(root)
    put(work / "rank-0", shard(step, 0))
    put_manifest(work, step)
    committed(root, work, step)
    sync(root)


def from_another_file_system(root: Path, step: int) -> None:
    with tempfile.TemporaryDirectory() as elsewhere:
        draft = Path(elsewhere, "draft")
        draft.mkdir()
        for rank in RANKS:
            put(draft / f"rank-{rank}", shard(step, rank))
        put_manifest(draft, step)
        shutil.copytree(draft, root / f"step-{step}")  # what a move between file systems does
    for path in (root / f"step-{step}").iterdir():
        sync(path)
    sync(root / f"step-{step}")
    sync(root)


def trusting(root: Path) -> list[bytes] | None:
    """Take the newest that has a manifest."""
    found = [path for path in sorted(root.glob("step-*")) if (path / "manifest").exists()]
    return [(found[-1] / f"rank-{rank}").read_bytes() for rank in RANKS] if found else None


def verifying(root: Path) -> list[bytes] | None:
    """Take the newest whose shards have the digests of its manifest."""
    for path in sorted(root.glob("step-*"), reverse=True):
        with contextlib.suppress(OSError, ValueError):
            wanted = json.loads((path / "manifest").read_bytes())
            data = [(path / f"rank-{rank}").read_bytes() for rank in RANKS]
            if [digest(one) for one in data] == wanted:
                return data
    return None
