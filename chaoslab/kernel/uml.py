"""Finds the pieces of user-mode Linux on this host: the program, its modules, room for memory."""

import ctypes
import mmap
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from chaoslab.kernel import xstate
from chaoslab.kernel.availability import Availability
from chaoslab.kernel.errors import KernelError

INSIDE_VARIABLE = "CHAOSLAB_IN_UML"
PROGRAM = "linux.uml"
MODULES = Path("/usr/lib/uml/modules")
"""Source: file list of the Debian package user-mode-linux."""
WANTED_MEMORY_BYTES = 4 << 30
LEAST_MEMORY_BYTES = 256 << 20
TMPFS_MAGIC = 0x01021994
"""Source: linux/magic.h."""
MENDING = (
    "apt-get install user-mode-linux kmod iproute2 (Debian and Ubuntu; elsewhere build a kernel "
    "with ARCH=um, CONFIG_NET_SCH_NETEM and CONFIG_HOSTFS as linux.uml, its modules in "
    "/usr/lib/uml/modules)"
)


@dataclass(frozen=True, kw_only=True)
class UmlParts:
    """What a boot needs; ``room_bytes`` is free in the tmpfs folder ``memory_dir``."""

    program: Path
    modules: Path
    memory_dir: Path
    room_bytes: int


def user_mode_linux() -> Availability:
    """Say whether ``run_in_uml`` can work here; the reason holds the command that mends it."""
    try:
        parts = find_parts()
    except KernelError as problem:
        return Availability(available=False, reason=str(problem))
    reason = f"{parts.program} with {parts.modules}, memory in {parts.memory_dir}"
    return Availability(available=True, reason=reason)


def find_parts() -> UmlParts:
    """Find the pieces.

    Raises:
        KernelError: one is missing; the text says which and how to mend that.
    """
    if os.environ.get(INSIDE_VARIABLE):
        raise KernelError(
            f"{INSIDE_VARIABLE} is set: already inside a user-mode kernel, which runs no second one"
        )
    system = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"
    program = shutil.which(PROGRAM, path=system)
    if program is None:
        raise KernelError(f"no {PROGRAM} on PATH: {MENDING}")
    if shutil.which("modprobe", path=system) is None:
        raise KernelError(f"no modprobe (the guest loads its modules with it): {MENDING}")
    if not any(MODULES.glob("*/modules.dep")):
        raise KernelError(f"no modules of the user-mode kernel in {MODULES}: {MENDING}")
    memory_dir, room_bytes = find_memory_dir()
    if xstate.is_needed():
        xstate.build_argv(memory_dir)
    return UmlParts(
        program=Path(program), modules=MODULES, memory_dir=memory_dir, room_bytes=room_bytes
    )


def find_memory_dir() -> tuple[Path, int]:
    """Give the tmpfs folder with the most room in which the guest's memory can live.

    The guest's memory is one sparse file without a name there, mapped with PROT_EXEC.

    Raises:
        KernelError: none will do.
    """
    candidates = (os.environ.get("TMPDIR"), "/dev/shm", os.environ.get("XDG_RUNTIME_DIR"), "/run")  # noqa: S108
    found: dict[Path, int] = {}
    seen = []
    for folder in dict.fromkeys(Path(name) for name in candidates if name):
        problem = unfit(folder)
        if problem:
            seen.append(f"{folder} {problem}")
        else:
            state = os.statvfs(folder)
            found[folder] = state.f_bavail * state.f_frsize
    if not found:
        raise KernelError(
            f"no tmpfs for the memory of a user-mode kernel ({'; '.join(seen)}): free some or "
            f"`mount -o remount,exec,size=5G /dev/shm` (docker run: --tmpfs /dev/shm:exec,size=5g)"
        )
    best = max(found, key=lambda folder: found[folder])
    return best, found[best]


def unfit(folder: Path) -> str:
    """Say why *folder* cannot hold a guest's memory; an empty string where it can."""
    if not folder.is_dir():
        return "is missing"
    if not is_tmpfs(folder):
        return "is not a tmpfs"
    state = os.statvfs(folder)
    room_bytes = state.f_bavail * state.f_frsize
    if room_bytes < LEAST_MEMORY_BYTES:
        return f"has {room_bytes >> 20} MiB free, want {LEAST_MEMORY_BYTES >> 20}"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(mmap.PAGESIZE)
            mmap.mmap(file.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
    except OSError as problem:
        return f"does not take executable memory ({problem.strerror})"
    return ""


def is_tmpfs(folder: Path) -> bool:
    """Ask the kernel for the file system type, which the standard library does not give."""
    answer = (ctypes.c_long * 32)()  # struct statfs is 120 bytes; f_type comes first
    done = ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(folder), answer)
    return done == 0 and answer[0] == TMPFS_MAGIC


def memory_bytes_for(asked: int | None, parts: UmlParts) -> int:
    """Give the guest's memory: as asked, or what this host has room for up to the usual 4 GiB.

    Raises:
        KernelError: there is not that much room.
    """
    if asked is None:
        return min(WANTED_MEMORY_BYTES, parts.room_bytes * 3 // 4)
    if asked < LEAST_MEMORY_BYTES // 2:
        raise KernelError(
            f"memory_bytes={asked}: want at least {LEAST_MEMORY_BYTES // 2}; "
            f"the guest does not boot with less"
        )
    if asked > parts.room_bytes:
        raise KernelError(
            f"memory_bytes={asked}: {parts.memory_dir} has {parts.room_bytes} bytes free and holds "
            f"the guest's memory; free some or `mount -o remount,size=... {parts.memory_dir}`"
        )
    return asked
