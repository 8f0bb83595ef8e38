"""Real boots: each test that has `guest` in its arguments starts a user-mode kernel."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chaoslab.kernel import user_mode_linux

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120.0
GuestProcess = subprocess.Popen[bytes]


def environment(**extra: str) -> dict[str, str]:
    """Give the environment for a child that imports chaoslab from this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **extra}


def command(*argv: str, options: tuple[str, ...] = ()) -> list[str]:
    """Give the command line that runs *argv* in a guest."""
    return [sys.executable, "-m", "chaoslab.kernel", *options, "--", *argv]


@pytest.fixture(scope="session", autouse=True)
def _kernel() -> None:
    """Skip where user-mode Linux is missing, with the command that mends it."""
    found = user_mode_linux()
    if not found.available:
        pytest.skip(found.reason)


@pytest.fixture
def guest(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Give a function that runs a command in a guest and waits for it."""

    def run(
        *argv: str, options: tuple[str, ...] = (), **extra: Any
    ) -> subprocess.CompletedProcess[bytes]:
        settings: dict[str, Any] = {"cwd": tmp_path, "env": environment(), **extra}
        if "input" not in settings:
            settings.setdefault("stdin", subprocess.DEVNULL)
        settings.setdefault("stdout", subprocess.PIPE)
        settings.setdefault("stderr", subprocess.PIPE)
        return subprocess.run(
            command(*argv, options=options), timeout=LIMIT_S, check=False, **settings
        )

    return run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., GuestProcess]]:
    """Give a function that starts a guest and waits for the command's first line, `up`."""
    started: list[GuestProcess] = []

    def begin(*argv: str, options: tuple[str, ...] = (), **extra: Any) -> GuestProcess:
        process = subprocess.Popen(
            command(*argv, options=options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **{"cwd": tmp_path, "env": environment(), **extra},
        )
        started.append(process)
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first == b"up\n", process.stderr and process.stderr.read()
        return process

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        process.communicate(timeout=LIMIT_S)


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = 20.0) -> float:
    """Wait for a condition; give the seconds it took."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < limit_s, f"waited {limit_s} s for: {what}"
        time.sleep(0.02)
    return time.monotonic() - began_s


def descendants(root: int) -> set[int]:
    """Give the processes that descend from *root*, itself included."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text()
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def alive(pids: set[int]) -> set[int]:
    """Give those of *pids* that run (a zombie waits for its parent only)."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX":
                found.add(pid)
    return found


def leavings(process: GuestProcess) -> list[Path]:
    """Give the files that the guest of *process* has on this host outside the checkout."""
    folders = [Path("/dev/shm"), Path("/tmp"), Path("/run"), Path.home() / ".uml"]
    return [
        path
        for folder in folders
        if folder.is_dir()
        for path in folder.glob(f"chaoslab-kernel-{process.pid}-*")
    ]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Give what a script saw in one guest: tests of the machine share this boot."""
    folder = tmp_path_factory.mktemp("facts")
    script = Path(__file__).with_name("look_around.py")
    began_s = time.monotonic()
    done = subprocess.run(
        command(sys.executable, str(script), "a b", "c\nd", "'\"\\", "", "\udcff\udc80", "--"),
        cwd=folder,
        env=environment(ODD="x\n'\" \udcff=", LEFT_ALONE="1"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    found["folder"] = folder
    found["took_s"] = time.monotonic() - began_s
    return found
