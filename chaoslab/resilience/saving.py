"""Saving: the files of a save in progress, and how ranks meet through them."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from chaoslab.resilience import layout
from chaoslab.resilience.errors import (
    CheckpointCorrupt,
    CheckpointWriteFailed,
    SaveAbandoned,
    SaveTimedOut,
)

FAILED: Final = ".failed"
NOTE: Final = ".note"
DRAFT: Final = ".draft"
POLL_S: Final = 0.002

LOCKLESS: Final = frozenset(
    (errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
)
"""What a file system without locks answers (ENOSYS: Lustre mounted without `flock`)."""

StopReason = Callable[[], str | None]
"""Asked while a rank waits for its peers: a reason ends the wait, None lets it go on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Save:
    """One rank's part in one save. work: where the ranks write. final: what it becomes.

    deadline_s: on the monotonic clock.
    """

    step: int
    attempt: str
    work: Path
    final: Path
    deadline_s: float
    should_stop: StopReason

    def check(self, awaited: str) -> None:
        """Raise SaveAbandoned when told to stop, SaveTimedOut after the deadline."""
        reason = self.should_stop()
        if reason is not None:
            raise SaveAbandoned(f"step {self.step}: waited for {awaited}: {reason}")
        if time.monotonic() > self.deadline_s:
            raise SaveTimedOut(f"step {self.step}: waited for {awaited}: the deadline has passed")

    def pause(self, awaited: str) -> None:
        """Wait a little. Raises: as `check`."""
        self.check(awaited)
        time.sleep(POLL_S)


_held: set[int] = set()
"""Descriptors of directories locked by this process."""


def _forget_locks() -> None:
    """Close, in a forked child, what would keep its parent's locks after the parent's end."""
    while _held:
        with contextlib.suppress(OSError):
            os.close(_held.pop())


os.register_at_fork(after_in_child=_forget_locks)


def lock(path: Path, *, alone: bool) -> int | None:
    """Lock a directory; give the descriptor, to be closed, or None when others are in the way.

    The lock ends with the process, however it ends. A file system without locks gives one that
    binds nobody. Raises: OSError when there is no such directory.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError as error:
        if error.errno not in LOCKLESS:
            os.close(fd)
            raise
    _held.add(fd)
    return fd


def unlock(fd: int) -> None:
    """Give a lock back."""
    if fd in _held:  # else this is a forked child, which has closed it
        _held.discard(fd)
        os.close(fd)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Keep a checkpoint from being removed while it is read."""
    try:
        fd = lock(path, alone=False)
    except OSError:
        fd = None  # reading it says what is wrong
    try:
        yield
    finally:
        if fd is not None:
            unlock(fd)


@contextlib.contextmanager
def workplace(save: Save) -> Iterator[None]:
    """Make the save's directory and hold its lock, so that nobody sweeps it.

    Raises: OSError; CheckpointWriteFailed when it is on another file system.
    """
    make_directory(save.work.parent)
    while True:
        _make_work(save.work)
        with contextlib.suppress(FileNotFoundError):  # swept in between: make it again
            fd = lock(save.work, alone=False)
            if fd is not None:
                if _is_same(fd, save.work):
                    break
                unlock(fd)
        save.pause(f"{save.work} to be swept")
    try:
        _refuse_other_file_systems(save.work)
        yield
    finally:
        unlock(fd)


def _make_work(work: Path) -> None:
    """Make the save's directory unless it is there. Raises: OSError."""
    try:
        work.mkdir(exist_ok=True)
    except FileExistsError:
        # It was there, and was swept before Path.mkdir could see that it was a directory.
        if work.is_symlink() or (work.exists() and not work.is_dir()):
            raise


def _is_same(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _refuse_other_file_systems(work: Path) -> None:
    if work.stat().st_dev != work.parent.stat().st_dev:
        raise CheckpointWriteFailed(
            f"{work} is on another file system than {work.parent}: want one file system, on which "
            "a directory can be renamed into place; is something mounted there?"
        )


def make_directory(path: Path) -> None:
    """Make a directory and its parents, durably."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    fsync_directory(path.parent)


def put_note(save: Save, shard: layout.Shard) -> None:
    """Tell rank 0 that this shard is complete: the note is whole or absent."""
    note = save.work / f"{shard.name}{NOTE}"
    draft = save.work / f"{shard.name}{DRAFT}"
    draft.write_text(json.dumps(dataclasses.asdict(shard)), encoding="utf-8")
    draft.rename(note)


def collect(save: Save, world_size: int) -> tuple[layout.Shard, ...]:
    """Wait for every rank's note, check each shard against it, and claim it.

    A note is claimed by removing it, and withdrawn likewise: one of the two succeeds, and a shard
    that is claimed is no longer its rank's to remove. Raises: SaveAbandoned.
    """
    wanted = {f"{layout.shard_name(rank)}{NOTE}" for rank in range(world_size)}
    while missing := wanted - names_unless_failed(save.work):
        save.pause(f"the shards of {sorted(missing)}")
    try:
        return tuple(_claim(save.work / name) for name in sorted(wanted))
    except FileNotFoundError as error:
        raise SaveAbandoned(f"{save.work}: {error.filename}: its rank has withdrawn it") from None


def _claim(note: Path) -> layout.Shard:
    shard = layout.Shard(**json.loads(note.read_text(encoding="utf-8")))
    size_bytes = (note.parent / shard.name).stat().st_size
    if size_bytes != shard.size_bytes:
        raise SaveAbandoned(
            f"{note.parent / shard.name}: {size_bytes} bytes: its rank wrote {shard.size_bytes}; "
            "does another job save into this directory?"
        )
    note.unlink()
    return shard


def await_commit(save: Save, shard: layout.Shard, rank: int) -> None:
    """Wait until rank 0 has renamed the directory. Raises: SaveAbandoned."""
    while True:
        try:
            names_unless_failed(save.work)
        except FileNotFoundError:
            break
        save.pause("rank 0 to commit")
    try:
        manifest = layout.read_manifest(save.final)
    except CheckpointCorrupt as error:
        raise SaveAbandoned(f"{save.work} is gone and nothing took its place: {error}") from None
    if manifest.attempt != save.attempt or shard not in manifest.shards[rank : rank + 1]:
        raise SaveAbandoned(f"{save.work} is gone: {save.final} was saved by {manifest.attempt}")
    # The rename is visible before rank 0 has made it durable: whoever says "committed" first
    # must have done so itself.
    fsync_directory(save.final.parent)


def names_unless_failed(work: Path) -> set[str]:
    """List a save's files. Raises: SaveAbandoned when a rank has given up; FileNotFoundError."""
    names = set(os.listdir(work))  # noqa: PTH208 - one call in a polling loop
    failed = sorted(name.removesuffix(FAILED) for name in names if name.endswith(FAILED))
    if failed:
        raise SaveAbandoned(f"{work.name}: {failed[0]} could not be written; see that rank's error")
    return names


def take_back(work: Path, rank: int) -> None:
    """Remove what an earlier try of this rank left under the same name."""
    for ending in (FAILED, NOTE):
        (work / f"{layout.shard_name(rank)}{ending}").unlink(missing_ok=True)


def give_up(work: Path, rank: int, *, delivered: bool = False) -> None:
    """Tell the others that this rank's part will not come; the deadline tells them if not.

    delivered: its note has been put. Then, if rank 0 has claimed it, nothing is done: the shard
    may be part of a commit. Else the bytes are freed first: on a full disk they are in the way
    of the next save. Without rank 0 there is no commit, so that it frees everybody's.
    """
    name = layout.shard_name(rank)
    with contextlib.suppress(OSError):
        if delivered and rank != 0:
            try:
                (work / f"{name}{NOTE}").unlink()
            except FileNotFoundError:
                return
        for path in work.glob("rank-*" if rank == 0 else name):
            if not path.name.endswith(FAILED):
                path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        (work / f"{name}{FAILED}").touch()


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def advice(directory: Path, error: Exception) -> str:
    """Word a failed write, with what is wanted."""
    mounted = getattr(error, "errno", None) in (errno.EXDEV, errno.EBUSY)
    return (
        f"{directory}: cannot save: {error}; want a writable directory with room for another "
        f"checkpoint beside those kept{'; is something mounted in it?' if mounted else ''}"
    )
