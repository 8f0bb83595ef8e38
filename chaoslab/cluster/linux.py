"""The few Linux system calls that Python 3.11 does not offer, through libc.

Python 3.12 has os.unshare and os.setns; this module can shrink when 3.11 is dropped.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000
"""Source: include/uapi/linux/sched.h."""

MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x40000
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
"""Source: include/uapi/linux/mount.h."""

CAP_NET_ADMIN: Final = 12
_LAST_POSSIBLE_CAP: Final = 63
_CAPABILITY_VERSION_3: Final = 0x20080522
"""Source: include/uapi/linux/capability.h."""

_PR_SET_DUMPABLE: Final = 4
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
"""Source: include/uapi/linux/prctl.h."""

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Move this process into new namespaces. Raises: OSError."""
    _checked(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(fd: int, kind: int) -> None:
    """Join the namespace that `fd` names, of this CLONE_NEW* kind. Raises: OSError."""
    _checked(_libc.setns(fd, kind), f"setns({kind:#x})")


def mount(source: str, target: str, fstype: str, flags: int, options: str = "") -> None:
    """Mount a file system, with options of its kind. Raises: OSError."""
    texts = (source.encode(), target.encode(), fstype.encode())
    done = _libc.mount(*texts, ctypes.c_ulong(flags), options.encode() or None)
    _checked(done, f"mount({target})")


def keep_capabilities(
    kept: Iterable[int], *, uid: int | None = None, gid: int | None = None
) -> None:
    """Give up every capability but these, for good and for every program executed later.

    uid, gid: become this user as well (None keeps the present one). Raises: OSError.
    """
    wanted = frozenset(kept)
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for capability in range(_LAST_POSSIBLE_CAP + 1):
        if capability not in wanted:
            # EINVAL marks the first capability that this kernel does not know.
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    if gid is not None:
        os.setgroups([])
        os.setgid(gid)
    if uid is not None:
        os.setuid(uid)
    mask = sum(1 << capability for capability in wanted)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    data = struct.pack("=6I", low, low, 0, high, high, 0)
    _checked(_libc.capset(header, data), "capset")
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def set_dumpable(dumpable: bool) -> None:  # noqa: FBT001
    """Let other processes of this user look into this one, or not. Source: prctl(2)."""
    _libc.prctl(_PR_SET_DUMPABLE, int(dumpable), 0, 0, 0)


def map_root_to_me(uid: int, gid: int) -> None:
    """Inside a new user namespace: be root there, and `uid`, `gid` outside."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {uid} 1"),
        ("gid_map", f"0 {gid} 1"),
    ):
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def netns_identity(pid: int | str = "self") -> tuple[int, int]:
    """Give device and inode of a process's network namespace: equal means the same one."""
    status = Path(f"/proc/{pid}/ns/net").stat()
    return status.st_dev, status.st_ino
