"""Leaving: how a process that gives up gives back what it holds, by a deadline, whatever hangs.

Three steps, each for when the one before it does not come to its end: the process tidies up and
ends by itself; a thread ends it with the circuit-open status; the kernel's own timer kills it,
also where a library call that never returns holds the interpreter's lock. The timer's signal is
SIGALRM (a scheduler sees status 142), since nothing but the kernel can still act on time, and it
sends no other.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
from typing import Final

from chaoslab import probe
from chaoslab.resilience.breaker import CIRCUIT_OPEN_STATUS

KERNEL_MARGIN_S: Final = 1.0
"""The kernel's timer comes this much after the thread's."""


def leave_within(deadline_s: float) -> None:
    """End this process by a deadline, in seconds from now: status 75, or SIGALRM at the last.

    Call it once, before whatever may hang.
    """
    guard = threading.Timer(deadline_s, leave_now)
    guard.daemon = True
    guard.start()
    signal.setitimer(signal.ITIMER_REAL, deadline_s + KERNEL_MARGIN_S)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    # Only the main thread may set a signal's action; elsewhere it is the default unless the
    # script has set another, which then has to do.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def leave_now() -> None:
    """End this process at once, with the status that says that the circuit is open."""
    probe.emit("rank_exited", status=CIRCUIT_OPEN_STATUS, forced=True)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(CIRCUIT_OPEN_STATUS)


def free_accelerators() -> None:
    """Give back the accelerator memory that torch caches; what the task still refers to stays."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
