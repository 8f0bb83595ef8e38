"""The child's side of a start: from a fresh fork to a rank, a store or an agent in its node."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import gc
import importlib
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from chaoslab.cluster import linux

CRASHED_STATUS = 70
"""Exit status of a child that failed before its program began (EX_SOFTWARE of sysexits.h)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """What to start: how, where, and as whom.

    key: the process's name in the run. mode: "fork" runs argv[0] as a Python script in the
    fork itself (torch is imported already), "exec" executes argv. uid, gid: None keeps them.
    """

    key: str
    node: int
    mode: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str
    uid: int | None = None
    gid: int | None = None


def preloaded(name: str | None) -> str | None:
    """Call MODULE:FUNCTION, which imports what ranks need. Returns why it failed, if it did."""
    if name is None:
        return "no preload was asked for"
    module, _, function = name.partition(":")
    try:
        getattr(importlib.import_module(module), function)()
    except Exception as problem:  # noqa: BLE001  ranks then start as fresh processes
        return f"{name}: {type(problem).__name__}: {problem}"
    return None


def fork_child(body: Callable[[], int], close: Iterable[int]) -> int:
    """Fork; the child closes these descriptors, runs `body` and exits with what it returns.

    Returns the child's pid.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid != 0:
        return pid
    status = CRASHED_STATUS
    try:
        _reset_signals()
        for fd in close:
            with contextlib.suppress(OSError):
                os.close(fd)
        status = body()
    except BaseException:  # noqa: BLE001  a child must never return into its parent's stack
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def become(
    start: Start, *, told: int, netns_fd: int | None = None, output_fd: int | None = None
) -> int:
    """Turn this fork into the wanted process. Returns the exit status of a forked script.

    netns_fd: the network namespace to join. output_fd: takes what it prints, in place of its log.
    told: pipe that takes what went wrong before the program began, and is closed when it begins.
    """
    try:
        os.setsid()
        if netns_fd is not None:
            linux.setns(netns_fd, linux.CLONE_NEWNET)
        _redirect(_open_log(start.log) if output_fd is None else output_fd)
        linux.keep_capabilities((), uid=start.uid, gid=start.gid)
        os.chdir(start.cwd)
        if start.mode == "exec":
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.execvpe(start.argv[0], start.argv, start.env)  # noqa: S606  no shell is wanted
        os.environ.clear()
        os.environ.update(start.env)
    except Exception as problem:
        os.write(told, f"{type(problem).__name__}: {problem}".encode())
        raise
    os.close(told)
    return run_script(start.argv)


def run_script(argv: list[str]) -> int:
    """Run a Python script as __main__ in this process, as `python SCRIPT ARGS` would.

    Returns its exit status.
    """
    sys.argv[:] = argv
    sys.path[0:0] = [str(Path(argv[0]).resolve().parent)]
    # The server's garbage is shared, read-only memory here: collecting it would copy it all.
    gc.freeze()
    atexit._clear()  # noqa: SLF001  the server's own handlers are not the script's
    status = 0
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as request:
        status = _exit_status(request.code)
    except BaseException:  # noqa: BLE001  what `python SCRIPT` does with it
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  as the interpreter does
    atexit._run_exitfuncs()  # noqa: SLF001
    return status


def _exit_status(code: Any) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # As in any Python process: a write to a closed socket is an error, not the end of it.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _open_log(log: str) -> int:
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _redirect(fd: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    os.close(null)
    # A log is read while the process lives, and after it was killed: keep nothing back.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
