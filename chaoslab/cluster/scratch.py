"""A run's scratch directory: made, locked while its harness lives, removed, swept.

The lock is the kernel's: it ends with the process that holds it, however that ends. So a
scratch directory that nobody locks belongs to a run that was killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "chaoslab-"
_LOCK = "lock"
_PARTIAL_SUFFIX = ".partial"
PARTIAL_OLD_S = 120.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scratch:
    """Where a run keeps what is not yet its report.

    root: the whole. nodes: one directory per node. checkpoints: the job's shared storage.
    temporary: where the job's own temporary files go, so that they go with the run.
    """

    root: Path

    @property
    def run_id(self) -> str:
        """Give the id of the run that it belongs to."""
        return self.root.name.removeprefix(PREFIX)

    @property
    def history(self) -> Path:
        """Give the file that the record of the run grows in."""
        return self.root / "history.jsonl"

    @property
    def nodes(self) -> Path:
        """Give the directory that holds one directory per node."""
        return self.root / "nodes"

    @property
    def checkpoints(self) -> Path:
        """Give the job's shared storage."""
        return self.root / "checkpoints"

    @property
    def temporary(self) -> Path:
        """Give the directory of the job's temporary files."""
        return self.root / "tmp"


def scratch_root(run_id: str) -> Path:
    """Give the path of a run's scratch directory, made or not."""
    return Path(tempfile.gettempdir()) / f"{PREFIX}{run_id}"


@contextlib.contextmanager
def scratch_directory(run_id: str, *, owner: tuple[int, int] | None) -> Iterator[Scratch]:
    """Make a run's scratch directory, lock it, and remove it at the end.

    owner: uid and gid that the ranks run as (None: the harness's own).
    """
    root = scratch_root(run_id)
    # Made and locked under a name that no sweep looks at: one of another run cannot come between.
    begun = root.with_name(f".{root.name}")
    begun.mkdir()
    lock = os.open(begun / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        begun.chmod(0o755)  # whatever the umask: ranks may be another user's
        begun.rename(root)
        scratch = Scratch(root=root)
        for path in (scratch.nodes, scratch.checkpoints, scratch.temporary):
            path.mkdir()
            path.chmod(0o755)
            if owner is not None:
                os.chown(path, *owner)
        yield scratch
    finally:
        for path in (begun, root):
            shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def sweep(reports: Path | None = None) -> list[Path]:
    """Remove what runs that were killed have left. Returns what was removed.

    reports: directory whose half-written reports are removed too.
    """
    removed = []
    temporary = Path(tempfile.gettempdir())
    begun = [path for path in temporary.glob(f".{PREFIX}*") if _is_old(path)]
    for root in sorted([*temporary.glob(f"{PREFIX}*"), *begun]):
        if root.is_dir() and not root.is_symlink() and _is_abandoned(root):
            shutil.rmtree(root, ignore_errors=True)
            removed.append(root)
    if reports is not None:
        for partial in sorted(reports.glob(f".*{_PARTIAL_SUFFIX}")):
            run_id = partial.name.removeprefix(".").removesuffix(_PARTIAL_SUFFIX)
            if not scratch_root(run_id).exists() and _is_old(partial):
                shutil.rmtree(partial, ignore_errors=True)
                removed.append(partial)
    return removed


@contextlib.contextmanager
def locked_directory(kind: str) -> Iterator[Path]:
    """Make a temporary directory that a sweep removes when this process was killed."""
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{kind}-") as name:
        lock = os.open(Path(name, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Path(name)
        finally:
            os.close(lock)


def _is_old(partial: Path) -> bool:
    """Tell whether what is only just begun is nobody's any more: that is a matter of seconds.

    A lock would not do: a run under user-mode Linux writes it in another kernel.
    """
    try:
        return time.time() - partial.stat().st_mtime > PARTIAL_OLD_S
    except OSError:  # it has just been given its name
        return False


def _is_abandoned(root: Path) -> bool:
    """Tell whether nobody holds the lock. A directory of another user is left alone."""
    try:
        lock = os.open(root / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
