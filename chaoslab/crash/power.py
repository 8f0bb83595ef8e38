"""Power cuts on a real file system: what is left when its device stops taking writes. Root.

A file system in a file, mounted by a loop device in a mount namespace of the caller's own. A cut
is the shutdown ioctl, which makes every later write vanish: with or without the journal that the
kernel holds in memory. Mounting again does what a machine does after a power cut. Source:
EXT4_IOC_SHUTDOWN of fs/ext4/ioctl.c, XFS_IOC_GOINGDOWN of fs/xfs/libxfs/xfs_fs.h: one number.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

from chaoslab.crash.checking import Restore, restored
from chaoslab.crash.interference import Kill
from chaoslab.crash.judging import Demand, Verdict, judge
from chaoslab.crash.operations import Acknowledged, Begun, Operation
from chaoslab.crash.recording import marked, record

KINDS: Final = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
SIZE_BYTES: Final = 320 << 20
"""The least that mkfs.xfs makes is 300 MiB. The file is sparse."""

_SHUTDOWN: Final = 0x8004587D
_FLUSH_JOURNAL, _DROP_ALL = 1, 2
_COMMAND_LIMIT_S: Final = 60
_BUSY_LIMIT_S: Final = 10.0


def why_not(kind: str) -> str:
    """Say why power cannot be cut here; empty where it can be."""
    if os.geteuid() != 0:
        return "to mount a file system: want root"
    program = KINDS[kind][0]
    if shutil.which(program) is None:
        return f"{program}: want it installed"
    return ""


class Volume:
    """A file system of its own, mounted at `path` while it is used as a context manager.

    The mount is in the mount namespace of this process: call `os.unshare` before, so that nobody
    else sees it. Raises: OSError; subprocess.CalledProcessError with what mount said.
    """

    def __init__(self, kind: str, place: Path) -> None:
        self.path = place / "mounted"
        self._kind, self._image = kind, place / "image"

    def __enter__(self) -> Self:
        self.path.mkdir()
        with self._image.open("wb") as file:
            file.truncate(SIZE_BYTES)
        _run(*KINDS[self._kind], str(self._image))
        self._mount()
        return self

    def __exit__(self, *_: object) -> None:
        self._unmount()
        self._image.unlink()
        self.path.rmdir()

    def cut(self, *, flush_journal: bool) -> None:
        """Cut its power: nothing that is written from now on is there later.

        flush_journal: what the kernel has in its journal is written first; else that is lost, too.
        """
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            how = _FLUSH_JOURNAL if flush_journal else _DROP_ALL
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", how))
        finally:
            os.close(fd)

    def restart(self) -> None:
        """Do what a machine does that starts again."""
        self._unmount()
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))

    def _unmount(self) -> None:
        deadline_s = time.monotonic() + _BUSY_LIMIT_S
        while True:
            try:
                _run("umount", str(self.path))
            except subprocess.CalledProcessError:
                if time.monotonic() > deadline_s:  # a killed process may not be gone yet
                    raise
                time.sleep(0.01)
            else:
                return


def _run(*argv: str) -> None:
    subprocess.run(
        argv, check=True, capture_output=True, timeout=_COMMAND_LIMIT_S, stdin=subprocess.DEVNULL
    )


def cut_everywhere(
    volume: Volume,
    save: Callable[[Path, int], Any],
    restore: Restore,
    *,
    steps: Sequence[int] = (1, 2),
    flush_journal: bool,
) -> list[tuple[Verdict, str]]:
    """Cut the power at each call of the saves in turn; give the verdict on what was left, by call.

    The last cut is after everything has returned. Raises: as `record`; OSError.
    """
    root, marks = volume.path / "root", volume.path.parent / "marks"
    references: dict[str, int] = {}
    _begin(root)
    for step in steps:
        record(root, lambda step=step: save(root, step))  # type: ignore[misc]
        references[restored(restore, root).digest or ""] = step
    verdicts: list[tuple[Verdict, str]] = []
    is_over = False
    while not is_over:
        _begin(root)
        marks.unlink(missing_ok=True)
        cut = Kill(at=len(verdicts), first=lambda: volume.cut(flush_journal=flush_journal))
        recording = record(
            root, lambda: marked(save, root, steps, marks), marks=marks, interference=cut
        )
        is_over = not recording.was_killed
        if is_over:
            volume.cut(flush_journal=flush_journal)
        volume.restart()
        demand = Demand(
            acknowledged=_last(recording.operations, Acknowledged),
            begun=_last(recording.operations, Begun),
        )
        verdicts.append(judge(restored(restore, root), demand, references))
    return verdicts


def _begin(root: Path) -> None:
    """Make an empty directory, durably."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    os.sync()


def _last(operations: Sequence[Operation], kind: type[Acknowledged | Begun]) -> int | None:
    steps = [operation.step for operation in operations if isinstance(operation, kind)]
    return steps[-1] if steps else None
