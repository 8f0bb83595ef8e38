"""Boots a guest through the guardian and gives the host ends of its lines."""

import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from chaoslab.kernel import xstate
from chaoslab.kernel.errors import KernelError
from chaoslab.kernel.guardian import GUEST_NAME, ORDER_NAME, SCRATCH_PREFIX, sweep_guest
from chaoslab.kernel.uml import UmlParts

LIMITS = ("RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_STACK", "RLIMIT_CORE", "RLIMIT_FSIZE")
NOISE = re.compile(r"epollctl add err|\s*\[<|[ER][A-Z0-9]{1,5}: |\s*[0-9a-f]{8,16} ")
"""Said for each descriptor that is a plain file; stack and registers after a panic."""
STOP_LIMIT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Host ends of the guest's serial lines (file descriptors) and its kernel's console."""

    out: int
    err: int
    stdin: int
    reports: int
    requests: int
    console: IO[bytes]
    guardian: "subprocess.Popen[bytes]"

    def ask(self, **request: object) -> None:
        """Send one request to the guest's process 1; a guest that has ended does not mind."""
        with contextlib.suppress(BrokenPipeError):
            view = memoryview(json.dumps(request).encode() + b"\n")
            while view:
                view = view[os.write(self.requests, view) :]

    def last_console_lines(self, count: int = 16) -> str:
        """Give the end of the kernel's log."""
        size = self.console.seek(0, os.SEEK_END)
        self.console.seek(max(0, size - 8192))
        text = self.console.read().decode(errors="replace").replace("\r", "")
        lines = [line for line in text.split("\n") if line.strip() and not NOISE.match(line)]
        return "\n".join(lines[-count:]) or "(the console is empty)"


def script(name: str) -> str:
    """Give the path of a script of this package."""
    return str(Path(__file__).resolve().with_name(name))


def guest_python() -> str:
    """Give the interpreter for the guest's process 1, outside of any virtual environment."""
    return os.path.realpath(sys.executable)


def quoted(text: str) -> str:
    """Quote one word of a kernel command line.

    Raises:
        KernelError: it holds a quotation mark, which that syntax cannot express.
    """
    if '"' in text:
        raise KernelError(f"{text!r}: a kernel command line cannot name a path with a quote in it")
    return f'"{text}"'


def kernel_argv(
    parts: UmlParts, *, memory_bytes: int, scratch: Path, ends: Mapping[str, int]
) -> list[str]:
    """Give the command line of the kernel; *ends* are the descriptors of its lines."""
    return [
        str(parts.program),
        f"mem={memory_bytes >> 20}M",
        "root=/dev/root",
        "rootfstype=hostfs",
        "rootflags=/",
        "rw",
        "devtmpfs.mount=0",
        f"uml_dir={scratch}/",
        f"umid={GUEST_NAME}",
        "con=null",
        "pty.legacy_count=0",
        # 0.85 and 0.22 s of the boot: a RAID6 benchmark and compressed swap, of no use here
        "initcall_blacklist=raid6_select_algo,init_zswap",
        f"con0=null,fd:{ends['console']}",
        f"ssl0=null,fd:{ends['out']}",
        f"ssl1=null,fd:{ends['err']}",
        f"ssl2=fd:{ends['stdin']},null",
        f"ssl3=fd:{ends['requests']},fd:{ends['reports']}",
        f"init={quoted(guest_python())}",
        "--",
        "-I",
        "-S",
        quoted(script("guest_init.py")),
        quoted(str(parts.modules)),
        quoted(f"{scratch}/{ORDER_NAME}"),
    ]


@contextlib.contextmanager
def booted(parts: UmlParts, order: Mapping[str, object], *, memory_bytes: int) -> Iterator[Lines]:
    """Start a guest for *order* (see make_order); at the end everything of it is gone.

    Raises:
        KernelError: the guardian did not end; what the kernel needs here cannot be built.
    """
    scratch = parts.memory_dir / f"{SCRATCH_PREFIX[1:]}{os.getpid()}-{secrets.token_hex(4)}"
    bridge = xstate.build_argv(scratch) if xstate.is_needed() else []
    pipes = {name: os.pipe() for name in ("out", "err", "stdin", "reports", "requests")}
    to_host = ("out", "err", "reports")
    with tempfile.TemporaryFile(dir=parts.memory_dir, buffering=0) as console:
        ends = {name: pipe[1 if name in to_host else 0] for name, pipe in pipes.items()}
        ends["console"] = console.fileno()
        start = {
            "argv": kernel_argv(parts, memory_bytes=memory_bytes, scratch=scratch, ends=ends),
            "build": bridge,
            "env": {
                "TMPDIR": str(parts.memory_dir),
                "PATH": os.environ.get("PATH", os.defpath),
                # by the folder it starts in: this list has no way to name a path with a space
                **({"LD_PRELOAD": f"./{xstate.LIBRARY}"} if bridge else {}),
            },
            "scratch": str(scratch),
            "fds": list(ends.values()),
            "control_fd": pipes["requests"][1],
            "console_fd": console.fileno(),
            "caller": os.getpid(),
        }
        guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", script("guardian.py"), json.dumps(start)],
            stdin=subprocess.PIPE,
            stdout=console,
            stderr=console,
            cwd="/",
            start_new_session=True,
            pass_fds=[*ends.values(), pipes["requests"][1]],
        )
        for name, pipe in pipes.items():
            os.close(pipe[1 if name in to_host else 0])
        mine = {name: pipe[0 if name in to_host else 1] for name, pipe in pipes.items()}
        lines = Lines(console=console, guardian=guardian, **mine)
        try:
            hand_over(guardian, json.dumps(order).encode())
            yield lines
        finally:
            end(lines, scratch)
            for fd in mine.values():
                os.close(fd)


def hand_over(guardian: "subprocess.Popen[bytes]", order: bytes) -> None:
    """Give the guardian the order, which is nobody else's to read (it has the environment)."""
    assert guardian.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has been killed; the lines will show it
        guardian.stdin.write(order)
        guardian.stdin.close()


def end(lines: Lines, scratch: Path) -> None:
    """Have the guardian end the guest, and wait for that. Raises: KernelError."""
    lines.guardian.terminate()
    try:
        killed = lines.guardian.wait(STOP_LIMIT_S) != 0
        if killed and not sweep_guest(str(scratch), STOP_LIMIT_S):
            raise KernelError(
                f"the guardian of the guest was killed, and what is left of the guest could not be "
                f"within {STOP_LIMIT_S:g} s: look for processes named linux.uml"
            )
    except subprocess.TimeoutExpired:
        lines.guardian.kill()
        lines.guardian.wait()
        raise KernelError(
            f"the guardian of the guest did not end within {STOP_LIMIT_S:g} s and was killed: look "
            f"for processes named linux.uml"
        ) from None
