"""Faults of a process: a rank, the store, or an agent."""

from __future__ import annotations

import dataclasses
import signal as signals

from chaoslab.faults.base import Fault, refuse


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessFault(Fault):
    """A fault of a process: a rank, or the store."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signal(ProcessFault):
    """A signal is sent, once. Evidence: the process is gone with this status, or stopped."""

    signal: int

    def __post_init__(self) -> None:
        """Refuse a signal that does not exist. Raises: InvalidScenario."""
        super().__post_init__()
        if self.duration_s is not None:
            raise refuse(self, "duration_s", "no duration_s; for a stop with a window use Stop")
        if self.signal not in signals.valid_signals():
            raise refuse(self, "signal", "a signal of this system, such as signal.SIGTERM")
        if self.signal in (signals.SIGSTOP, signals.SIGTSTP, signals.SIGTTIN, signals.SIGTTOU):
            raise refuse(self, "signal", "a signal that does not stop a process: that is Stop()")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kill(ProcessFault):
    """SIGKILL: the process is gone at once and can clean up nothing."""

    def __post_init__(self) -> None:
        """Refuse a window. Raises: InvalidScenario."""
        super().__post_init__()
        if self.duration_s is not None:
            raise refuse(self, "duration_s", "no duration_s: a kill is a moment")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stop(ProcessFault):
    """SIGSTOP, and SIGCONT after duration_s (None: it stays stopped)."""
