"""What is left to the night, and the command that replays one test, by running pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chaoslab import Options, naming

ROOT = Path(__file__).resolve().parents[2]
FILE = "scenarios/test_benign_faults.py"
TEST = f"{FILE}::test_a_pause_of_one_second_restarts_nothing"


def collected(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.parametrize(
    ("arguments", "count"),
    [([FILE], 0), ([TEST], 1), ([str(ROOT / TEST)], 1), ([FILE, "--nightly"], 2)],
)
def test_a_nightly_test_runs_by_day_when_it_is_named(arguments: list[str], count: int) -> None:
    """So that the replay command of a failure of the night runs it."""
    assert len(collected(*arguments)) == count


def test_the_replay_command_is_this_test() -> None:
    """It is run as it stands, less the running."""
    command = naming.replay_command(Options())
    done = subprocess.run(
        ["sh", "-c", f"{command} -q --collect-only"], capture_output=True, text=True, check=False
    )
    assert "::test_the_replay_command_is_this_test" in done.stdout, done.stdout + done.stderr
