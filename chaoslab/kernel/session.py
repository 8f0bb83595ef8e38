"""The host's side of one guest, from its boot to the exit status of its command."""

import contextlib
import json
import os
import select
import selectors
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chaoslab.kernel.errors import KernelError
from chaoslab.kernel.launch import Lines

CHUNK_BYTES = 1 << 16
FRAME_BYTES = 2048
"""Input on its way at any time. A serial line of the guest never wakes again once its buffer of
4096 bytes has been throttled (line_throttle in arch/um/drivers/line.c of Linux 6.1), so each piece
is acknowledged before the next. This can go when a 1 MiB input passes without."""
TICK_S = 0.25
HALT_LIMIT_S = 5.0
LAST_BYTES_S = 1.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """What signals the caller gets, from before the boot until nothing of the guest is left."""

    def __init__(self) -> None:
        self.number = 0
        self.listener: Callable[[int], None] | None = None

    @contextlib.contextmanager
    def received(self) -> Iterator[None]:
        """Receive signals instead of dying of them (in the main thread; others get none)."""
        before = {}
        with contextlib.suppress(ValueError):
            for number in SIGNALS:
                before[number] = signal.signal(number, self._receive)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _receive(self, number: int, _frame: object) -> None:
        self.number = number
        if self.listener is not None:
            self.listener(number)


class Session:
    """Relays a guest's lines and signals, keeps its limits, and judges how it ended."""

    def __init__(
        self,
        *,
        lines: Lines,
        signals: Signals,
        order: dict[str, Any],
        stdin: int | None,
        outputs: tuple[int, int],
        boot_until_s: float,
        limit_s: float | None,
    ) -> None:
        self._lines = lines
        self._order = order
        self._stdin = stdin
        self._targets = {lines.out: outputs[0], lines.err: outputs[1]}
        self._limit_s = limit_s
        self._state = "booting"
        self._has_printed = False
        self._until_s = boot_until_s
        self._end: dict[str, Any] | None = None
        self._signal = 0
        self._halted = ""
        self._last_bytes_until_s = 0.0
        self._partial = b""
        self._input = b""
        # poll, not epoll: the caller's stdin may be a plain file
        self._selector = selectors.PollSelector()
        for fd in (lines.out, lines.err, lines.reports):
            self._selector.register(fd, selectors.EVENT_READ)
        self._signals = signals
        signals.listener = self._on_signal
        self._signal = self._signal or signals.number

    def relay(self) -> None:
        """Move bytes until the guest has gone or a limit has run out."""
        try:
            while self._selector.get_map() and not self._over():
                for key, _ in self._selector.select(TICK_S):
                    self._move(key.fd)
        finally:
            self._signals.listener = None
            self._selector.close()

    def _move(self, fd: int) -> None:
        """Move what is ready on one descriptor."""
        if fd == self._lines.reports:
            self._take_reports()
        elif fd == self._stdin:
            self._read_input()
        elif fd == self._lines.stdin:
            self._send_input()
        else:
            self._pass_output(fd)

    def exit_status(self, *, memory_bytes: int, memory_dir: Path) -> int:
        """Give the command's exit status, 128 + n where a signal killed it.

        Raises:
            KernelError: there is none; the text says why.
        """
        if self._halted == "signal" or (self._signal and not self._has_begun):
            return 128 + self._signal
        if self._state == "running" and self._halted.startswith("limit_s"):
            raise KernelError(f"{self._halted}, and the guest did not answer")
        if self._state == "ended" and self._halted:
            raise KernelError(self._halted)
        if self._halted:
            raise KernelError(f"{self._halted}; the last console lines:\n{self._console()}")
        if self._end is None:
            raise KernelError(self._sudden_end(memory_dir))
        if "failed" in self._end:
            raise KernelError(self._failure(self._end))
        if self._end["out_of_memory"]:
            raise KernelError(
                f"the guest ran out of memory ({self._end['out_of_memory']}): run with more than "
                f"memory_bytes={memory_bytes}"
            )
        status = int(self._end["exited"])
        return status if status >= 0 else 128 - status

    @property
    def _has_begun(self) -> bool:
        """Tell whether the command has started, by the guest's word or by what it has printed.

        They come on two lines: what it prints may be here first.
        """
        return self._state != "booting" or self._has_printed

    def _console(self) -> str:
        return self._lines.last_console_lines()

    def _sudden_end(self, memory_dir: Path) -> str:
        state = os.statvfs(memory_dir)
        full = state.f_bavail * 50 < state.f_blocks
        mending = (
            f"{memory_dir} is full and holds the guest's memory: free some"
            if full
            else "the kernel panicked or was killed; run it again, with more memory_bytes"
        )
        where = "during the command" if self._has_begun else "before the command started"
        return (
            f"the user-mode kernel ended {where}, without an exit status: {mending}; "
            f"the last console lines:\n{self._console()}"
        )

    def _failure(self, end: dict[str, Any]) -> str:
        if end["failed"] != "start":
            return (
                f"the guest failed at {end['failed']}: {end['text']}; "
                f"the last console lines:\n{self._console()}"
            )
        name, cwd = self._order["argv"][0], self._order["cwd"]
        return (
            f"argv[0]={name!r} with cwd={cwd!r}: want a program that can be executed "
            f"({end['text']}); check the path and PATH"
        )

    def _over(self) -> bool:
        """Keep the limits; say whether waiting any longer is useless."""
        if self._signal and not self._has_begun:
            return True
        if self._lines.guardian.poll() is not None:  # it outlives the guest, unless killed itself
            self._last_bytes_until_s = self._last_bytes_until_s or time.monotonic() + LAST_BYTES_S
            return time.monotonic() >= self._last_bytes_until_s
        if time.monotonic() < self._until_s:
            return False
        if self._state == "running" and not self._halted:
            self._halt(f"limit_s={self._limit_s}: the command took longer and was killed")
            return False
        if self._state == "booting":
            self._halted = "boot_limit_s ran out before the guest was ready"
        return True

    def _halt(self, why: str) -> None:
        """Have the guest kill the command; do without an answer after a while."""
        self._halted = why
        self._until_s = time.monotonic() + HALT_LIMIT_S
        self._lines.ask(halt="now")

    def _on_signal(self, number: int) -> None:
        """Send the signal to the command; the second SIGINT halts the guest."""
        again = number == signal.SIGINT and self._signal == number
        self._signal = number
        if self._state == "running" and not self._halted:
            if again:
                self._halt("signal")
            else:
                self._lines.ask(signal=int(number))

    def _take_reports(self) -> None:
        data = os.read(self._lines.reports, CHUNK_BYTES)
        if not data:
            self._selector.unregister(self._lines.reports)
        *complete, self._partial = (self._partial + data).split(b"\n")
        for line in complete:
            self._note(json.loads(line))

    def _note(self, report: dict[str, Any]) -> None:
        """Take in one report of the guest."""
        if "fed" in report:
            if report["fed"] and self._stdin is not None:
                self._selector.register(self._stdin, selectors.EVENT_READ)
        elif "started" in report:
            self._state = "running"
            self._until_s = float("inf")
            if self._limit_s is not None:
                self._until_s = time.monotonic() + self._limit_s
            if self._stdin is not None:
                self._selector.register(self._stdin, selectors.EVENT_READ)
            if self._signal:  # it came between the command's start and this report
                self._lines.ask(signal=self._signal)
        else:
            self._state = "ended"
            self._until_s = time.monotonic() + HALT_LIMIT_S
            self._end = report
            for fd in (self._stdin, self._lines.stdin):
                if fd is not None and fd in self._selector.get_map():
                    self._selector.unregister(fd)

    def _pass_output(self, fd: int) -> None:
        """Write output; a reader that has gone ends the command as a broken pipe would."""
        data = os.read(fd, CHUNK_BYTES)
        self._has_printed = self._has_printed or bool(data)
        if not data:
            self._selector.unregister(fd)
        target = self._targets[fd]
        view = memoryview(data)
        while view and target >= 0:
            try:
                view = view[os.write(target, view) :]
            except BlockingIOError:  # the caller's descriptor is non-blocking
                select.select([], [target], [], TICK_S)
            except BrokenPipeError:
                target = self._targets[fd] = -1
                self._lines.ask(signal=int(signal.SIGPIPE))

    def _read_input(self) -> None:
        """Take a piece of input as a frame: length in 4 bytes, data; length 0 is the end."""
        assert self._stdin is not None
        data = os.read(self._stdin, FRAME_BYTES)
        self._input = len(data).to_bytes(4, "big") + data
        self._selector.unregister(self._stdin)
        self._selector.register(self._lines.stdin, selectors.EVENT_WRITE)

    def _send_input(self) -> None:
        """Send the frame that is waiting; the guest says when it may have another."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._lines.stdin, self._input)
        self._selector.unregister(self._lines.stdin)
