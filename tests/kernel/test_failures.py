"""Each way in which a guest fails is told apart, with what mends it."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from chaoslab.kernel import KernelError, launch, run_in_uml, uml, user_mode_linux
from tests.kernel.conftest import LIMIT_S, environment

Guest = Callable[..., subprocess.CompletedProcess[bytes]]
FAILED_STATUS = 125


def test_a_panic_is_told_with_the_console(guest: Guest) -> None:
    """Output before a kernel panic arrives; the error says panic and shows the console."""
    done = guest("sh", "-c", "echo before; sleep 1; echo c > /proc/sysrq-trigger; sleep 1000")
    assert done.returncode == FAILED_STATUS
    assert done.stdout == b"before\n"
    assert b"ended during the command" in done.stderr
    assert b"sysrq" in done.stderr


def test_a_command_killed_for_memory_is_told(guest: Guest) -> None:
    """A command that the guest's kernel kills for want of memory is no plain status 137."""
    done = guest(
        "python3", "-c", "x = bytearray(10**9)", options=("--memory-bytes", str(160 << 20))
    )
    assert done.returncode == FAILED_STATUS
    assert b"ran out of memory (Out of memory: Killed process" in done.stderr
    assert b"memory_bytes=" in done.stderr


def test_a_child_killed_for_memory_is_the_commands_own_affair(guest: Guest) -> None:
    """Where the kernel kills another process than the command, the command's status counts."""
    script = "python3 -c 'x = bytearray(10**9)'; exit 5"
    done = guest("sh", "-c", script, options=("--memory-bytes", str(160 << 20)))
    assert done.returncode == 5


def test_a_limit_kills_the_command(guest: Guest) -> None:
    """A command that takes longer than the limit is killed; its output so far arrives."""
    done = guest("sh", "-c", "echo up; sleep 1000", options=("--limit-s", "1"))
    assert done.returncode == FAILED_STATUS
    assert done.stdout == b"up\n"
    assert b"limit_s=1.0: the command took longer" in done.stderr


def test_a_boot_that_takes_too_long_is_told_with_the_console(guest: Guest) -> None:
    """A boot beyond its limit is given up, with the console's last lines."""
    done = guest("true", options=("--boot-limit-s", "0.05"))
    assert done.returncode == FAILED_STATUS
    assert b"boot_limit_s" in done.stderr


def test_a_missing_program_is_told(guest: Guest) -> None:
    """A command that does not exist is an error that names it."""
    done = guest("no-such-program")
    assert done.returncode == FAILED_STATUS
    assert b"argv[0]='no-such-program'" in done.stderr


@pytest.mark.parametrize(
    ("program", "words"), [("/nonexistent/init", "init"), ("/bin/false", "Attempted to kill init")]
)
def test_a_guest_without_its_first_program_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, words: str
) -> None:
    """A kernel that cannot start process 1, or loses it, panics, and the error shows that line."""
    monkeypatch.setattr(launch, "guest_python", lambda: program)
    with pytest.raises(KernelError, match="before the command started") as caught:
        run_in_uml(["true"], cwd=tmp_path, env=os.environ)
    assert words in str(caught.value)


def test_missing_modules_are_told_before_the_boot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the kernel's modules nothing starts, and the command that mends it is shown."""
    monkeypatch.setattr(uml, "MODULES", tmp_path / "none")
    found = user_mode_linux()
    assert not found.available
    assert "apt-get install user-mode-linux" in found.reason
    with pytest.raises(KernelError, match="apt-get install user-mode-linux"):
        run_in_uml(["true"], cwd=tmp_path, env=os.environ)


def test_a_missing_kernel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the program, the command that mends it is shown."""
    monkeypatch.setattr(uml, "PROGRAM", "linux.uml.none")
    assert "apt-get install user-mode-linux" in user_mode_linux().reason


@pytest.mark.parametrize(("memory", "words"), [(1 << 20, "want at least"), (1 << 60, "bytes free")])
def test_impossible_memory_is_refused(tmp_path: Path, memory: int, words: str) -> None:
    """A size that cannot boot, or that the host has no room for, is refused at once."""
    with pytest.raises(KernelError, match=words):
        run_in_uml(["true"], cwd=tmp_path, env=os.environ, memory_bytes=memory)


def test_an_empty_command_is_refused(tmp_path: Path) -> None:
    """There must be something to run."""
    with pytest.raises(KernelError, match="argv is empty"):
        run_in_uml([], cwd=tmp_path, env=os.environ)


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small tmpfs takes root")
def test_a_full_tmpfs_is_told(tmp_path: Path) -> None:
    """A guest whose memory no longer fits on the host ends with an error that says so."""
    folder = tmp_path / "small"
    folder.mkdir()
    script = f"""
        mount -t tmpfs -o size=400m small {folder}
        mount -t tmpfs -o size=1m tiny /dev/shm
        mount -t tmpfs -o size=1m tiny /run
        (sleep 3; head -c 400M /dev/zero > {folder}/filler) 2>/dev/null &
        exec python3 -m chaoslab.kernel --memory-bytes {380 << 20} -- python3 -c '
import time
time.sleep(4)
blocks = [bytearray(b"x" * (1 << 20)) for _ in range(250)]
time.sleep(100)'
    """
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", script],
        env=environment(TMPDIR=str(folder)),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == FAILED_STATUS, done.stderr.decode()
    assert f"{folder} is full".encode() in done.stderr
