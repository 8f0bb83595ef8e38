"""A standby takes over from a dead rank, warm, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chaoslab.resilience import standby
from chaoslab.resilience.backoff import Backoff

LIMIT_S = 60.0
TELLS = """
import json, os, sys, time, signal
from pathlib import Path
import {module}
place = Path(sys.argv[1])
incarnation = int(os.environ["CHAOSLAB_INCARNATION"])
with (place / "told").open("a") as told:
    told.write(json.dumps({{"pid": os.getpid(), "parent": os.getppid(), "incarnation": incarnation,
                           "argv": sys.argv, "name": __name__, "t_s": time.monotonic()}}) + "\\n")
"""
WAITS = (
    TELLS
    + """
if "child" in sys.argv and os.fork() == 0:
    (place / f"child-{{incarnation}}.draft").write_text(str(os.getpid()))
    (place / f"child-{{incarnation}}.draft").rename(place / f"child-{{incarnation}}")
while not (place / f"end-{{incarnation}}").exists():
    time.sleep(0.01)
sys.exit(int((place / f"end-{{incarnation}}").read_text()))
"""
)
Start = Callable[..., "Running"]


class Running:
    """A standby process with a script that tells what it is and waits to be told to end."""

    def __init__(self, place: Path, script: str, *options: str, arguments: tuple[str, ...]) -> None:
        self.place = place
        self.script = place / "train.py"
        self.script.write_text(script)
        command = [sys.executable, "-m", "chaoslab.resilience.standby", *options]
        self.process = subprocess.Popen(
            [*command, str(self.script), str(place), *arguments],
            stderr=subprocess.PIPE,
            text=True,
        )

    def told(self) -> list[dict]:
        """Read what the ranks told."""
        path = self.place / "told"
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]

    def rank(self, incarnation: int) -> dict:
        """Wait until the rank of this incarnation runs; give what it told."""
        self.until(lambda: len(self.told()) > incarnation, f"incarnation {incarnation}")
        return self.told()[incarnation]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition."""
        deadline_s = time.monotonic() + LIMIT_S
        while not condition():
            assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
            assert time.monotonic() < deadline_s, f"waited {LIMIT_S} s for {what}"
            time.sleep(0.002)

    def child_of(self, rank: dict) -> int:
        """Wait until a rank has forked its child; give the child's pid."""
        path = self.place / f"child-{rank['incarnation']}"
        self.until(path.exists, "the rank's child")
        return int(path.read_text())

    def end(self, incarnation: int, status: int) -> None:
        """Tell a rank to end."""
        (self.place / f"end-{incarnation}.draft").write_text(str(status))
        (self.place / f"end-{incarnation}.draft").rename(self.place / f"end-{incarnation}")

    def ended(self) -> tuple[int, str]:
        """Wait for the standby's end; give its status and what it said."""
        _, said = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, said


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a standby; end it at the end."""
    all_started: list[Running] = []

    def begin(*options: str, script: str = WAITS, arguments: tuple[str, ...] = ()) -> Running:
        running = Running(tmp_path, script.format(module="math"), *options, arguments=arguments)
        all_started.append(running)
        return running

    yield begin
    for running in all_started:
        running.process.terminate()  # the rank's own children may hold its pipe: end them, too
        try:
            running.process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            running.process.kill()
            running.process.wait()


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


def until_gone(pid: int) -> None:
    deadline_s = time.monotonic() + 10
    while not gone(pid):
        assert time.monotonic() < deadline_s, f"{pid} is still there"
        time.sleep(0.005)


def test_a_killed_rank_is_taken_over_within_a_second(start: Start) -> None:
    """SIGKILL of the rank: the next one runs in a moment, warm, as the next incarnation."""
    running = start()
    first = running.rank(0)
    assert first["name"] == "__main__"
    assert first["argv"] == [str(running.script), str(running.place)]
    killed_s = time.monotonic()
    os.kill(first["pid"], signal.SIGKILL)
    second = running.rank(1)
    assert second["incarnation"] == 1
    assert second["parent"] == first["parent"] == running.process.pid
    assert second["t_s"] - killed_s < 1.0
    running.end(1, 0)
    status, said = running.ended()
    assert status == 0
    assert "the rank was ended by SIGKILL; takeover 1 of 10 in 0.00 s" in said


@pytest.mark.parametrize("status", [0, 75])
def test_a_rank_with_the_last_word_is_not_taken_over(start: Start, status: int) -> None:
    """Done, or the circuit open: the scheduler gets the status, and nothing is restarted."""
    running = start()
    running.rank(0)
    running.end(0, status)
    assert running.ended() == (status, "")
    assert len(running.told()) == 1


def test_a_rank_that_its_own_timer_ended_is_not_taken_over(start: Start) -> None:
    """It had given up and could not leave by itself: to the scheduler the circuit is open."""
    running = start()
    os.kill(running.rank(0)["pid"], signal.SIGALRM)
    assert running.ended() == (75, "")
    assert len(running.told()) == 1


def test_takeovers_in_a_row_are_bounded(start: Start) -> None:
    """A rank that cannot live is given up after --restarts, with its own status."""
    running = start("--restarts", "2", script=TELLS + "sys.exit(3)")
    status, said = running.ended()
    assert status == 3
    assert [told["incarnation"] for told in running.told()] == [0, 1, 2]
    assert "it was the last of 2 takeovers in a row" in said


def test_a_healthy_stretch_gives_takeovers_back(start: Start) -> None:
    """With --healthy-s passed in each life, more ranks die than --restarts allows in a row."""
    running = start("--restarts", "1", "--healthy-s", "0.05")
    for incarnation in range(4):
        rank = running.rank(incarnation)
        running.until(lambda r=rank: time.monotonic() - r["t_s"] > 0.1, "a healthy stretch")
        os.kill(rank["pid"], signal.SIGKILL)
    running.rank(4)
    running.end(4, 0)
    assert running.ended()[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_end_reaches_the_rank_and_nothing_follows(start: Start, number: int) -> None:
    """The rank gets the signal; the standby leaves with its status and takes over no more."""
    running = start()
    rank = running.rank(0)
    running.process.send_signal(number)
    status, _ = running.ended()
    assert status == 128 + number
    assert gone(rank["pid"])
    assert len(running.told()) == 1


def test_a_rank_cannot_outlive_its_standby(start: Start) -> None:
    """SIGKILL of the standby: the kernel ends the rank."""
    running = start()
    rank = running.rank(0)
    running.process.kill()
    running.process.wait()
    until_gone(rank["pid"])


def test_a_ranks_children_go_with_it(start: Start) -> None:
    """What the dead rank had forked is gone before the next one begins."""
    running = start(arguments=("child",))
    rank = running.rank(0)
    child = running.child_of(rank)
    assert not gone(child)
    os.kill(rank["pid"], signal.SIGKILL)
    second = running.rank(1)
    until_gone(child)
    other = running.child_of(second)
    running.end(1, 0)
    assert running.ended()[0] == 0
    until_gone(other)


def test_an_import_that_fails_is_left_to_the_script(start: Start) -> None:
    """It is said, and the script may guard it; a script without it is the twin above."""
    script = "try:\n    import absent_module\nexcept ImportError:\n    pass\n" + TELLS
    running = start(script=script)
    status, said = running.ended()
    assert status == 0
    assert "not imported in advance: import absent_module: ModuleNotFoundError" in said
    assert len(running.told()) == 1


def test_an_import_that_starts_a_thread_is_refused(start: Start, tmp_path: Path) -> None:
    """A fork would lose the thread: refused before any rank, and said which it is."""
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    running = start(script="import threaded\n" + TELLS)
    status, said = running.ended()
    assert status == 1
    assert "has started threads" in said
    assert running.told() == []


def test_a_script_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """The message names it."""
    with pytest.raises(SystemExit):
        standby.parse([str(tmp_path / "absent.py")])


def test_a_policy_out_of_range_is_refused() -> None:
    """Negative restarts, no healthy stretch."""
    for bad in ({"restarts": -1}, {"healthy_s": 0.0}, {"healthy_s": float("nan")}):
        with pytest.raises(ValueError, match="want restarts >= 0"):
            standby.Policy(**bad)
    assert standby.Policy(restarts=0, backoff=Backoff(base_s=1, cap_s=2)).restarts == 0


def test_imports_are_read_as_the_script_makes_them() -> None:
    """Top level, also in try and if; not for types alone, not in functions, not relative."""
    source = """
import a, b.c
from d import e as f, g
if TYPE_CHECKING:
    import never
try:
    import h
except ImportError:
    import i
def later():
    import j
from . import k
"""
    assert standby.imports_of(source) == [
        ("a", ()), ("b.c", ()), ("d", ("e", "g")), ("h", ()),
    ]  # fmt: skip
