"""System calls that change files: their numbers, and the filter that stops a thread at them.

Only they stop: everything else a process does runs at its own speed. Source: the kernel's tables,
arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h; seccomp(2).
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Final

from chaoslab.crash.ptrace import this_machine

_X86_64: Final = {
    "write": 1, "open": 2, "mmap": 9, "ioctl": 16, "pwrite64": 18, "writev": 20, "sendfile": 40,
    "fsync": 74, "fdatasync": 75, "truncate": 76, "ftruncate": 77, "rename": 82, "mkdir": 83,
    "rmdir": 84, "creat": 85, "link": 86, "unlink": 87, "symlink": 88, "mknod": 133, "sync": 162,
    "openat": 257, "mkdirat": 258, "mknodat": 259, "unlinkat": 263, "renameat": 264, "linkat": 265,
    "symlinkat": 266, "splice": 275, "fallocate": 285, "pwritev": 296, "syncfs": 306,
    "renameat2": 316, "copy_file_range": 326, "pwritev2": 328, "io_uring_setup": 425,
    "openat2": 437,
}  # fmt: skip
_AARCH64: Final = {
    "ioctl": 29, "mknodat": 33, "mkdirat": 34, "unlinkat": 35, "symlinkat": 36, "linkat": 37,
    "renameat": 38, "truncate": 45, "ftruncate": 46, "fallocate": 47, "openat": 56, "write": 64,
    "writev": 66, "pwrite64": 68, "pwritev": 70, "sendfile": 71, "splice": 76, "sync": 81,
    "fsync": 82, "fdatasync": 83, "mmap": 222, "syncfs": 267, "renameat2": 276,
    "copy_file_range": 285, "pwritev2": 287, "io_uring_setup": 425, "openat2": 437,
}  # fmt: skip
NUMBERS: Final = {"x86_64": _X86_64, "aarch64": _AARCH64}

_ALLOW, _TRACE = 0x7FFF0000, 0x7FF00000
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_MAP_SHARED: Final = 1
_FLAGS_ARGUMENT: Final = 3
_REQUEST_ARGUMENT: Final = 1
_CLONES: Final = (0x40049409, 0x4020940D, 0xC0189436)
"""FICLONE, FICLONERANGE, FIDEDUPERANGE. Source: linux/fs.h."""

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_SECCOMP_MODE_FILTER: Final = 2


def numbers() -> dict[str, int]:
    """Give this machine's numbers by name. Raises: OSError on a kind that is not known."""
    this_machine()
    return NUMBERS[platform.machine()]


def program() -> bytes:
    """Give the filter's instructions, as seccomp wants them."""
    conditional = {
        numbers()["mmap"]: (_FLAGS_ARGUMENT, _JUMP_IF_SET, (_MAP_SHARED,)),
        numbers()["ioctl"]: (_REQUEST_ARGUMENT, _JUMP_IF_EQUAL, _CLONES),
    }
    lines = [
        _line(_LOAD, _ARCHITECTURE_AT),
        _line(_JUMP_IF_EQUAL, this_machine().audit, then=1),
        _line(_RETURN, _ALLOW),  # another ABI, which nothing here uses
        _line(_LOAD, _NUMBER_AT),
    ]
    for number in sorted(numbers().values()):
        if number not in conditional:
            lines += [_line(_JUMP_IF_EQUAL, number, otherwise=1), _line(_RETURN, _TRACE)]
    for number, (argument, test, values) in conditional.items():
        body = [_line(_LOAD, _ARGUMENTS_AT + 8 * argument)]
        for value in values:
            body += [_line(test, value, otherwise=1), _line(_RETURN, _TRACE)]
        body.append(_line(_RETURN, _ALLOW))
        lines += [_line(_JUMP_IF_EQUAL, number, otherwise=len(body)), *body]
    return b"".join([*lines, _line(_RETURN, _ALLOW)])


def _line(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("HBBI", code, then, otherwise, value)


def install(instructions: bytes) -> None:
    """Have this process, and what it starts, stop for its tracer at these calls. For good.

    Without a tracer such a call fails with ENOSYS. Raises: OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    held = ctypes.create_string_buffer(instructions)
    count = len(instructions) // 8
    told = ctypes.create_string_buffer(struct.pack("HxxxxxxP", count, ctypes.addressof(held)))
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_void_p(ctypes.addressof(told)), 0, 0),
    ):
        if libc.prctl(*arguments) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"installing a seccomp filter: {os.strerror(error)}")
