"""A process that gives up is gone by its deadline, whatever hangs in it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

DEADLINE_S = 0.5
KINDS = {
    "tidy": "sys.exit(75)",
    "waits": "time.sleep(60)",
    "blocks signals": "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); time.sleep(60)",
    # As a library does that never returns and holds the interpreter's lock.
    "holds the lock": "ctypes.PyDLL(None).sleep(60)",
}
STATUS = {"tidy": 75, "waits": 75, "blocks signals": 75, "holds the lock": -14}


def process(body: str, *, guarded: bool) -> subprocess.Popen[bytes]:
    leave = f"leaving.leave_within({DEADLINE_S})" if guarded else "pass"
    lines = ["import ctypes, signal, sys, time", "from chaoslab.resilience import leaving"]
    lines += ["print('up', flush=True)", leave, body]
    running = subprocess.Popen([sys.executable, "-c", "\n".join(lines)], stdout=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stdout.readline() == b"up\n"
    return running


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_hangs_the_process_is_gone_by_the_deadline(kind: str) -> None:
    """With the circuit-open status, or killed by the kernel's timer where nothing else can act."""
    running = process(KINDS[kind], guarded=True)
    began_s = time.monotonic()
    assert running.wait(timeout=30) == STATUS[kind]
    assert time.monotonic() - began_s < DEADLINE_S + 5
    running.communicate()


@pytest.mark.parametrize("kind", ["waits", "holds the lock"])
def test_without_the_guard_it_would_stay(kind: str) -> None:
    """The planted defect: the same process, unguarded, is there long after the deadline."""
    running = process(KINDS[kind], guarded=False)
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(timeout=4 * DEADLINE_S)
    running.kill()
    running.communicate()


def test_outside_the_main_thread_the_kernel_ends_the_process_too() -> None:
    """The timer needs no main thread: a call that holds the interpreter's lock ends as well."""
    thread = f"threading.Thread(target=leaving.leave_within, args=({DEADLINE_S},))"
    body = (
        f"import threading; one = {thread}; one.start(); one.join(); ctypes.PyDLL(None).sleep(60)"
    )
    running = process(body, guarded=False)
    assert running.wait(timeout=30) == STATUS["holds the lock"]
    running.communicate()


FREEING = """
import gc, weakref
gc.disable()
import torch
from chaoslab.resilience import leaving
class Held: pass
held = Held()
held.itself = held  # only the collector can free it
gone = weakref.ref(held)
del held
torch.cuda.is_available = lambda: True
torch.cuda.is_initialized = lambda: {initialized}
torch.cuda.empty_cache = lambda: print("emptied", gone() is None)
leaving.free_accelerators()
"""


@pytest.mark.parametrize(("initialized", "printed"), [(True, "emptied True\n"), (False, "")])
def test_accelerator_memory_is_given_back(initialized: bool, printed: str) -> None:  # noqa: FBT001
    """After what still refers to it is collected; a context that nobody made is not made for it.

    torch's calls are replaced here: they need a GPU.
    """
    ended = subprocess.run(
        [sys.executable, "-c", FREEING.format(initialized=initialized)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert ended.stdout == printed


FULL_PIPE = """
import os, sys
from chaoslab.resilience import AtomicCheckpointManager, FaultTolerantRunner, Limits, StoreClient
read, write = os.pipe()
os.set_blocking(write, False)
try:
    while True:
        os.write(write, bytes(4096))
except BlockingIOError:
    os.set_blocking(write, True)
runner = FaultTolerantRunner(
    client=StoreClient("127.0.0.1", 1, timeout_s=1), rank=0, world_size=1,
    checkpoints=AtomicCheckpointManager(sys.argv[1], rank=0, world_size=1), save_every_steps=1,
    limits=Limits(exit_s=0.5, teardown_s=0.5),
)
if sys.argv[2] == "full":
    os.dup2(write, 2)
else:
    sys.stderr.close()
sys.stdout.write("up\\n")
sys.stdout.flush()
runner._give_up("planted", tell=False)
"""


@pytest.mark.parametrize(("kind", "statuses"), [("full", {75, -14}), ("closed", {75})])
def test_a_standard_error_that_takes_nothing_holds_nobody_up(
    tmp_path: Path, kind: str, statuses: set[int]
) -> None:
    """The deadline runs before the first word. Planted: a pipe that nobody reads; none at all."""
    running = subprocess.Popen(
        [sys.executable, "-c", FULL_PIPE, str(tmp_path / "checkpoints"), kind],
        stdout=subprocess.PIPE,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == b"up\n"
    assert running.wait(timeout=20) in statuses
    running.communicate()
