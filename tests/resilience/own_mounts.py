"""Mounts of one's own: a forked child in a mount namespace that nobody else sees."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkpoints import in_a_child

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


def mount(
    source: Path | str, target: Path, kind: str = "none", flags: int = 0, options: str = ""
) -> None:
    """Call the system's own mount."""
    texts = (str(source).encode(), str(target).encode(), kind.encode())
    _call("mount", *texts, ctypes.c_ulong(flags), options.encode())


def mount_tmpfs(target: Path, size_bytes: int) -> None:
    """Mount a real file system of this size."""
    mount("tmpfs", target, "tmpfs", options=f"size={size_bytes}")


def make_read_only(target: Path) -> None:
    """Bind a directory over itself, read-only, which binds root as well."""
    mount(target, target, flags=MS_BIND)
    mount(target, target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)


def in_own_mounts(work: Callable[[], Any]) -> None:
    """Do the work in a forked child that may mount what it likes; fail with what it raised.

    It is like `unshare --mount --propagation private`, for a user other than root with a user
    namespace as well.
    """

    def child() -> None:
        user = (os.getuid(), os.getgid())
        _call("unshare", CLONE_NEWNS | (CLONE_NEWUSER if user[0] else 0))
        if user[0]:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user[0]} 1")
            Path("/proc/self/gid_map").write_text(f"0 {user[1]} 1")
        mount("none", Path("/"), flags=MS_REC | MS_PRIVATE)
        work()

    status, told = in_a_child(child)
    assert status == 0, told
