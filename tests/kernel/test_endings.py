"""Signals to the caller, and the death of the caller or of the guardian: nothing is left."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from chaoslab.kernel.guardian import folder_of, sweep_abandoned, sweep_guest
from tests.kernel.conftest import (
    LIMIT_S,
    GuestProcess,
    alive,
    command,
    descendants,
    environment,
    leavings,
    wait_until,
)

Start = Callable[..., GuestProcess]
CLEANS_UP = """
trap 'echo cleaning; echo done > cleaned; exit 7' INT TERM
echo up
while :; do sleep 0.1; done
"""
DEAF = "trap 'echo heard' INT; trap '' TERM; echo up; while :; do sleep 0.1; done"
GONE_LIMIT_S = 3.0


def gone(process: GuestProcess, family: set[int]) -> Callable[[], bool]:
    """Say whether nothing of a guest is left: no process, no file."""

    def is_gone() -> bool:
        left = [(pid, command_line(pid)[:80]) for pid in alive(family - {process.pid})]
        print(left, leavings(process))  # told when a test fails
        return not left and not leavings(process)

    return is_gone


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_command(start: Start, tmp_path: Path, number: int) -> None:
    """A signal to the caller is one to the command, which cleans up and is still heard."""
    process = start("sh", "-c", CLEANS_UP)
    family = descendants(process.pid)
    process.send_signal(number)
    out, err = process.communicate(timeout=LIMIT_S)
    assert (out, err, process.returncode) == (b"cleaning\n", b"", 7)
    assert (tmp_path / "cleaned").read_text() == "done\n"
    assert gone(process, family)()


def test_a_second_interrupt_halts_the_guest(start: Start) -> None:
    """A command that outlives SIGINT ends at the second one, with status 130."""
    process = start("sh", "-c", DEAF)
    family = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == b"heard\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_S) == 130
    assert gone(process, family)()


def test_impatient_interrupts_do_not_disturb_the_end(start: Start) -> None:
    """Ctrl-C again and again, also while the guest is cleared away, still gives status 130."""
    process = start("sh", "-c", DEAF)
    family = descendants(process.pid)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
    assert process.returncode == 130
    assert gone(process, family)()


@pytest.mark.parametrize("script", [CLEANS_UP, DEAF], ids=["polite", "deaf"])
def test_a_killed_caller_leaves_nothing(start: Start, tmp_path: Path, script: str) -> None:
    """After SIGKILL of the caller the guest ends by itself, its command first asked politely."""
    process = start("sh", "-c", script)
    family = descendants(process.pid)
    assert len(family) > 3
    process.kill()
    took_s = wait_until(gone(process, family), "the guest to end after its caller")
    assert took_s < GONE_LIMIT_S
    assert (tmp_path / "cleaned").exists() == (script == CLEANS_UP)


def test_a_caller_killed_during_the_boot_leaves_nothing(tmp_path: Path) -> None:
    """A guest whose caller dies before the command runs ends as well."""
    process = subprocess.Popen(
        command("sleep", "1000"), cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL
    )
    wait_until(lambda: bool(leavings(process)), "the guest to begin its boot")
    family = descendants(process.pid)
    process.kill()
    process.wait(LIMIT_S)
    took_s = wait_until(gone(process, family), "the guest to end after its caller")
    assert took_s < GONE_LIMIT_S


def test_a_guest_is_swept_while_its_kernel_still_runs(start: Start) -> None:
    """As after the guardian's death, of which the kernel dies a moment later; another one stays."""
    process, other = (start("sh", "-c", "echo up; exec sleep 1000") for _ in range(2))
    family = descendants(process.pid)
    guardian = next(pid for pid in family if "guardian.py" in command_line(pid))
    kernels = {pid for pid in family if "linux.uml" in command_line(pid)} - {guardian}
    (folder,) = {folder_of(pid) for pid in kernels}
    assert folder is not None
    os.kill(guardian, signal.SIGSTOP)  # it must not be the one that sweeps
    sweep_abandoned()
    assert alive(kernels), "the planted defect: one look, while the leader of its session runs"
    assert sweep_guest(folder, LIMIT_S)
    wait_until(lambda: not alive(kernels), "what was killed to be gone")
    os.kill(guardian, signal.SIGCONT)
    assert other.poll() is None


def command_line(pid: int) -> str:
    """Give a process's arguments; none when it has ended (a guest's processes come and go)."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


@pytest.mark.parametrize("program", ["exec sleep 1000", "while :; do :; done"])
def test_a_killed_guardian_takes_the_kernel_with_it(start: Start, program: str) -> None:
    """SIGKILL of the guardian ends the kernel, and the caller says that the kernel is gone.

    So do the processes that carried its programs, and would run on as this host's own.
    """
    process = start("sh", "-c", f"echo up; {program}")
    family = descendants(process.pid)
    guardian = next(pid for pid in family if "guardian.py" in command_line(pid))
    os.kill(guardian, signal.SIGKILL)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 125
    assert b"ended during the command" in err
    wait_until(gone(process, family), "what was killed to be gone")
