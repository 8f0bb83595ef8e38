"""The table of variants: what was measured beside what the field reports, never mixed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from chaoslab import faults
from chaoslab.errors import HarnessError, InvalidScenario
from chaoslab.measure import Expectation
from chaoslab.report import Report, Variant, variants_table, write_variants
from tests.measure import stories as told
from tests.report import runs

EXPLICIT = dataclasses.replace(
    runs.OPENED,
    name="explicit_timeout",
    story=told.circuit_story(status=1),
)
SOURCE = "issue 3, item 7"


def variants(reports: Path) -> list[Variant]:
    return [
        Variant(
            name="plain",
            report=runs.HUNG.write(reports),
            field="hangs for 5.2 h",
            source=SOURCE,
            default_timeout_s=1800,
        ),
        Variant(
            name="explicit timeout",
            report=EXPLICIT.write(reports),
            field="notices in 15 s",
            source=SOURCE,
        ),
        Variant(
            name="timeout + backoff",
            report=runs.FAILED.write(reports),
            field="recovers in 12 s",
            source=SOURCE,
        ),
        Variant(
            name="breaker",
            report=runs.OPENED.write(reports),
            field="releases in 30 s",
            source=SOURCE,
        ),
    ]


def files(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_each_variant_has_its_line_of_measured_figures_and_reported_words(tmp_path: Path) -> None:
    """Figures come from the run's own report, in the house's format; the field's words stand by."""
    lines = variants_table(variants(tmp_path)).split("\n")
    assert lines[0] == (
        "| variant | noticed (measured) | recovered (measured) | released (measured) "
        "| the field reports |"
    )
    assert lines[2:6] == [
        "| plain | - (1) | - (1) | - (1) | hangs for 5.2 h (issue 3, item 7) |",
        "| explicit timeout | 1.02 s | never (2) | never (3) | notices in 15 s (issue 3, item 7) |",
        "| timeout + backoff | 0.1 s | 1.75 s | - (4) | recovers in 12 s (issue 3, item 7) |",
        "| breaker | 1.02 s | never (5) | 2.95 s | releases in 30 s (issue 3, item 7) |",
    ]


def test_a_figure_that_is_not_there_has_a_footnote_that_says_why(tmp_path: Path) -> None:
    """A limit, with the arithmetic of a stated timeout; another ending; what was not to be had."""
    first, *notes = variants_table(variants(tmp_path)).partition("\n\n")[2].split("\n")
    assert first == (
        "1. not until the run's limit of 30 s; longest time without a step: 28.2 s; the stated "
        "default timeout is 1800 s, so not before 1800 s by arithmetic"
    )
    assert notes == [
        "2. ranks 0, 1, 2: exited with status 1 after step 8 of 20",
        "3. rank 0: exited with status 1 after step 8 of 20; want status 75",
        "4. missing: a circuit that opened: the job recovered",
        "5. ranks 0, 1, 2: exited with status 75 after step 8 of 20",
    ]


def test_a_run_that_was_cut_short_never_shows_never(tmp_path: Path) -> None:
    """What did not come until a run's limit may come later: without arithmetic it is a dash too."""
    hung = runs.HUNG.write(tmp_path)
    table = variants_table([Variant(name="plain", report=hung)])
    assert "never" not in table
    assert "| plain | - (1) | - (1) | - (1) | - |" in table
    assert "arithmetic" not in table
    short = variants_table([Variant(name="plain", report=hung, default_timeout_s=29)])
    assert "arithmetic" not in short, "a timeout within the run's limit was waited for"


def test_a_fault_that_is_not_proven_gives_no_figure(tmp_path: Path) -> None:
    """An UNKNOWN run has dashes, and the reason that its report has."""
    table = variants_table([Variant(name="unproven", report=runs.UNPROVEN.write(tmp_path))])
    assert "| unproven | - (1) | - (1) | - (1) | - |" in table
    assert "1. missing: effective: no packet was dropped in 5 s" in table


def test_of_several_faults_the_one_that_is_named_is_shown(tmp_path: Path) -> None:
    """Each row names its fault; one run may stand in two rows."""
    kill = told.kill_expected().injections[0]
    reset = told.reset_expected().injections[0]
    story = told.fault_events(1.25, 0) + told.changed(
        told.changed(told.kill_story(), "injected", injection=1), "effective", injection=1
    )
    expected = Expectation(
        world_size=3, steps=20, injections=(reset, dataclasses.replace(kill, index=1))
    )
    run = dataclasses.replace(runs.FAILED, story=story, expected=expected, fault=faults.Kill())
    report = run.write(tmp_path)
    table = variants_table(
        [Variant(name=f"fault {index}", report=report, injection=index) for index in (0, 1)]
    )
    assert "| fault 0 | - (1) | 0.152 s | - (2) | - |" in table
    assert "| fault 1 | 0.1 s | 1.75 s | - (2) | - |" in table
    with pytest.raises(InvalidScenario, match="the schedule has 2 faults; want injection="):
        Variant(name="which", report=report)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"field": "hangs"}, "want both or neither"),
        ({"source": "somewhere", "field": "  "}, "want both or neither"),
        ({"injection": 1}, "want an index of the schedule, which has 1 faults"),
        ({"injection": -1}, "want an index"),
        ({"default_timeout_s": 0}, "want more than 0, in seconds"),
        ({"default_timeout_s": float("inf")}, "want more than 0, in seconds"),
    ],
)
def test_a_row_that_cannot_be_shown_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    """A claim without a source, a fault that is not there, a timeout that is none."""
    with pytest.raises(InvalidScenario, match=words):
        Variant(name="bad", report=runs.HUNG.write(tmp_path), **changes)


def test_both_files_are_written_whole(tmp_path: Path) -> None:
    """The page links each run's summary; the data has every figure with where it comes from."""
    rows = variants(tmp_path)
    runs_there = files(tmp_path)
    path = write_variants(tmp_path, "sixteen-nodes", rows)
    assert path == tmp_path / "sixteen-nodes.md"
    assert files(tmp_path) - runs_there == {"sixteen-nodes.md", "sixteen-nodes.json"}
    text = path.read_text()
    assert variants_table(rows) in text
    run_id = rows[0].report.run_id
    assert f"| plain | FAILED | `Kill()` on `rank(2)` | [`{run_id}`]({run_id}/summary.md) |" in text
    assert (tmp_path / run_id / "summary.md").exists()
    data = json.loads((tmp_path / "sixteen-nodes.json").read_text())
    assert [row["variant"] for row in data["variants"]] == [row.name for row in rows]
    recovered = data["variants"][2]["recovered"]
    own = rows[2].report.measurement("recovery_s", 0)
    assert (recovered["value"], recovered["how"]) == (own.value, own.how)
    assert recovered["by_rank"]["2"] == pytest.approx(1.752)
    assert data["variants"][0]["noticed"]["value"] == "never"
    assert data["variants"][0]["noticed"]["cut_short"] is True
    assert data["variants"][0]["source"] == SOURCE


def test_a_table_is_never_overwritten(tmp_path: Path) -> None:
    """A name that is taken, by either file, is refused, and what is there stays."""
    rows = variants(tmp_path)
    path = write_variants(tmp_path, "table", rows)
    before = path.read_bytes()
    with pytest.raises(HarnessError, match="already there; want a name of its own"):
        write_variants(tmp_path, "table", rows[:1])
    assert path.read_bytes() == before
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(HarnessError, match=r"other\.json: already there"):
        write_variants(tmp_path, "other", rows)
    assert not (tmp_path / "other.md").exists()


@pytest.mark.parametrize("failing", ["table.json", "table.md"])
def test_a_table_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """A disk that fills at either file leaves neither, and no draft."""
    rows = variants(tmp_path)
    before = files(tmp_path)
    write = Path.write_text

    def full(self: Path, text: str, **how: Any) -> int:
        if self.name == failing:
            raise OSError(28, "No space left on device")
        return write(self, text, **how)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(HarnessError, match="No space left on device"):
        write_variants(tmp_path, "table", rows)
    assert files(tmp_path) == before


def test_a_rename_that_fails_takes_the_other_file_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both files or neither, also when the second cannot be put in its place."""
    rows = variants(tmp_path)
    before = files(tmp_path)
    rename = Path.rename

    def refused(self: Path, target: Path) -> Path:
        if target.suffix == ".md":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(HarnessError, match="Input/output error"):
        write_variants(tmp_path, "table", rows)
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", ["", "../out", "a/b", ".hidden", "a b", "a\n"])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    """A table lies in the reports' directory, and its name can be typed."""
    rows = variants(tmp_path)
    with pytest.raises(InvalidScenario, match="want letters, digits"):
        write_variants(tmp_path, name, rows)


def test_no_rows_make_no_table(tmp_path: Path) -> None:
    """Nothing to compare is an error of the caller, and no file."""
    with pytest.raises(InvalidScenario, match="want at least one row"):
        write_variants(tmp_path, "empty", [])
    assert files(tmp_path) == set()


def test_a_run_whose_history_is_gone_is_said(tmp_path: Path) -> None:
    """A report that was moved away cannot be told from one that was cut short: it is an error."""
    rows = variants(tmp_path)
    (rows[1].report.directory / "history.jsonl").unlink()
    with pytest.raises(HarnessError, match="want a report's directory"):
        write_variants(tmp_path, "table", rows)


def test_what_a_job_or_the_field_says_cannot_act_in_the_table(tmp_path: Path) -> None:
    """Markup in a name, in words of the field or of a run is shown as text."""
    evil = "x|y <b>z</b> [a](http://b)\n# head"
    report: Report = runs.PASSED.write(tmp_path)
    row = Variant(name=evil, report=report, field=evil, source=evil)
    path = write_variants(tmp_path, "evil", [row])
    for line in path.read_text().split("\n"):
        assert not line.startswith("# head")
        bare = line.replace("\\|", "").replace("\\<", "").replace("\\[", "")
        assert "<b>" not in bare
        assert "[a]" not in bare
        if "x" in line and line.startswith("|"):
            assert bare.count("|") in (5, 6)
