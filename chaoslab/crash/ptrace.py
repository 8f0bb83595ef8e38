"""ptrace(2) by ctypes: what a tracer of system calls needs, on x86-64 and aarch64. No root.

Source: linux/ptrace.h, and for the registers arch/*/include/uapi/asm/ptrace.h.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import platform
from collections.abc import Sequence
from typing import Final

PTRACE_CONT: Final = 7
PTRACE_SYSCALL: Final = 24
PTRACE_SEIZE: Final = 0x4206
PTRACE_LISTEN: Final = 0x4208
_PTRACE_GETREGSET: Final = 0x4204
_PTRACE_SETREGSET: Final = 0x4205
_PTRACE_GET_SYSCALL_INFO: Final = 0x420E

EVENT_SECCOMP: Final = 7
EVENT_STOP: Final = 128
SYSCALL_STOP: Final = 0x80
"""Added to SIGTRAP where a system call stops (PTRACE_O_TRACESYSGOOD)."""

_O_TRACESYSGOOD, _O_TRACEFORK, _O_TRACEVFORK, _O_TRACECLONE, _O_TRACEEXEC = 1, 2, 4, 8, 16
_O_TRACESECCOMP, _O_EXITKILL = 0x80, 0x100000
OPTIONS: Final = (
    _O_TRACESYSGOOD | _O_TRACEFORK | _O_TRACEVFORK | _O_TRACECLONE | _O_TRACEEXEC
    | _O_TRACESECCOMP | _O_EXITKILL
)  # fmt: skip

_NT_PRSTATUS: Final = 1
_NT_ARM_SYSTEM_CALL: Final = 0x404
_WORD_BYTES: Final = 8
_NO_SYSCALL: Final = (1 << 64) - 1
_ARGUMENTS: Final = 6
_IOV_MAX: Final = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """registers: how many words NT_PRSTATUS has. arguments, result: places of these in it.

    number: the place of the system call's number; None: it has a regset of its own.
    """

    audit: int
    registers: int
    arguments: tuple[int, ...]
    result: int
    number: int | None


MACHINES: Final = {
    "x86_64": Machine(
        audit=0xC000003E, registers=27, arguments=(14, 13, 12, 7, 9, 8), result=10, number=15
    ),
    "aarch64": Machine(
        audit=0xC00000B7, registers=34, arguments=(0, 1, 2, 3, 4, 5), result=0, number=None
    ),
}


def this_machine() -> Machine:
    """Give this machine's. Raises: OSError on another kind."""
    try:
        return MACHINES[platform.machine()]
    except KeyError:
        known = " or ".join(MACHINES)
        raise OSError(f"tracing on {platform.machine()}: want {known}") from None


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _SyscallInfo(ctypes.Structure):
    """struct ptrace_syscall_info: of its union, the words."""

    _fields_ = (
        ("op", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("instruction", ctypes.c_uint64),
        ("stack", ctypes.c_uint64),
        ("words", ctypes.c_uint64 * 8),
    )


_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_LIBC.ptrace.restype = ctypes.c_long
_LIBC.process_vm_readv.restype = ctypes.c_ssize_t
_LIBC.process_vm_readv.argtypes = (
    ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """A system call at its beginning."""

    number: int
    arguments: tuple[int, ...]


def ptrace(request: int, thread: int, address: int = 0, data: int = 0) -> int:
    """Make one request. Raises: OSError; ProcessLookupError when the thread is gone."""
    ctypes.set_errno(0)
    result = _LIBC.ptrace(request, thread, address, data)
    if result == -1 and (error := ctypes.get_errno()):
        raise OSError(error, os.strerror(error))
    return int(result)


def call_of(thread: int) -> Call:
    """Give the system call at whose beginning a thread is stopped by seccomp."""
    words = _info(thread).words
    return Call(number=int(words[0]), arguments=tuple(words[1 : 1 + _ARGUMENTS]))


def result_of(thread: int) -> int:
    """Give the result of the system call at whose end a thread is stopped: an errno is negative."""
    return ctypes.c_int64(_info(thread).words[0]).value


def _info(thread: int) -> _SyscallInfo:
    found = _SyscallInfo()
    ptrace(_PTRACE_GET_SYSCALL_INFO, thread, ctypes.sizeof(found), ctypes.addressof(found))
    return found


def skip_call(thread: int, machine: Machine, result: int) -> None:
    """Have the system call that is about to begin not happen, and return this instead."""
    registers = _registers(thread, machine)
    registers[machine.result] = result & _NO_SYSCALL
    if machine.number is not None:
        registers[machine.number] = _NO_SYSCALL
    _set_registers(thread, registers)
    if machine.number is None:
        number = (ctypes.c_int * 1)(-1)
        _regset(_PTRACE_SETREGSET, thread, _NT_ARM_SYSTEM_CALL, number)


def change_argument(thread: int, machine: Machine, place: int, value: int) -> None:
    """Give the system call that is about to begin another argument (0 is its first)."""
    registers = _registers(thread, machine)
    registers[machine.arguments[place]] = value
    _set_registers(thread, registers)


def _registers(thread: int, machine: Machine) -> ctypes.Array[ctypes.c_uint64]:
    registers = (ctypes.c_uint64 * machine.registers)()
    _regset(_PTRACE_GETREGSET, thread, _NT_PRSTATUS, registers)
    return registers


def _set_registers(thread: int, registers: ctypes.Array[ctypes.c_uint64]) -> None:
    _regset(_PTRACE_SETREGSET, thread, _NT_PRSTATUS, registers)


def _regset(
    request: int,
    thread: int,
    kind: int,
    words: ctypes.Array[ctypes.c_uint64] | ctypes.Array[ctypes.c_int],
) -> None:
    vector = _Iovec(ctypes.addressof(words), ctypes.sizeof(words))
    ptrace(request, thread, kind, ctypes.addressof(vector))


def read_memory(thread: int, address: int, length: int) -> bytearray:
    """Read a thread's memory. Raises: OSError."""
    return read_vector(thread, [(address, length)])


def read_vector(thread: int, vector: Sequence[tuple[int, int]]) -> bytearray:
    """Read pieces of a thread's memory, each an address and a length, one behind the other.

    Raises: OSError.
    """
    pieces = [(address, length) for address, length in vector if length]
    found = bytearray(sum(length for _, length in pieces))
    if not found:
        return found
    buffer, done = (ctypes.c_char * len(found)).from_buffer(found), 0
    while pieces:
        first = pieces[:_IOV_MAX]
        theirs = (_Iovec * len(first))(*(_Iovec(*piece) for piece in first))
        ours = _Iovec(ctypes.addressof(buffer) + done, len(found) - done)
        got = _LIBC.process_vm_readv(
            thread, ctypes.addressof(ours), 1, ctypes.addressof(theirs), len(first), 0
        )
        if got <= 0:
            error = ctypes.get_errno()
            raise OSError(error, f"reading memory of thread {thread}: {os.strerror(error)}")
        done += got
        pieces = _left(pieces, got)
    return found


def _left(pieces: list[tuple[int, int]], done: int) -> list[tuple[int, int]]:
    """Give what is left of pieces of which so many bytes were read."""
    for index, (address, length) in enumerate(pieces):
        if done < length:
            return [(address + done, length - done), *pieces[index + 1 :]]
        done -= length
    return []


def read_text(thread: int, address: int) -> str:
    """Read a path from a thread's memory, to its zero byte. Raises: OSError."""
    page, found = os.sysconf("SC_PAGE_SIZE"), bytearray()
    while b"\0" not in found:
        found += read_memory(thread, address + len(found), page - (address + len(found)) % page)
    return os.fsdecode(bytes(found.partition(b"\0")[0]))
