"""Retries per 100 ms: in report.json and in the summary."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from chaoslab import bounds
from chaoslab.bounds import Verdict
from chaoslab.faults import ConnectionReset
from chaoslab.report import judge_again
from chaoslab.report.storm import MAX_LINES, plot
from tests.measure import stories as told
from tests.report import runs
from tests.report.test_report_on_disk import VALIDATOR

STORM = runs.Run(
    name="sixteen_ranks_come_back_together",
    story=told.storm_story(told.ALIKE_S),
    expected=told.storm_expected(),
    fault=ConnectionReset(),
    bounds=[bounds.spreads_retries(4)],
)
SPREAD = dataclasses.replace(
    STORM, name="sixteen_ranks_come_back_apart", story=told.storm_story(told.JITTERED_S)
)
SILENT = dataclasses.replace(
    STORM, name="one_rank_says_nothing", story=told.without(STORM.story, "attempt", 3)
)
VERDICTS = [(STORM, Verdict.FAILED), (SPREAD, Verdict.PASSED), (SILENT, Verdict.UNKNOWN)]


def data_of(run: runs.Run, tmp_path: Path) -> dict[str, Any]:
    report = run.write(tmp_path)
    data: dict[str, Any] = json.loads((report.directory / "report.json").read_text())
    return data


def summary_of(run: runs.Run, tmp_path: Path) -> str:
    return (run.write(tmp_path).directory / "summary.md").read_text()


@pytest.mark.parametrize(("run", "verdict"), VERDICTS, ids=lambda one: getattr(one, "name", one))
def test_a_saved_storm_is_judged_again_alike(
    tmp_path: Path, run: runs.Run, verdict: Verdict
) -> None:
    """A storm is FAILED, its jittered twin PASSED, a gap UNKNOWN: at once, and from the disk."""
    report = run.write(tmp_path)
    assert report.verdict is verdict
    assert judge_again(report.directory) == report.findings
    VALIDATOR.validate(json.loads((report.directory / "report.json").read_text()))


def test_the_series_is_in_the_report(tmp_path: Path) -> None:
    """Each bin that has attempts is there: when it begins, from the effect, and how many."""
    data = data_of(STORM, tmp_path)
    assert data["injections"][0]["attempts_per_100_ms"] == [{"start_s": 0.3, "count": 16}]
    spread = data_of(SPREAD, tmp_path)["injections"][0]["attempts_per_100_ms"]
    assert sum(one["count"] for one in spread) == 16
    assert max(one["count"] for one in spread) == 2
    assert spread[0] == {"start_s": 0.3, "count": 1}


@pytest.mark.parametrize("planted", [{"start_s": -0.1, "count": 1}, {"start_s": 0, "count": 0}, {}])
def test_the_schema_refuses_a_bin_that_cannot_be(tmp_path: Path, planted: dict[str, float]) -> None:
    """A bin before the effect, an empty one, or one without its fields is caught."""
    data = data_of(STORM, tmp_path)
    data["injections"][0]["attempts_per_100_ms"].append(planted)
    assert not VALIDATOR.is_valid(data)


def test_a_report_of_an_older_chaoslab_still_follows_the_schema(tmp_path: Path) -> None:
    """The series was added to schema_version 1, so a report without it is one too."""
    data = data_of(STORM, tmp_path)
    del data["injections"][0]["attempts_per_100_ms"]
    VALIDATOR.validate(data)


def test_the_summary_shows_peak_limit_and_plot(tmp_path: Path) -> None:
    """The section tells the peak against its limit, and draws the storm."""
    text = summary_of(STORM, tmp_path)
    section = text.partition("### Retries per 100 ms\n\n")[2].partition("\n## ")[0]
    assert section.startswith("Peak 16, limit 4: in the 100 ms from 0.350 s after the effect")
    assert "     ...  none for 0.3 s\n   0.3 s  ################ 16, over 4\n```" in section
    assert "A line is 100 ms, counted from the effect" in section


def test_the_summary_says_why_there_is_no_peak(tmp_path: Path) -> None:
    """With a gap in the record the plot shows what is there, and no peak is claimed."""
    text = summary_of(SILENT, tmp_path)
    assert "Peak not known, limit 4. Missing: attempt of rank 3: a failure was noticed" in text
    assert "############### 15, over 4" in text


def test_without_a_bound_the_peak_stands_alone(tmp_path: Path) -> None:
    """The section is there for whoever has no limit yet."""
    run = dataclasses.replace(STORM, bounds=[bounds.recovers_within(9)])
    text = summary_of(run, tmp_path)
    assert "Peak 16: in the 100 ms" in text
    assert "over" not in text.partition("### Retries")[2].partition("```\n\n")[0]


def test_of_two_limits_the_tighter_is_shown(tmp_path: Path) -> None:
    """A limit of one fault stands beside a limit of all."""
    given_bounds = [bounds.spreads_retries(9), bounds.spreads_retries(3, injection=0)]
    assert "Peak 16, limit 3:" in summary_of(
        dataclasses.replace(STORM, bounds=given_bounds), tmp_path
    )


def test_a_fault_after_which_nobody_tried_has_no_section(tmp_path: Path) -> None:
    """A loss that was ridden out shows no empty plot."""
    assert "Retries per 100 ms" not in summary_of(runs.PASSED, tmp_path)


def test_runs_without_attempts_are_folded() -> None:
    """Two bursts far apart are three lines, not a hundred."""
    lines, per_line = plot([(0, 2), (1, 5), (98, 1)], limit=4)
    assert per_line == 1
    assert lines[1:] == [
        "   0.0 s  ## 2",
        "   0.1 s  ##### 5, over 4",
        "     ...  none for 9.6 s",
        "   9.8 s  # 1",
    ]


def test_a_long_storm_shares_lines_and_keeps_its_peak() -> None:
    """Where bins share a line, the line shows the busiest of them."""
    lines, per_line = plot([(nth, 7 if nth == 123 else 1) for nth in range(200)])
    assert per_line == 10
    assert len(lines) == 21
    assert lines[13] == "  12.0 s  ####### 7"


BINS = st.dictionaries(st.integers(0, 20_000), st.integers(1, 5_000), min_size=1, max_size=120)


@given(bins=BINS, limit=st.none() | st.integers(1, 5_000))
def test_a_plot_always_fits_and_never_hides_an_excess(
    bins: dict[int, int], limit: int | None
) -> None:
    """At most 40 lines of at most 100 columns; the fullest bin is shown, and each over a limit."""
    lines, per_line = plot(sorted(bins.items()), limit)
    assert len(lines) <= MAX_LINES == 40
    assert all(len(line) <= 100 for line in lines)
    shown = [int(m[1]) for line in lines if (m := re.search(r"# (\d+)", line))]
    assert max(shown) == max(bins.values())
    over = {place // per_line for place, count in bins.items() if limit and count > limit}
    assert sum(", over" in line for line in lines) == len(over)
