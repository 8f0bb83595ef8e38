"""Recording: everything that a save does to a directory, made in a process of its own."""

from __future__ import annotations

import dataclasses
import functools
import os
import pickle
import signal
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from chaoslab.crash.decoding import Decoder
from chaoslab.crash.disk import Disk
from chaoslab.crash.interference import Interference
from chaoslab.crash.marks import ANY_STEP, Marks
from chaoslab.crash.operations import Begun, Operation
from chaoslab.crash.tracer import Observed, Tracer

LIMIT_S: Final = 600.0


class RecordingFailed(Exception):
    """What was to be recorded did not end well, or could not be traced."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recording:
    """start: what was in the directory before. calls: the system calls on it, in their order.

    unseen: what was done that no recording holds, in words; a verdict on it is UNKNOWN. status:
    how the first process ended, as `os.waitpid` gives it. was_killed: by an interference.
    """

    start: Disk
    calls: tuple[Observed, ...]
    unseen: tuple[str, ...]
    status: int
    was_killed: bool

    @property
    def operations(self) -> list[Operation]:
        """Give all operations, in their order."""
        return [operation for call in self.calls for operation in call.operations]


def record(
    root: Path,
    body: Callable[[], Any],
    *,
    marks: Path | None = None,
    pattern: str | None = None,
    interference: Interference | None = None,
    limit_s: float = LIMIT_S,
) -> Recording:
    """Run the body in a process of its own, traced, and give what it did to the directory.

    marks: a file outside it, which is there; what is written to it is taken into the order, as
    `Marks` reads it by the pattern. Threads and child processes of the body are traced as well, and
    waited for. limit_s: seconds that all of it may take.

    Raises: RecordingFailed, unless it was killed by an interference; ValueError for a pattern.
    """
    with tempfile.TemporaryFile() as told:
        tracer = os.fork()
        if tracer == 0:
            decoder = functools.partial(Decoder, root, marks, Marks(pattern))
            _be_tracer(decoder, body, interference, told.fileno(), limit_s)
        _, status = os.waitpid(tracer, 0)
        told.seek(0)
        found = pickle.load(told) if status == 0 else None  # noqa: S301  its own child wrote it
    if not isinstance(found, Recording):
        raise RecordingFailed(found or f"the tracer ended with status {status}")
    if found.status != 0 and not found.was_killed and interference is None:
        raise RecordingFailed(f"what was recorded ended with status {found.status}")
    return found


def _be_tracer(
    decoding: Callable[[], Decoder],
    body: Callable[[], Any],
    interference: Interference | None,
    told_fd: int,
    limit_s: float,
) -> None:
    """Be the process that traces: never returns."""
    try:
        signal.signal(signal.SIGALRM, _too_long)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        decoder = decoding()
        start = decoder.start.copy()
        tracer = Tracer(decoder, interference)
        tracer.run(body)
        found: object = Recording(
            start=start,
            calls=tuple(tracer.calls),
            unseen=tuple(decoder.unseen),
            status=-1 if tracer.status is None else tracer.status,
            was_killed=tracer.was_killed,
        )
    except TimeoutError:  # what is traced is killed with its tracer
        found = f"what was recorded took more than {limit_s} s"
    except BaseException:  # noqa: BLE001  told to the parent, which raises it
        found = traceback.format_exc()
    with open(told_fd, "wb", closefd=False) as file:
        pickle.dump(found, file)
    os._exit(0)


def _too_long(*_: object) -> None:
    raise TimeoutError


def marked(save: Callable[[Path, int], Any], root: Path, steps: Sequence[int], marks: Path) -> None:
    """Save each step in turn, and mark its beginning and its return."""
    fd = os.open(marks, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for step in steps:
        os.write(fd, f"B {step}\n".encode())
        save(root, step)
        os.write(fd, f"A {step}\n".encode())
    os.close(fd)


def record_command(
    root: Path, argv: Sequence[str], *, pattern: str, limit_s: float = LIMIT_S
) -> Recording:
    """Run a command, traced, and give what it did to the directory.

    "{dir}" in its arguments stands for the directory. pattern: found in a line of its output that
    acknowledges a step, which is the pattern's first group; Python in it writes each line at once.

    Raises: RecordingFailed; ValueError for a pattern that is none.
    """
    Marks(pattern)
    filled = [argument.replace("{dir}", str(root)) for argument in argv]
    with tempfile.NamedTemporaryFile(prefix="chaoslab-crash-") as printed:

        def body() -> None:
            os.dup2(printed.fileno(), 1)
            os.execvpe(filled[0], filled, os.environ | {"PYTHONUNBUFFERED": "1"})  # noqa: S606

        found = record(root, body, marks=Path(printed.name), pattern=pattern, limit_s=limit_s)
    begun = Observed(name="", thread=0, result=0, operations=(Begun(step=ANY_STEP),))
    return dataclasses.replace(found, calls=(begun, *found.calls))
