"""Owns one guest on the host: starts it, outlives the caller, and leaves nothing.

Runs as a script (``python -I -S guardian.py START``; the guest's order comes on standard input),
standard library only, in a session of its own, so that neither Ctrl-C nor the death of the caller
reaches it or the guest. When the caller dies, however it dies, the guest is asked to end (its
command gets SIGINT), and is killed when it has not ended after a grace period. The scratch folder
is removed in every case.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # the real constant costs an import of typing
    from typing import Any

GRACE_S = 2.2
"""The guest gives its command 1 s and needs some for its last sync."""
TICK_S = 2.0
ASK_AGAIN_S = 0.2
BUILD_S = 30.0
ORDER_NAME = "order.json"
GUEST_NAME = "guest"
"""The kernel's own name; it writes its pid into a folder of that name."""
LOCK_NAME = "lock"
SCRATCH_PREFIX = "/chaoslab-kernel-"
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""Source: linux/prctl.h."""

LIBC = ctypes.CDLL(None, use_errno=True)


def sessions() -> dict[int, int]:
    """Give every process of this host, with its session.

    linux.uml makes itself the leader of a session, so a session is a guest (Source: setsid in
    arch/um/os-Linux/main.c and process.c of Linux 6.1).
    """
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  pathlib costs imports
        if name.isdigit():
            with contextlib.suppress(OSError):
                found[int(name)] = os.getsid(int(name))
    return found


def kill_session(session: int) -> bool:
    """Kill what runs in a session; tell whether nothing does.

    All of it, by no name: when a kernel is killed, the host lets go of the processes that it
    traced, which carry its programs. They then run on as the host's own, under whatever name
    (Linux 6.1 sets no PTRACE_O_EXITKILL: start_userspace of arch/um/os-Linux/skas/process.c).
    """
    left = [pid for pid, own in sessions().items() if own == session and runs(pid)]
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return not left


def sweep_abandoned() -> None:
    """Kill what guests of chaoslab left whose kernel and guardian were killed at once.

    Two idle service processes of such a kernel live on, with its memory and its lines; they tell
    what its session was.
    """
    for pid, session in sessions().items():
        folder = None if runs(session) else folder_of(pid)
        if folder is not None:
            kill_session(session)
            shutil.rmtree(folder, ignore_errors=True)


def sweep_guest(folder: str, limit_s: float) -> bool:
    """Kill all that is left of the guest of this folder; tell whether nothing is.

    For a guest whose guardian was killed: its kernel, which dies of that, may still be about it.
    """
    try:
        with open(f"{folder}/{GUEST_NAME}/pid") as file:  # noqa: PTH123
            session = int(file.read())
    except (OSError, ValueError):  # no kernel has started yet, or it has ended in order
        found = {own for pid, own in sessions().items() if folder_of(pid) == folder}
        session = found.pop() if found else 0
    give_up_s = time.monotonic() + limit_s
    while session and not kill_session(session):
        if time.monotonic() > give_up_s:
            return False
        time.sleep(0.01)
    shutil.rmtree(folder, ignore_errors=True)
    return True


def folder_of(pid: int) -> str | None:
    """Give the scratch folder of a kernel's process; None when it is no guest of chaoslab."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/comm") as file:  # noqa: PTH123
            if not file.read().startswith("linux.uml"):
                return None
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            words = file.read().split(b"\0")
        for word in words:
            if word.startswith(b"uml_dir=") and SCRATCH_PREFIX.encode() in word:
                return os.fsdecode(word[8:]).rstrip("/")
    return None


def runs(pid: int) -> bool:
    """Say whether a process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def prepare_child(parent: int) -> None:
    """Make the kernel process die with this guardian, and leave no core file."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.getppid() != parent:
        os._exit(1)


def sweep(main: int) -> None:
    """Kill whatever is left of the guest: the kernel and the processes that carry its programs."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(main, signal.SIGKILL)
    give_up_s = time.monotonic() + 5
    while time.monotonic() < give_up_s:
        if kill_session(main):
            return
        with contextlib.suppress(ChildProcessError):  # orphans come to this subreaper
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def ask_to_end(control_fd: int) -> None:
    """Tell the guest to end, unless the line is full (then it does not listen anyway)."""
    if select.select([], [control_fd], [], 0)[1]:
        os.write(control_fd, b'{"halt": "gently"}\n')


def watch(order: dict[str, Any], kernel: subprocess.Popen[bytes]) -> None:
    """Wait for the end of the kernel, or of the caller and then of the kernel."""
    poll = select.poll()
    poll.register(os.pidfd_open(kernel.pid), select.POLLIN)
    caller = os.pidfd_open(order["caller"])
    poll.register(caller, select.POLLIN)
    give_up_s = float("inf")
    tick_s = TICK_S
    while kernel.poll() is None and time.monotonic() < give_up_s:
        wait_s = min(tick_s, max(0.0, give_up_s - time.monotonic()))
        for fd, _ in poll.poll(wait_s * 1000):
            if fd == caller:
                poll.unregister(caller)
                give_up_s = time.monotonic() + GRACE_S
        if give_up_s < float("inf"):
            # Again and again: a serial line does not see what came before it was opened, until
            # more comes (user-mode Linux 6.1 waits for the SIGIO of new bytes).
            ask_to_end(order["control_fd"])
            tick_s = ASK_AGAIN_S


def main() -> int:
    """Start the guest of the order given, watch it, sweep; the kernel's exit status."""
    order = json.loads(sys.argv[1])
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    me = os.getpid()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the caller is done with the guest
    kernel = None
    try:
        os.mkdir(order["scratch"], 0o700)  # noqa: PTH102
        # Ends with this process: a sweep knows by it what a crash of the machine has left.
        lock = os.open(f"{order['scratch']}/{LOCK_NAME}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open(f"{order['scratch']}/{ORDER_NAME}", "wb") as file:  # noqa: PTH123
            shutil.copyfileobj(sys.stdin.buffer, file)
        sweep_abandoned()
        if order["build"]:
            subprocess.run(order["build"], stdin=subprocess.DEVNULL, check=True, timeout=BUILD_S)
        kernel = subprocess.Popen(
            order["argv"],
            stdin=subprocess.DEVNULL,
            stdout=order["console_fd"],
            stderr=order["console_fd"],
            env=order["env"],
            cwd=order["scratch"],
            pass_fds=order["fds"],
            preexec_fn=lambda: prepare_child(me),  # noqa: PLW1509  there are no threads
        )
        for fd in order["fds"]:
            os.close(fd)
        watch(order, kernel)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if kernel is not None:
            sweep(kernel.pid)
        shutil.rmtree(order["scratch"], ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
