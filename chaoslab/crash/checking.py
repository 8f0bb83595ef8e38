"""Checking: builds states and restores from them, several at once, each in a process of its own.

A restore that hangs or takes its process with it costs that state its verdict (UNKNOWN), and
nothing else. States are built on a file system in memory, where there is one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing.connection
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Self

from chaoslab.crash.digest import digest
from chaoslab.crash.judging import Restored
from chaoslab.crash.models import Crash
from chaoslab.crash.states import Replay, State

_IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108  the system's own file system in memory
_WORDS: Final = 300

Restore = Callable[[Path], Any]
"""Gives what a directory holds; None or an exception: nothing that could be restored."""


def place_in_memory() -> str | None:
    """Give a directory on a file system in memory; None for the usual place."""
    return str(_IN_MEMORY) if os.access(_IN_MEMORY, os.W_OK) else None


def build(replay: Replay, state: State, root: Path) -> None:
    """Make the directory that a crash has left. root: not there yet."""
    root.mkdir()
    for path, found in state.tree:  # sorted: what is above comes first
        target, content = root / path, replay.content(found)
        if content is None:
            target.mkdir()
        elif isinstance(content, str):
            target.symlink_to(content)
        elif not _links(target, root, state, path):
            target.write_bytes(content)


def _links(target: Path, root: Path, state: State, path: str) -> bool:
    """Make a second name of a file that is there already, if this is one."""
    found = dict(state.tree)[path]
    if not isinstance(found, tuple):
        return False
    for earlier, other in state.tree:
        if earlier == path:
            return False
        if isinstance(other, tuple) and other[0] == found[0]:
            target.hardlink_to(root / earlier)
            return True
    return False


def check(replay: Replay, state: State, restore: Restore, root: Path) -> Restored:
    """Build a state, restore from it, and remove it."""
    build(replay, state, root)
    try:
        return restored(restore, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def restored(restore: Restore, root: Path) -> Restored:
    """Restore from a directory, here and now."""
    try:
        value = restore(root)
        return Restored(digest=None if value is None else digest(value))
    except BaseException as error:  # noqa: BLE001  DCP's CheckpointException is one: nothing restored
        said = f"{type(error).__name__}: {error}".replace(str(root), "DIR")
        return Restored(error=said[:_WORDS])


@dataclasses.dataclass(kw_only=True)
class _Worker:
    pid: int
    pipe: multiprocessing.connection.Connection
    state: State | None = None
    deadline_s: float = 0.0


class Checkers:
    """Processes that check states, forked when one is needed. Used as a context manager.

    limit_s: how long a restore may take.
    """

    def __init__(self, replay: Replay, restore: Restore, *, workers: int, limit_s: float) -> None:
        self._replay, self._restore = replay, restore
        self._count, self._limit_s = workers, limit_s
        self._workers: list[_Worker] = []
        self._place = tempfile.mkdtemp(prefix="chaoslab-crash-", dir=place_in_memory())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            _end(worker)
        shutil.rmtree(self._place, ignore_errors=True)

    def one(self, state: State) -> Restored:
        """Check one state."""
        ((_, restored),) = self.all([state])
        return restored

    def all(self, states: Iterable[State]) -> Iterator[tuple[State, Restored]]:
        """Check states; give each as soon as it is known, in any order."""
        waiting = iter(states)
        is_over = False
        while True:
            while not is_over and (worker := self._idle()) is not None:
                state = next(waiting, None)
                if state is None:
                    is_over = True
                else:
                    worker.state = state
                    worker.deadline_s = time.monotonic() + self._limit_s
                    worker.pipe.send(state.crash)
            busy = [worker for worker in self._workers if worker.state is not None]
            if not busy:
                return
            yield from self._answers(busy)

    def _idle(self) -> _Worker | None:
        for worker in self._workers:
            if worker.state is None:
                return worker
        if len(self._workers) < self._count:
            self._workers.append(self._start())
            return self._workers[-1]
        return None

    def _answers(self, busy: list[_Worker]) -> Iterator[tuple[State, Restored]]:
        left_s = max(0.0, min(worker.deadline_s for worker in busy) - time.monotonic())
        ready = multiprocessing.connection.wait([worker.pipe for worker in busy], left_s)
        for worker in busy:
            assert worker.state is not None
            if worker.pipe in ready:
                state, worker.state = worker.state, None
                yield state, self._answer(worker)
            elif time.monotonic() >= worker.deadline_s:
                state, worker.state = worker.state, None
                self._drop(worker)
                yield state, Restored(unknown=f"the restore took more than {self._limit_s} s")

    def _answer(self, worker: _Worker) -> Restored:
        try:
            found: Restored = worker.pipe.recv()
        except (EOFError, OSError):
            status = self._drop(worker)
            return Restored(unknown=f"the restore ended its process ({_said(status)})")
        return found

    def _drop(self, worker: _Worker) -> int:
        self._workers.remove(worker)
        return _end(worker)

    def _start(self) -> _Worker:
        ours, theirs = multiprocessing.connection.Pipe()
        pid = os.fork()
        if pid == 0:
            ours.close()
            for other in self._workers:
                other.pipe.close()
            self._serve(theirs)
        theirs.close()
        return _Worker(pid=pid, pipe=ours)

    def _serve(self, pipe: multiprocessing.connection.Connection) -> None:
        """Be a worker: never returns."""
        status = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            root = Path(self._place, str(os.getpid()))
            while True:
                crash: Crash = pipe.recv()
                state = self._replay.state(crash)
                pipe.send(check(self._replay, state, self._restore, root))
        except EOFError:
            status = 0
        finally:
            os._exit(status)


def _end(worker: _Worker) -> int:
    """End a worker, busy or not; give how it ended."""
    worker.pipe.close()
    pid, status = os.waitpid(worker.pid, os.WNOHANG)
    if pid == 0:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)
        _, status = os.waitpid(worker.pid, 0)
    return status


def _said(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"status {os.waitstatus_to_exitcode(status)}"
