"""Async saving: one save in flight, in a thread of its own, that can be waited for or abandoned.

The thread is started by the save and ends with it: nothing runs at import or construction, so a
process may fork before and after. It is no daemon: a process that ends waits for its save, which
has a deadline. A forked child does not have the thread and takes the save for its parent's.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from chaoslab.resilience import saving
from chaoslab.resilience.errors import CheckpointWriteFailed, SaveAbandoned


class InFlight:
    """A save in progress, and then its outcome: a path or an error."""

    def __init__(self, step: int, should_stop: saving.StopReason) -> None:
        self.step, self._should_stop = step, should_stop
        self._pid = os.getpid()
        self._abandoned: str | None = None
        self._thread: threading.Thread | None = None
        self._path: Path | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], Path]) -> None:
        """Start the save in a thread, which does nothing before this call is all but over.

        Else it would take the interpreter's lock from a training loop that waits for its return:
        5 ms, which is what a lock is held for at least (sys.getswitchinterval).
        """
        may_begin = threading.Event()
        self._thread = threading.Thread(
            target=self._run,
            args=(work, may_begin),
            name=f"checkpoint of step {self.step}",
            daemon=False,
        )
        try:
            self._thread.start()
        finally:
            may_begin.set()  # also where a signal interrupts: a thread that waits would never end

    def _run(self, work: Callable[[], Path], may_begin: threading.Event) -> None:
        may_begin.wait()
        try:
            self._path = work()
        except BaseException as error:  # noqa: BLE001 - raised again by the next call
            self._error = error

    def stop_reason(self) -> str | None:
        """Give the reason to stop: what `abandon` was told, else the caller's own."""
        return self._abandoned or self._should_stop()

    def abandon(self, reason: str) -> None:
        """Ask the save to end; it does within a block of bytes or a moment of waiting."""
        self._abandoned = reason

    def is_ours(self) -> bool:
        """Tell whether this process started it."""
        return self._pid == os.getpid()

    def has_ended(self, limit_s: float, should_stop: saving.StopReason = lambda: None) -> bool:
        """Wait for its end, until the limit or a reason to stop; tell whether it has ended."""
        assert self._thread is not None
        end_s = time.monotonic() + limit_s
        while self._thread.is_alive():
            left_s = end_s - time.monotonic()
            if left_s <= 0 or should_stop() is not None:
                return False
            self._thread.join(min(left_s, 10 * saving.POLL_S))
        return True

    def outcome(self) -> Path:
        """Give the path of an ended save. Raises: what ended it."""
        if self._error is not None:
            raise self._error
        assert self._path is not None
        return self._path

    def join(self, limit_s: float, should_stop: saving.StopReason = lambda: None) -> None:
        """Wait for its end.

        Raises: SaveAbandoned when told to stop; CheckpointWriteFailed at the limit.
        """
        began_s = time.monotonic()
        if not self.has_ended(limit_s, should_stop):
            if (reason := should_stop()) is not None:
                raise SaveAbandoned(f"waited for the save of step {self.step} to end: {reason}")
            raise CheckpointWriteFailed(
                f"the save of step {self.step} is still in flight after "
                f"{time.monotonic() - began_s:.1f} s: want saves that end before the next; save "
                "less often, or on a faster disk"
            )
