"""The warm server: one process per pytest session, from which the labs of its runs are forked.

It imports torch, the agent and pyroute2 once; a lab forked from it, and a rank forked from
that lab, have them in memory at once. Single-threaded: it forks.

    python -m chaoslab.cluster.server FD [MODULE:FUNCTION]

FD: a Unix socket. Each request is a JSON line that carries one descriptor, the control socket
of the new lab. The named function is called once, to import what ranks will need.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import NoReturn

from chaoslab.cluster import lab, spawn

_READ_BYTES = 1 << 16


def serve(control: socket.socket, preload: str | None) -> NoReturn:
    """Fork a lab per request; end when the harness closes the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    started_s = time.monotonic()
    with _ends_with(control):
        problem = _preload(preload)
        gc.collect()
    ready = {"ready": True, "preload_problem": problem, "took_s": time.monotonic() - started_s}
    control.sendall(json.dumps(ready).encode() + b"\n")
    while True:
        data, fds, _, _ = socket.recv_fds(control, _READ_BYTES, 1)
        _reap()
        if not data:
            os._exit(0)  # nothing to tidy up, and Python's own end takes seconds with torch loaded
        options = json.loads(data)
        with socket.socket(fileno=fds[0]) as lab_control:
            fd = lab_control.fileno()
            spawn.fork_child(
                lambda fd=fd, options=options: lab.enter(socket.socket(fileno=fd), options),  # type: ignore[misc]
                [control.fileno()],
            )


@contextlib.contextmanager
def _ends_with(control: socket.socket) -> Iterator[None]:
    """Die at once when the harness closes its end, in the middle of an import too.

    By SIGIO, whose default is to end the process (signal(7)): PR_SET_PDEATHSIG is lost when the
    harness dies before it is set, and comes when only the thread ends that started this process.
    The harness sends nothing before it is told that the imports are done.
    """
    fcntl.fcntl(control, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(control, fcntl.F_GETFL)
    fcntl.fcntl(control, fcntl.F_SETFL, flags | os.O_ASYNC)
    if select.select([control], [], [], 0)[0]:  # it had ended before
        sys.exit(0)
    try:
        yield
    finally:
        fcntl.fcntl(control, fcntl.F_SETFL, flags)


def _preload(name: str | None) -> str | None:
    """Import what agents and ranks need. Returns why the ranks' part failed, if it did."""
    importlib.import_module("pyroute2")
    importlib.import_module("chaoslab.agent")
    return spawn.preloaded(name)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as harness:
        serve(harness, sys.argv[2] if len(sys.argv) > 2 else None)  # noqa: PLR2004
