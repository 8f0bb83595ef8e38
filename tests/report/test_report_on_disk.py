"""A report's directory: whole or not at all, valid, and enough to judge the run again."""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
import os
from pathlib import Path

import jsonschema
import pytest

from chaoslab import bounds
from chaoslab.bounds import Verdict, judge
from chaoslab.errors import HarnessError
from chaoslab.history import History
from chaoslab.report import judge_again, writing
from tests.measure import stories as told
from tests.report import runs

SCHEMA = json.loads(
    importlib.resources.files("chaoslab.report").joinpath("report.schema.json").read_text()
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_the_schema_is_a_schema() -> None:
    """report.schema.json is itself valid."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("run", runs.ALL, ids=lambda run: run.name)
def test_report_json_follows_its_schema(tmp_path: Path, run: runs.Run) -> None:
    """Whatever the verdict, the schema that the package ships holds."""
    report = run.write(tmp_path)
    data = json.loads((report.directory / "report.json").read_text())
    VALIDATOR.validate(data)
    assert data["verdict"] == report.verdict


def test_the_schema_refuses_an_unknown_without_what_is_missing(tmp_path: Path) -> None:
    """A planted UNKNOWN that does not say what it lacks is caught."""
    report = runs.UNPROVEN.write(tmp_path)
    data = json.loads((report.directory / "report.json").read_text())
    data["judgements"][0]["missing"] = ""
    assert not VALIDATOR.is_valid(data)


def test_a_report_holds_what_a_reader_needs(tmp_path: Path) -> None:
    """Verdict, evidence, figures with where they come from, seed, versions, replay, twin."""
    report = runs.FAILED.write(tmp_path)
    data = json.loads((report.directory / "report.json").read_text())
    assert data["verdict"] == "FAILED"
    assert data["seed"] == 7
    assert data["versions"]["torch"] == "2.13.0"
    assert data["replay"].startswith("pytest scenarios/")
    assert data["twin"] == {"source": "cached from run-1"}
    assert data["durations"]["wall_s"] == 61.25
    assert [e["kind"] for e in data["injections"][0]["events"]] == ["injected", "effective"]
    assert data["injections"][0]["events"][1]["fields"]["evidence"] == {"n": 1}
    assert "bounds.recovers_within(12)," in data["scenario"]["code"]
    assert data["scenario"]["data"]["job"]["args"] == ["--lr", "0.1"]
    kept = [j for j in data["judgements"] if j["bound"] == "keeps_acknowledged()"]
    assert kept[0]["verdict"] == "FAILED"
    figures = {m["name"]: m for m in data["measurements"]}
    assert figures["recovery_s"]["how"]
    assert figures["recovery_s"]["by_rank"]["2"] == pytest.approx(1.752)


def test_what_never_came_is_told_as_never(tmp_path: Path) -> None:
    """JSON has no infinity: `never` stands for it, and the file stays strict JSON."""
    report = runs.HUNG.write(tmp_path)
    text = (report.directory / "report.json").read_text()

    def refuse(name: str) -> None:
        raise AssertionError(name)

    data = json.loads(text, parse_constant=refuse)
    figures = {m["name"]: m["value"] for m in data["measurements"]}
    assert figures["recovery_s"] == "never"


def test_odd_values_of_a_job_do_not_spoil_the_report(tmp_path: Path) -> None:
    """NaN, infinity and objects in evidence become text."""
    story = told.changed(
        told.kill_story(), "effective", evidence={"x": float("nan"), "y": [float("inf")], "z": 1j}
    )
    report = dataclasses.replace(runs.FAILED, story=told.without(story, "effective")).write(
        tmp_path
    )
    VALIDATOR.validate(json.loads((report.directory / "report.json").read_text()))
    data = writing.report_data(report, told.history(story), "now")
    evidence = data["injections"][0]["events"][1]["fields"]["evidence"]
    assert evidence == {"x": "nan", "y": ["never"], "z": "1j"}


@pytest.mark.parametrize("run", runs.ALL, ids=lambda run: run.name)
def test_a_saved_run_is_judged_again_alike(tmp_path: Path, run: runs.Run) -> None:
    """The report's directory is enough to come to the same findings."""
    report = run.write(tmp_path)
    assert judge_again(report.directory) == report.findings


def test_a_saved_run_can_be_judged_by_other_bounds(tmp_path: Path) -> None:
    """A tighter bound can be tried on a run of last week."""
    report = runs.PASSED.write(tmp_path)
    assert report.verdict is Verdict.PASSED
    again = judge_again(report.directory, [bounds.recovers_within(0.1)])
    assert again.verdict is Verdict.FAILED


def test_without_the_twins_history_only_its_bound_is_unknown(tmp_path: Path) -> None:
    """A report without twin.jsonl is judged by all other bounds."""
    report = runs.PASSED.write(tmp_path, twin=None)
    again = judge_again(report.directory)
    unknown = [j.bound for j in again.judgements if j.verdict is Verdict.UNKNOWN]
    assert unknown == ["same_result_as_twin()"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "want a report's directory: FileNotFoundError"),
        ("{", "want a report's directory: JSONDecodeError"),
        ("{}", "want a report's directory: KeyError"),
        ('{"schema_version": 99}', "schema_version 99: want 1"),
        ('{"schema_version": 1, "expectation": {}}', "want a report's directory: InvalidScenario"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    """A directory that holds no readable report is an error of the harness, said plainly."""
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    with pytest.raises(HarnessError, match=words):
        judge_again(tmp_path)


def test_logs_are_copied_at_their_place(tmp_path: Path) -> None:
    """Each rank's log lies below logs/, as it lay below the run's directory."""
    logs = tmp_path / "nodes"
    (logs / "1").mkdir(parents=True)
    (logs / "1" / "rank-1.0.log").write_text("Traceback: planted\n")
    (logs / "store.log").write_text("listening\n")
    (logs / "1" / "rank-1.0.jsonl").write_text("{}\n")
    report = runs.FAILED.write(tmp_path / "reports", logs=logs)
    copied = sorted(p.relative_to(report.directory) for p in report.directory.rglob("*.log"))
    assert [str(path) for path in copied] == ["logs/1/rank-1.0.log", "logs/store.log"]
    assert (report.directory / copied[0]).read_text() == "Traceback: planted\n"
    assert report.notes == ()


def test_a_log_that_is_no_file_is_told_and_not_followed(tmp_path: Path) -> None:
    """The job owns its directory: a link out of it, or a pipe without a writer, is not copied."""
    logs, secret = tmp_path / "nodes", tmp_path / "secret"
    logs.mkdir()
    secret.write_text("not for the report")
    (logs / "link.log").symlink_to(secret)
    os.mkfifo(logs / "pipe.log")
    (logs / "dir.log").mkdir()
    report = runs.FAILED.write(tmp_path / "reports", logs=logs)
    assert list((report.directory / "logs").iterdir()) == []
    assert [note.partition(": not copied")[0] for note in report.notes] == [
        "log dir.log",
        "log link.log",
        "log pipe.log",
    ]


def test_of_a_huge_log_the_end_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end is where a rank says why it ended; what is left out is said."""
    monkeypatch.setattr(writing, "MAX_LOG_BYTES", 10)
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "rank.log").write_text("x" * 90 + "RuntimeErr")
    report = runs.FAILED.write(tmp_path / "reports", logs=tmp_path / "nodes")
    text = (report.directory / "logs" / "rank.log").read_text()
    assert text == "[chaoslab: the first 90 bytes are left out]\nRuntimeErr"


def test_a_report_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fills half-way leaves no directory, neither the report's nor its draft."""

    def full(_self: History, _path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(History, "save", full)
    with pytest.raises(HarnessError, match="No space left on device"):
        runs.FAILED.write(tmp_path / "reports")
    assert list((tmp_path / "reports").iterdir()) == []


def test_a_report_is_never_overwritten(tmp_path: Path) -> None:
    """A run id that is there already is refused, and the report that is there stays."""
    first = runs.FAILED.write(tmp_path)
    before = (first.directory / "report.json").read_bytes()
    with pytest.raises(HarnessError, match="already there"):
        runs.FAILED.write(tmp_path)
    assert (first.directory / "report.json").read_bytes() == before


def test_the_history_on_disk_is_the_one_that_was_judged(tmp_path: Path) -> None:
    """history.jsonl gives the same events back."""
    report = runs.FAILED.write(tmp_path)
    saved = History.load(report.directory / "history.jsonl")
    assert judge(saved, runs.FAILED.expected, runs.FAILED.bounds, runs.TWIN) == report.findings
