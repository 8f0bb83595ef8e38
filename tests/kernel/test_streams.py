"""Streams, exit status and the users who may run a guest."""

import fcntl
import os
import pty
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.conftest import LIMIT_S, ROOT, command, environment

Guest = Callable[..., subprocess.CompletedProcess[bytes]]
MEGABYTE = 1 << 20
NOBODY = 65534

WRITE_ALL_BYTES = """
import random, sys
data = random.Random(7).randbytes(5 << 20)
sys.stdout.buffer.write(data)
sys.stdout.flush()
sys.stderr.buffer.write(data[:1000][::-1])
"""


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 137), ("kill -TERM $$", 143)],
)
def test_the_exit_status_passes_through(guest: Guest, script: str, status: int) -> None:
    """The caller sees the command's status, and 128 + n where signal n killed it."""
    done = guest("sh", "-c", script)
    assert done.returncode == status
    assert done.stdout == b""
    assert done.stderr == b""


def test_megabytes_of_output_are_exact(guest: Guest) -> None:
    """5 MiB of random bytes (NUL, CR, LF, EOF signs) arrive whole, stderr apart from stdout."""
    done = guest(sys.executable, "-c", WRITE_ALL_BYTES)
    data = random.Random(7).randbytes(5 * MEGABYTE)
    assert done.returncode == 0
    assert len(done.stdout) == len(data)
    assert done.stdout == data
    assert done.stderr == data[:1000][::-1]


def test_input_arrives_exactly_and_ends(guest: Guest) -> None:
    """A command reads its input to the end, byte for byte."""
    data = random.Random(8).randbytes(MEGABYTE)
    done = guest("cat", input=data)
    assert done.returncode == 0
    assert done.stdout == data


def test_a_shared_output_keeps_its_order(guest: Guest) -> None:
    """Where stdout and stderr are one file, lines of both keep the order of writing."""
    script = "for i in 1 2 3 4 5 6 7 8 9; do echo out $i; echo err $i >&2; done"
    done = guest("sh", "-c", script, stderr=subprocess.STDOUT)
    assert done.stdout.decode().split("\n")[:-1] == [
        f"{name} {i}" for i in range(1, 10) for name in ("out", "err")
    ]


def test_a_reader_that_leaves_ends_the_command(tmp_path: Path) -> None:
    """An endless writer stops when the reader of its output has gone."""
    ours, theirs = os.pipe()
    process = subprocess.Popen(
        command("yes"), cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, stdout=theirs
    )
    os.close(theirs)
    assert os.read(ours, 4) == b"y\ny\n"
    os.close(ours)
    assert process.wait(LIMIT_S) == 128 + 13


def test_what_the_command_leaves_running_ends(guest: Guest) -> None:
    """A background process does not hold the guest up."""
    done = guest("sh", "-c", "sleep 1000 & echo started", options=("--limit-s", "60"))
    assert done.returncode == 0
    assert done.stdout == b"started\n"


def test_two_guests_run_side_by_side(tmp_path: Path) -> None:
    """Two guests at the same time do not disturb each other, and write to one folder."""
    started = [
        subprocess.Popen(
            command("sh", "-c", f"sleep 1; echo {name} > {name}; hostname; exit {name}"),
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        for name in ("4", "5")
    ]
    assert [process.communicate(timeout=LIMIT_S)[0] for process in started] == [
        b"chaoslab-uml\n",
        b"chaoslab-uml\n",
    ]
    assert [process.returncode for process in started] == [4, 5]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "5"]


def readable_python() -> str:
    """Give an interpreter that any user may start."""
    for path in (sys.executable, "/usr/bin/python3"):
        if not os.path.realpath(path).startswith("/root/"):
            return path
    pytest.skip("no Python outside /root for an ordinary user: apt-get install python3")


@pytest.mark.skipif(os.getuid() != 0, reason="this whole run is an ordinary user's already")
def test_an_ordinary_user_needs_no_privilege() -> None:
    """A user without capabilities or a writable home is root in a guest and owns its files."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        copy = Path(folder, "checkout")
        shutil.copytree(ROOT / "chaoslab", copy / "chaoslab")
        script = "id -u; echo mine > written; tc qdisc add dev lo root netem loss 1% && exit 9"
        done = subprocess.run(
            [readable_python(), "-B", "-m", "chaoslab.kernel", "--", "sh", "-c", script],
            cwd=folder,
            env={
                "PATH": "/usr/bin:/bin:/usr/sbin",
                "PYTHONPATH": str(copy),
                "HOME": "/nonexistent",
            },
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (9, b"0\n", b"")
        assert Path(folder, "written").stat().st_uid == NOBODY


def test_a_guest_writes_to_a_terminal_with_its_width(tmp_path: Path) -> None:
    """On a terminal the command is told its width and that colours are wanted."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    clean: dict[str, Any] = {
        name: value
        for name, value in environment().items()
        if name not in {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PY_COLORS"}
    }
    process = subprocess.Popen(
        command("sh", "-c", "echo $COLUMNS $LINES $FORCE_COLOR"),
        cwd=tmp_path,
        env=clean,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    assert process.wait(LIMIT_S) == 0
    assert os.read(ours, 100) == b"77 33 1\r\n"
    os.close(ours)
    os.close(theirs)
