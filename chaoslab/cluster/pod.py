"""The pod: process 1 of a node's training container, parent of the ranks that run in it.

    python -m chaoslab.cluster.pod NODE [MODULE:FUNCTION]

JSON lines over standard input and output, which the engine carries: nothing else leads out, so
that what ranks print and the events that they write travel the same way. When the stream ends,
because the harness closed it or was killed, the pod kills every process and ends, and its
container with it. The named function is called once, to import what ranks will need.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from chaoslab.cluster import linux, spawn
from chaoslab.cluster.supervisor import READ_BYTES, Supervisor

RUN: Final = Path("/tmp/chaoslab")  # noqa: S108  a container's own, made anew with it
"""Where a node keeps the event files of its ranks, and their temporary files."""

LOG_LIMIT_BYTES: Final = 16 << 20
EVENTS_LIMIT_BYTES: Final = 128 << 20
"""What is passed on of what one process prints, and of its events; the rest is read and dropped."""

_POLL_S: Final = 0.005
_CHUNKS: Final = 16
_FIRST_FREE_FD: Final = 10


class PipeLink:
    """JSON lines over standard input and output, moved out of the way of what ranks print."""

    def __init__(self) -> None:
        self.fds = tuple(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD) for fd in (0, 1))
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)
        os.close(null)

    def receive(self) -> bytes:
        """Read what is there; empty at the end."""
        return os.read(self.fds[0], READ_BYTES)

    def send(self, line: bytes) -> None:
        """Send a line; one that nobody takes any more is dropped."""
        view = memoryview(line)
        with contextlib.suppress(BrokenPipeError):
            while view:
                view = view[os.write(self.fds[1], view) :]


class Passed:
    """One file that is passed on to the harness as it grows, up to a limit."""

    def __init__(self, name: str, limit_bytes: int, send: Callable[[dict[str, Any]], None]) -> None:
        self.name, self._left_bytes, self._send = name, limit_bytes, send
        self._limit_bytes = limit_bytes

    @property
    def is_full(self) -> bool:
        """Tell whether nothing more is passed on."""
        return self._left_bytes < 0

    def take(self, data: bytes) -> None:
        """Pass bytes on; beyond the limit only say, once, that there were more."""
        kept = data[: max(0, self._left_bytes)]
        if kept:
            self._send({"event": "bytes", "name": self.name, "data": kept.decode("latin-1")})
        if len(kept) < len(data) and self._left_bytes >= 0:
            self._send({"event": "cut", "name": self.name, "limit_bytes": self._limit_bytes})
            self._left_bytes = -1
        self._left_bytes -= len(kept)


class Output:
    """What one process prints."""

    def __init__(self, passed: Passed) -> None:
        self.read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.read_fd, False)
        self._passed = passed

    def end_writing(self) -> None:
        """Close this process's own end for writing; twice is harmless."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def read(self) -> bool:
        """Pass on what is there, so much at most as a pipe holds; tell whether more may come."""
        for _ in range(_CHUNKS):
            try:
                data = os.read(self.read_fd, READ_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._passed.take(data)
        return True


class Events:
    """The event file of one process, which need not exist yet."""

    def __init__(self, path: Path, passed: Passed) -> None:
        self._path, self._passed, self._fd = path, passed, -1

    def read(self) -> bool:
        """Pass on what is new; tell whether there was anything."""
        if self._fd < 0:
            try:
                fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
            except OSError:
                return False
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                return False
            self._fd = fd
        if self._passed.is_full:
            return False
        data = os.read(self._fd, READ_BYTES)
        self._passed.take(data)
        return bool(data)

    @property
    def fds(self) -> list[int]:
        """List its descriptor, if it is open."""
        return [self._fd] if self._fd >= 0 else []

    def close(self) -> None:
        """Close it; its last bytes have been read."""
        if self._fd >= 0:
            os.close(self._fd)


class Pod(Supervisor):
    """State of one node's pod."""

    def __init__(self, link: PipeLink, node: int) -> None:
        super().__init__(link)
        self._node = node
        self._outputs: dict[str, Output] = {}
        self._events: dict[str, Events] = {}
        self._requests["clock"] = lambda _: {"t_s": time.monotonic()}
        self._requests["touch"] = self._touch

    def tell_ready(self, problem: str | None, took_s: float) -> None:
        """Say that the imports are done, and what the harness has to know of this place."""
        self._send(
            {
                "event": "ready",
                "preload_problem": problem,
                "took_s": took_s,
                "python": sys.executable,
                "environment": dict(os.environ),
                "uid": os.getuid(),
            }
        )

    def _node_of(self, pid: int) -> int | None:  # noqa: ARG002
        return self._node

    def _own_fds(self) -> list[int]:
        return [*super()._own_fds(), *(fd for one in self._events.values() for fd in one.fds)]

    def _tick(self) -> float | None:
        for events in self._events.values():
            events.read()
        return _POLL_S if self._events else None

    def _child(self, start: spawn.Start) -> tuple[Callable[[int], int], Sequence[int]]:
        output = Output(Passed(Path(start.log).name, LOG_LIMIT_BYTES, self._send))
        self._outputs[start.key] = output
        self._sources[output.read_fd] = lambda: self._print(output)
        if path := start.env.get("CHAOSLAB_EVENTS"):
            passed = Passed(Path(path).name, EVENTS_LIMIT_BYTES, self._send)
            self._events[start.key] = Events(Path(path), passed)

        def body(told: int) -> int:
            linux.set_dumpable(True)  # whoever wants to look at a rank may
            return spawn.become(start, told=told, output_fd=output.write_fd)

        return body, [output.write_fd]

    def _spawn(self, request: dict[str, Any]) -> dict[str, Any]:
        key = request["start"]["key"]
        try:
            return super()._spawn(request)
        except Exception:
            if key in self._outputs:
                self._outputs[key].end_writing()
                self._forget(key)
            raise
        finally:
            if key in self._outputs:
                self._outputs[key].end_writing()

    def _print(self, output: Output) -> None:
        if not output.read():
            self._sources.pop(output.read_fd, None)
            os.close(output.read_fd)

    def _ended(self, key: str | None, pid: int, status: int) -> None:
        """Pass on what a process has left to say, then its end."""
        self._forget(key or "")
        super()._ended(key, pid, status)

    def _forget(self, key: str) -> None:
        if (events := self._events.pop(key, None)) is not None:
            while events.read():
                pass
            events.close()
        output = self._outputs.pop(key, None)
        if output is not None and output.read_fd in self._sources:
            # What a child of it that lives on prints is passed on later.
            self._print(output)

    def _touch(self, request: dict[str, Any]) -> dict[str, Any]:
        Path(request["path"]).touch()
        return {}


def main(arguments: Sequence[str]) -> int:
    """Serve the harness to the end of standard input."""
    node, preload = int(arguments[0]), arguments[1] if len(arguments) > 1 else None
    link = PipeLink()
    # What ranks do to this process through /proc would look like its own word.
    linux.set_dumpable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for path in (RUN / str(node), RUN / "tmp"):
        path.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    problem = spawn.preloaded(preload)
    pod = Pod(link, node)
    pod.tell_ready(problem, time.monotonic() - began_s)
    pod.serve()
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)  # Python's own end takes seconds with torch loaded
