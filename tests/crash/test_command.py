"""`chaoslab crashtest` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import savers

HERE = Path(__file__).parent
LIMIT_S = 60
CHAOSLAB = str(Path(sys.executable).with_name("chaoslab"))


def ran(
    *argv: str, tmp_path: Path, program: tuple[str, ...] = (CHAOSLAB, "crashtest")
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *program, *argv],
        cwd=HERE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_a_correct_saver_is_intact_and_nothing_is_left(tmp_path: Path) -> None:
    """Exit status 0, a row for each model, no temporary file."""
    done = ran("savers:correct", "savers:careful", tmp_path=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split()[:2] for line in done.stdout.splitlines()[1:]]
    assert rows == [[name, "INTACT"] for name in ("kill", "journal", "xfs", "posix")]
    assert list(tmp_path.iterdir()) == []


def test_a_defect_is_told_reported_and_reproduced(tmp_path: Path) -> None:
    """Exit status 1, the loss in words, and a script that needs nothing but the restore."""
    report = tmp_path / "report"
    argv = ["savers:no_directory_sync", "savers:careful", "--report", str(report)]
    done = ran(*argv, tmp_path=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "the rename of draft to last did not survive" in done.stdout
    found = json.loads((report / "crashtest.json").read_text())
    assert found["verdict"] == "LOST_ACKED"
    assert [model["verdict"] for model in found["models"]] == ["INTACT", *["LOST_ACKED"] * 3]
    assert (report / "crashtest.txt").read_text() in done.stdout
    state = tmp_path / "state"
    state.mkdir()
    script = str(report / "reproduce-journal.py")
    again = ran(script, str(state), tmp_path=tmp_path, program=())
    assert again.returncode == 0, again.stderr
    assert "LOST_ACKED: step 2 was acknowledged; it gave step 1" in again.stdout
    assert savers.careful(state) == savers.body(1)
    assert {path.name for path in state.iterdir()} <= {"draft", "last"}


def test_a_command_is_judged_without_a_change_to_it(tmp_path: Path) -> None:
    """Its own output says what is saved; one that never calls fsync fails, its twin does not."""
    for how, status in (("safe", 0), ("plain", 1)):
        argv = ["--acknowledged", r"saved step (\d+)", "trainer:restore", "--"]
        argv += [sys.executable, "trainer.py", "{dir}", how]
        done = ran(*argv, tmp_path=tmp_path)
        assert (done.returncode, done.stderr) == (status, ""), done.stdout
        assert done.stdout.splitlines()[1].split()[:2] == ["kill", "INTACT"]
    assert "the rename of draft to last did not survive" in done.stdout
    assert "step 4 was acknowledged; it gave step 2" in done.stdout
    assert list(tmp_path.iterdir()) == []


COMMAND = ["trainer:restore", "--", sys.executable, "trainer.py", "{dir}", "safe"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("savers:none", "savers:careful"), "want MODULE:FUNCTION"),
        (("nowhere:save", "savers:careful"), "want MODULE:FUNCTION"),
        (("savers", "savers:careful"), "want MODULE:FUNCTION"),
        (("savers:SIZE_BYTES", "savers:careful"), "want a function"),
        (("savers:correct", "savers:body"), "want its state"),
        (("savers:correct", "savers:careful", "--models", "ext3"), "want some of kill"),
        (("savers:correct", "savers:careful", "--steps", "0"), "want at least 1"),
        (("savers:body", "savers:careful"), "ended with status"),
        (("savers:correct",), "want MODULE:SAVE and MODULE:RESTORE"),
        (COMMAND, "want one MODULE:RESTORE, and --acknowledged"),
        (("--acknowledged", "saved", *COMMAND), "want a group for the step"),
        (("--acknowledged", "(", *COMMAND), "want a regular expression"),
        (("--acknowledged", r"never (\d+)", *COMMAND), "nothing was acknowledged"),
        (("--acknowledged", r"(\d+)", "trainer:restore", "--", "no-such-program"), "status"),
    ],
)
def test_what_cannot_be_judged_is_said(tmp_path: Path, argv: tuple[str, ...], said: str) -> None:
    """Exit status 2, one line, nothing on standard output."""
    done = ran(*argv, tmp_path=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert "Traceback" not in done.stderr
