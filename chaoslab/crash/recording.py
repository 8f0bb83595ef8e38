"""Recording: everything that a save does to a directory, made in a process of its own."""

from __future__ import annotations

import dataclasses
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chaoslab.crash.decoding import Decoder
from chaoslab.crash.disk import Disk
from chaoslab.crash.interference import Interference
from chaoslab.crash.operations import Operation
from chaoslab.crash.tracer import Observed, Tracer


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
    interference: Interference | None = None,
) -> Recording:
    """Run the body in a process of its own, traced, and give what it did to the directory.

    marks: a file outside it; what is written there ("B 3": the save of step 3 begins; "A 3": it has
    returned) is taken into the order. Threads and child processes of the body are traced as well.

    Raises: RecordingFailed, unless it was killed by an interference.
    """
    with tempfile.TemporaryFile() as told:
        tracer = os.fork()
        if tracer == 0:
            _be_tracer(root, body, marks, interference, told.fileno())
        _, status = os.waitpid(tracer, 0)
        told.seek(0)
        found = pickle.load(told) if status == 0 else None  # noqa: S301  its own child wrote it
    if not isinstance(found, Recording):
        raise RecordingFailed(found or f"the tracer ended with status {status}")
    if found.status != 0 and not found.was_killed and interference is None:
        raise RecordingFailed(f"what was recorded ended with status {found.status}")
    return found


def _be_tracer(
    root: Path,
    body: Callable[[], Any],
    marks: Path | None,
    interference: Interference | None,
    told_fd: int,
) -> None:
    """Be the process that traces: never returns."""
    try:
        decoder = Decoder(root, marks)
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
    except BaseException:  # noqa: BLE001  told to the parent, which raises it
        found = traceback.format_exc()
    with open(told_fd, "wb", closefd=False) as file:
        pickle.dump(found, file)
    os._exit(0)


def marked(save: Callable[[Path, int], Any], root: Path, steps: Sequence[int], marks: Path) -> None:
    """Save each step in turn, and mark its beginning and its return."""
    fd = os.open(marks, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for step in steps:
        os.write(fd, f"B {step}\n".encode())
        save(root, step)
        os.write(fd, f"A {step}\n".encode())
    os.close(fd)
