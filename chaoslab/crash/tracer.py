"""The tracer: runs something, and sees its every change of a directory in one order.

A thread stops at a call that may change files. One such call is let run at a time, over all
threads and processes, so that their order is known. The tracer must be a process with no other
children: it waits for any (see `recording`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import signal
from collections.abc import Callable
from typing import Any, Final

from chaoslab.crash import ptrace, syscalls
from chaoslab.crash.decoding import Decoder, Watched
from chaoslab.crash.interference import Fail, Interference, Kill, Lie, Tear
from chaoslab.crash.operations import Operation

_WALL: Final = 0x40000000
_STOPS: Final = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_NOT_STARTED: Final = 127


@dataclasses.dataclass(frozen=True, kw_only=True)
class Observed:
    """One call on the watched directory. result: an errno is negative."""

    name: str
    thread: int
    result: int
    operations: tuple[Operation, ...]


class Tracer:
    """Of one execution. calls: what was seen; status: how its first process ended, as waitpid."""

    def __init__(self, decoder: Decoder, interference: Interference | None = None) -> None:
        self.calls: list[Observed] = []
        self.status: int | None = None
        self.was_killed = False
        self._decoder, self._interference = decoder, interference
        self._machine = ptrace.this_machine()
        self._names = {number: name for name, number in syscalls.numbers().items()}
        self._threads: set[int] = set()
        self._running: tuple[int, str, Watched] | None = None
        self._waiting: list[int] = []

    def run(self, body: Callable[[], Any]) -> None:
        """Fork, run the body there, and trace it to the end of every process."""
        instructions = syscalls.program()
        pid = os.fork()
        if pid == 0:
            _be_traced(instructions, body)
        os.waitpid(pid, os.WUNTRACED)
        ptrace.ptrace(ptrace.PTRACE_SEIZE, pid, 0, ptrace.OPTIONS)
        self._threads.add(pid)
        os.kill(pid, signal.SIGCONT)
        while True:
            try:
                thread, status = os.waitpid(-1, _WALL)
            except ChildProcessError:
                return
            if os.WIFSTOPPED(status):
                with contextlib.suppress(ProcessLookupError):  # killed meanwhile
                    self._stopped(thread, status)
            else:
                self._ended(thread)
                if thread == pid:
                    self.status = status

    def _ended(self, thread: int) -> None:
        self._threads.discard(thread)
        if thread in self._waiting:
            self._waiting.remove(thread)
        if self._running is not None and self._running[0] == thread:
            self._running = None
            self._next()

    def _stopped(self, thread: int, status: int) -> None:
        self._threads.add(thread)
        if self.was_killed:
            return
        number, event = os.WSTOPSIG(status), status >> 16
        if event == ptrace.EVENT_SECCOMP:
            self._waiting.append(thread)
            self._next()
        elif event == ptrace.EVENT_STOP and number in _STOPS:
            ptrace.ptrace(ptrace.PTRACE_LISTEN, thread)
        elif event:
            ptrace.ptrace(ptrace.PTRACE_CONT, thread)
        elif number == signal.SIGTRAP | ptrace.SYSCALL_STOP:
            self._finish(thread)
        else:
            ptrace.ptrace(ptrace.PTRACE_CONT, thread, 0, number)

    def _next(self) -> None:
        """Let threads that wait begin their calls, until one is watched."""
        while self._waiting and self._running is None and not self.was_killed:
            thread = self._waiting.pop(0)
            with contextlib.suppress(ProcessLookupError):
                self._begin(thread)

    def _begin(self, thread: int) -> None:
        call = ptrace.call_of(thread)
        name = self._names[call.number]
        try:
            watched = self._decoder.begin(thread, name, call)
        except (OSError, KeyError):
            watched = None  # it names what is not there: it fails, or is not ours
        if watched is None:
            ptrace.ptrace(ptrace.PTRACE_CONT, thread)
            return
        asked = self._interference
        if asked is not None and asked.at == len(self.calls):
            self._interfere(thread, name, watched, asked)
        else:
            self._let(thread, name, watched)

    def _let(self, thread: int, name: str, watched: Watched) -> None:
        self._running = (thread, name, watched)
        ptrace.ptrace(ptrace.PTRACE_SYSCALL, thread)
        # While the kernel reads the same bytes; the thread stops at the call's end, and waits.
        watched.collect()

    def _finish(self, thread: int) -> None:
        if self._running is None or self._running[0] != thread:
            ptrace.ptrace(ptrace.PTRACE_CONT, thread)
            return
        _, name, watched = self._running
        self._running = None
        self._note(thread, name, watched, ptrace.result_of(thread))
        if isinstance(self._interference, Tear) and self._interference.at == len(self.calls) - 1:
            self._kill_all()
            return
        ptrace.ptrace(ptrace.PTRACE_CONT, thread)
        self._next()

    def _note(self, thread: int, name: str, watched: Watched, result: int) -> None:
        done = tuple(
            dataclasses.replace(operation, thread=thread)
            for operation in (watched.finish(result) if result >= 0 else ())
        )
        self.calls.append(Observed(name=name, thread=thread, result=result, operations=done))

    def _interfere(self, thread: int, name: str, watched: Watched, asked: Interference) -> None:
        match asked:
            case Kill():
                if asked.first is not None:
                    asked.first()
                self._kill_all()
            case Fail():
                self._skip(thread, name, -asked.errno)
            case Lie():
                self._skip(thread, name, watched.write_bytes)
            case Tear():
                self._tear(thread, name, watched, asked.kept_bytes)

    def _skip(self, thread: int, name: str, result: int) -> None:
        ptrace.skip_call(thread, self._machine, result)
        self.calls.append(Observed(name=name, thread=thread, result=result, operations=()))
        ptrace.ptrace(ptrace.PTRACE_CONT, thread)

    def _tear(self, thread: int, name: str, watched: Watched, kept_bytes: int) -> None:
        if not 0 < kept_bytes < watched.write_bytes:
            self._kill_all()
            raise ValueError(
                f"Tear(kept_bytes={kept_bytes}): want 0 < kept_bytes < {watched.write_bytes}, the "
                f"length of that {name}"
            )
        if watched.place is not None:
            ptrace.change_argument(thread, self._machine, watched.place, kept_bytes)
            self._let(thread, name, watched)
            return
        # A vector of buffers: its bytes are written here, through the thread's own descriptor.
        watched.collect()
        (write,) = watched.finish(kept_bytes)
        fd = os.open(f"/proc/{thread}/fd/{ptrace.call_of(thread).arguments[0]}", os.O_WRONLY)
        try:
            os.pwrite(fd, write.data, write.offset)  # type: ignore[attr-defined]
        finally:
            os.close(fd)
        self.calls.append(
            Observed(name=name, thread=thread, result=kept_bytes, operations=(write,))
        )
        self._kill_all()

    def _kill_all(self) -> None:
        """Kill every process; those that wait to begin a call never do."""
        self.was_killed = True
        for thread in self._threads:
            with contextlib.suppress(ProcessLookupError):
                os.kill(thread, signal.SIGKILL)


def _be_traced(instructions: bytes, body: Callable[[], Any]) -> None:
    """Be the process that is traced: never returns."""
    status = 1
    try:
        os.kill(os.getpid(), signal.SIGSTOP)  # until the tracer is there
        syscalls.install(instructions)
        body()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except OSError as error:
        status = _NOT_STARTED if error.errno in (errno.ENOENT, errno.EACCES) else 1
        os.write(2, f"{error!r}\n".encode())
    except BaseException as error:  # noqa: BLE001  told, and ended here: nothing may go on
        os.write(2, f"{error!r}\n".encode())
    finally:
        os._exit(status)
