"""The table, the explanation and the summary: what a tired engineer reads."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from chaoslab.measure import Expectation
from chaoslab.report import terminal_table
from chaoslab.report.text import block, code, escaped, plain
from tests.measure import stories as told
from tests.report import runs

EVIL = "x|y `code` <script>alert(1)</script> [a](http://b) \x1b[31mred\x1b[0m\nnew # line\u202e"


def test_the_table_is_aligned_and_fits(tmp_path: Path) -> None:
    """Four scenarios fit 100 columns, each on one line, figures under their heads."""
    table = terminal_table([run.write(tmp_path) for run in runs.ALL[:4]])
    head, *_ = table.split("\n\n")
    lines = head.split("\n")
    assert len(lines) == 3 + 4
    assert all(len(line) <= 100 for line in lines)
    ends = {len(line) for line in lines if not line.startswith(" ")}
    assert ends == {100}
    assert "\x1b" not in table


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (runs.PASSED, ["PASSED", "PacketLoss", "0.25/12", "61.2"]),
        (runs.FAILED, ["FAILED", "Kill", "0.10", "0.10", "1.00", "0.15", "1.75/12", "5", "61.2"]),
        (runs.OPENED, ["PASSED", "SilentDrop", "1.02", "open 2.95/30"]),
        (runs.UNPROVEN, ["UNKNOWN", "PacketLoss", "-/12"]),
        (runs.HUNG, ["FAILED", "Kill", "never", "never/12"]),
    ],
)
def test_a_line_tells_the_phases_of_its_run(
    tmp_path: Path, run: runs.Run, words: list[str]
) -> None:
    """Verdict, fault, phases, recovery against its bound, lost steps and wall time, in order."""
    line = terminal_table([run.write(tmp_path)]).split("\n")[3]
    assert re.search(" .*".join(re.escape(word) + r"\b" for word in words), line), line


def test_a_failure_says_what_broke_and_how_to_see_it_again(tmp_path: Path) -> None:
    """The bound, the figures against the limit, the report, and the command."""
    report = runs.FAILED.write(tmp_path)
    told_text = " ".join(report.explanation.split())
    assert told_text.startswith(f"FAILED: {runs.FAILED.name}")
    assert "keeps_acknowledged(): 2 steps of an acknowledged save lost" in told_text
    assert f"replay {report.replay}" in told_text
    assert str(report.directory) in told_text


def test_an_unknown_says_what_is_missing(tmp_path: Path) -> None:
    """What a judgement lacks stands in the injector's own words."""
    told_text = " ".join(runs.UNPROVEN.write(tmp_path).explanation.split())
    assert told_text.startswith("UNKNOWN: nothing_bit")
    assert "effective: no packet was dropped in 5 s" in told_text
    assert "in doubt injection 0 (PacketLoss(...))" in told_text


def test_a_broken_bound_without_evidence_is_explained(tmp_path: Path) -> None:
    """A reader who sees FAILED bounds under UNKNOWN is told why that is no failure."""
    run = dataclasses.replace(runs.HUNG, story=told.without(told.hang_story(), "effective"))
    run = dataclasses.replace(run, bounds=[runs.bounds.finishes()])
    told_text = " ".join(run.write(tmp_path).explanation.split())
    assert "the fault is not proven to have bitten: no evidence" in told_text


def test_runs_that_passed_are_not_explained(tmp_path: Path) -> None:
    """A green night is short: the table, the legend, the count."""
    table = terminal_table([runs.PASSED.write(tmp_path), runs.OPENED.write(tmp_path)])
    assert len(table.split("\n\n")) == 4
    assert "report: " in table
    assert table.endswith("2 runs: 2 PASSED")


def test_a_scenario_that_repeats_is_told_as_a_distribution(tmp_path: Path) -> None:
    """Of three runs the least, the median and the most are given, and what never came."""
    late = [*told.without(told.loss_story(), "healed"), told.healed(4.6)]
    runs_of_it = [
        runs.PASSED,
        dataclasses.replace(runs.PASSED, story=late),
        dataclasses.replace(runs.PASSED, story=told.without(told.loss_story(), "healed")),
    ]
    reports = [run.write(tmp_path, run_id=f"r{nth}") for nth, run in enumerate(runs_of_it)]
    table = terminal_table(reports)
    assert f"{runs.PASSED.name}, 3 runs:" in table
    assert "  recovered: least 0.252 s, median 0.502 s, most 0.502 s; 1 not measured" in table
    hung = [runs.HUNG.write(tmp_path, run_id=f"h{nth}") for nth in range(2)]
    assert "  recovered: least never, median never, most never; 2 never" in terminal_table(hung)
    assert "runs:" not in terminal_table(reports[:1])


def test_no_runs_give_no_table() -> None:
    """A session without scenarios prints nothing."""
    assert terminal_table([]) == ""


def test_each_fault_of_a_schedule_has_its_line(tmp_path: Path) -> None:
    """A run with two faults has two lines, the second without the run's own figures."""
    kill = told.kill_expected().injections[0]
    loss = dataclasses.replace(told.loss_expected().injections[0], index=1)
    expected = Expectation(world_size=3, steps=20, injections=(kill, loss))
    table = terminal_table([dataclasses.replace(runs.FAILED, expected=expected).write(tmp_path)])
    lines = table.split("\n\n")[0].split("\n")
    assert len(lines) == 5
    assert lines[4].split()[0] == "PacketLoss"
    assert "[fault 1]" in table


def test_a_schedule_without_faults_has_a_line(tmp_path: Path) -> None:
    """A run without faults is shown as such."""
    run = dataclasses.replace(
        runs.FAILED,
        story=told.twin_story(),
        expected=Expectation(world_size=3, steps=20),
        bounds=[runs.bounds.finishes()],
    )
    line = terminal_table([run.write(tmp_path)]).split("\n")[3]
    assert line.split()[0] == "PASSED"
    assert " none " in line


def test_what_a_job_says_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    """Control sequences and line breaks from a history are shown, not obeyed."""
    story = told.changed(told.circuit_story(), "leak")
    story.append(told.event(5, "leak", what=EVIL))
    run = dataclasses.replace(runs.OPENED, name="evil\x1b[2J", story=story)
    report = run.write(tmp_path, run_id="evil")
    table = terminal_table([report])
    assert "\x1b" not in table
    assert "\u202e" not in table
    assert "\\x1b[31mred" in table


def test_what_a_job_says_cannot_act_in_the_summary(tmp_path: Path) -> None:
    """Markup from a history, a name or a path is shown as text in Markdown."""
    story = [*told.circuit_story(), told.event(5, "leak", what=EVIL)]
    story = told.changed(story, "effective", effect=EVIL)
    run = dataclasses.replace(runs.OPENED, name=EVIL, story=story)
    text = (run.write(tmp_path, run_id="evil").directory / "summary.md").read_text()
    outside = re.sub(r"(?ms)^(`{3,}).*?^\1$", "", text)
    outside = re.sub(r"(`+).*?\1", "", outside)
    assert "<script>" not in outside.replace("\\<", "")
    assert "[a](" not in outside.replace("\\[", "")
    assert "\x1b" not in text
    rows = [line for line in text.split("\n") if line.startswith("| ")]
    assert all(line.endswith(" |") for line in rows)


def test_the_summary_shows_verdict_bounds_evidence_and_replay(tmp_path: Path) -> None:
    """summary.md is enough to show to somebody who has nothing else."""
    text = (runs.FAILED.write(tmp_path).directory / "summary.md").read_text()
    for words in (
        "# FAILED: a_rank_killed",
        "| FAILED | `keeps_acknowledged()` | 0 | 2 steps of an acknowledged save lost",
        "## Fault 0: `Kill()` on `rank(2)`",
        "| 1.860 s | effective | `effect=seen, evidence.n=1` |",
        "| `recovery_s` | 1.75 s | from the effect to step 9 of rank 2",
        "pytest scenarios/test_it.py",
        "| torch | `2.13.0` |",
    ):
        assert words in text, words


def test_a_fault_that_never_came_is_told_in_the_summary(tmp_path: Path) -> None:
    """A trigger that was not reached leaves no evidence, and the summary says so."""
    story = [e for e in told.loss_story() if e.get("injection") is None]
    run = dataclasses.replace(runs.PASSED, story=story)
    text = (run.write(tmp_path).directory / "summary.md").read_text()
    assert "It was never injected." in text
    assert "# UNKNOWN" in text


@given(st.text())
def test_plain_text_is_printable_and_on_one_line(text: str) -> None:
    """Nothing that a job writes leaves its line or moves the cursor."""
    assert plain(text).isprintable()


@given(st.text(alphabet="`|<>[]*_#\\ ab\n"))
def test_no_markup_survives_escaping(text: str) -> None:
    """Every character that opens a span, a link, a tag or a cell has a backslash before it."""
    bare = re.sub(r"\\.", "", escaped(text))
    assert not re.search(r"[`|<>\[\]*#\\]", bare)


@given(st.text(alphabet="`ab |\n"))
def test_a_code_span_cannot_be_closed_from_within(text: str) -> None:
    """The fence is longer than any run of backticks in the text."""
    shown = code(text)
    if shown:
        fence = re.match(r"`+", shown)
        assert fence is not None
        inner = shown[len(fence[0]) : -len(fence[0])]
        assert fence[0] not in inner
        assert shown.endswith(fence[0])


@given(st.text(alphabet="`ab\n~"))
def test_a_block_cannot_be_closed_from_within(text: str) -> None:
    """Only the last line closes the block."""
    fence, *inner, last = block(text).split("\n")
    assert fence == last
    assert all(not line.strip().startswith(fence) for line in inner)
