"""Runs one command in a guest: boots, relays streams and signals, gives the exit status."""

import os
import resource
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chaoslab.kernel.errors import KernelError
from chaoslab.kernel.launch import LIMITS, booted
from chaoslab.kernel.prefault import MALLOC_SETTINGS, SWITCH_VARIABLE, library
from chaoslab.kernel.session import Session, Signals
from chaoslab.kernel.uml import INSIDE_VARIABLE, find_parts, memory_bytes_for

BOOT_LIMIT_S = 60.0
GUEST_TMPDIR = "/run/chaoslab/tmp"


def run_in_uml(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    memory_bytes: int | None = None,
    stdin: int | None = None,
    stdout: int = 1,
    stderr: int = 2,
    boot_limit_s: float = BOOT_LIMIT_S,
    limit_s: float | None = None,
) -> int:
    """Run *argv* inside a user-mode Linux kernel whose root is this host's file system.

    The command gets *cwd* and *env* (with any bytes), plus CHAOSLAB_IN_UML=1 and a TMPDIR in the
    guest's memory. Its output goes to the descriptors *stdout* and *stderr* as it comes, byte for
    byte; *stdin* is a descriptor to read its input from (None: /dev/null). SIGINT, SIGTERM and
    SIGHUP to this process are passed on (SIGINT to the command's whole process group, as a
    terminal does); a second SIGINT, or *limit_s*, halts the guest. *memory_bytes* is the guest's
    memory; by default 4 GiB, or three quarters of the free tmpfs where that is less.

    Where the host has a C compiler, a library that makes fresh memory cheap is preloaded into the
    programs of the guest; CHAOSLAB_UML_PREFAULT=0 in *env* does without.

    What the command leaves running is killed when it ends, and files it wrote are on the host's
    disk cache by then. The exit status is the command's, 128 + n where signal n killed it.

    Raises:
        KernelError: the kernel is missing or did not boot within *boot_limit_s*, it panicked, ran
            out of memory, the command could not be executed, or *limit_s* ran out.
    """
    parts = find_parts()
    memory = memory_bytes_for(memory_bytes, parts)
    order = make_order(argv, cwd=cwd, env=env, stdin=stdin, outputs=(stdout, stderr))
    boot_until_s = time.monotonic() + boot_limit_s
    signals = Signals()
    with signals.received(), booted(parts, order, memory_bytes=memory) as lines:
        session = Session(
            lines=lines,
            signals=signals,
            order=order,
            stdin=stdin,
            outputs=(stdout, stderr),
            boot_until_s=boot_until_s,
            limit_s=limit_s,
        )
        session.relay()
        return session.exit_status(memory_bytes=memory, memory_dir=parts.memory_dir)


def latin(text: str) -> str:
    """Carry any bytes as text of the same code points (the guest turns them back)."""
    return os.fsencode(text).decode("latin-1")


def make_order(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: int | None,
    outputs: tuple[int, int],
) -> dict[str, Any]:
    """Give the file that the guest's process 1 reads: what to run, and in what state."""
    if not argv:
        raise KernelError("argv is empty: want a command and its arguments")
    inside = {**env, INSIDE_VARIABLE: "1", "TMPDIR": GUEST_TMPDIR}
    if os.isatty(outputs[0]):
        size = shutil.get_terminal_size()
        inside.setdefault("COLUMNS", str(size.columns))
        inside.setdefault("LINES", str(size.lines))
        if "NO_COLOR" not in env:  # the command sees a pipe, so it must be told
            inside.setdefault("FORCE_COLOR", "1")
            inside.setdefault("PY_COLORS", "1")
    preload = None if env.get(SWITCH_VARIABLE) == "0" else library()
    if preload is not None:
        inside = {**MALLOC_SETTINGS, **inside}
    umask = os.umask(0)
    os.umask(umask)
    return {
        "argv": [latin(word) for word in argv],
        "env": {latin(name): latin(value) for name, value in inside.items()},
        "cwd": latin(str(Path(cwd).absolute())),
        "preload": None if preload is None else preload.decode("latin-1"),
        "umask": umask,
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS},
        "stdin": stdin is not None,
        "merged": same_file(*outputs),
    }


def same_file(one: int, other: int) -> bool:
    """Say whether two descriptors are one file; then one line carries both and keeps the order."""
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False
