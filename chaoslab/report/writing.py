"""Writes a report: whole, or not at all."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from chaoslab.bounds import Findings
from chaoslab.errors import HarnessError
from chaoslab.history import History
from chaoslab.report.data import report_data
from chaoslab.report.endings import endings
from chaoslab.report.summary import summary
from chaoslab.report.values import Report
from chaoslab.scenario import Scenario

MAX_LOG_BYTES: Final = 8 * 1024 * 1024
"""Of a longer log the end is kept: that is where a rank says why it ended."""


def write_report(
    reports: Path,
    *,
    run_id: str,
    name: str,
    scenario: Scenario,
    findings: Findings,
    history: History,
    logs: Path | None,
    seed: int,
    versions: Mapping[str, str],
    replay: str = "",
    twin_source: str = "none",
    twin: History | None = None,
    wall_s: float = 0.0,
) -> Report:
    """Write `<reports>/<run_id>/`: report.json, history.jsonl, summary.md and logs.

    logs: directory of which every *.log is copied, at its place (None: there are none). twin:
    its history is kept as well, so that the run can be judged again without it.

    The files are written to a hidden sibling directory that is renamed when it is whole.
    Raises: HarnessError when they cannot be written.
    """
    final, partial = reports / run_id, reports / f".{run_id}.partial"
    report = Report(
        run_id=run_id,
        name=name,
        directory=final,
        scenario=scenario,
        findings=findings,
        seed=seed,
        versions=dict(versions),
        replay=replay,
        twin_source=twin_source,
        wall_s=wall_s,
    )
    try:
        if final.exists():
            raise HarnessError(f"report {final}: already there; want a run id of its own")
        (partial / "logs").mkdir(parents=True)
        notes = _copy_logs(logs, partial / "logs") if logs is not None else []
        ends = endings(history, findings.expectation, partial / "logs")
        report = dataclasses.replace(report, notes=tuple(notes), endings=ends)
        _fill(partial, report, history, twin)
        partial.rename(final)
    except OSError as problem:
        raise HarnessError(f"report {final}: cannot be written: {problem}") from problem
    finally:
        if partial.exists():
            shutil.rmtree(partial, ignore_errors=True)
    return report


def keep_record(reports: Path, *, run_id: str, problem: str, history: Path, logs: Path) -> Path:
    """Keep what a run had recorded when the harness itself failed: no report, but evidence.

    Writes `<reports>/<run_id>/`: problem.txt, history.jsonl (as far as it goes) and logs. Returns
    that directory. Raises: HarnessError when it cannot be written.
    """
    final, partial = reports / run_id, reports / f".{run_id}.partial"
    try:
        (partial / "logs").mkdir(parents=True)
        notes = _copy_logs(logs, partial / "logs")
        if history.exists():
            shutil.copyfile(history, partial / "history.jsonl")
        text = "\n".join(["No verdict: the harness failed.", problem, *notes]) + "\n"
        (partial / "problem.txt").write_text(text, encoding="utf-8")
        partial.rename(final)
    except OSError as failed:
        raise HarnessError(f"record {final}: cannot be written: {failed}") from failed
    finally:
        if partial.exists():
            shutil.rmtree(partial, ignore_errors=True)
    return final


def _fill(directory: Path, report: Report, history: History, twin: History | None) -> None:
    written_at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    data = report_data(report, history, written_at)
    text = json.dumps(data, indent=2, allow_nan=False) + "\n"
    (directory / "report.json").write_text(text, encoding="utf-8")
    history.save(directory / "history.jsonl")
    if twin is not None:
        twin.save(directory / "twin.jsonl")
    (directory / "summary.md").write_text(summary(data), encoding="utf-8")


def _copy_logs(source: Path, target: Path) -> list[str]:
    """Copy the logs that are ordinary files. Returns what could not be copied, in words."""
    notes = []
    for path in sorted(source.rglob("*.log")):
        place = target / path.relative_to(source)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            _copy_end(path, place)
        except OSError as problem:
            notes.append(f"log {path.relative_to(source)}: not copied: {problem}")
    return notes


def _copy_end(source: Path, target: Path) -> None:
    """Copy a log's last MAX_LOG_BYTES. The job owns the source: a link or a pipe is refused."""
    fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as log:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("not an ordinary file")
        cut_bytes = max(0, found.st_size - MAX_LOG_BYTES)
        log.seek(cut_bytes)
        told = b"[chaoslab: the first %d bytes are left out]\n" % cut_bytes if cut_bytes else b""
        target.write_bytes(told + log.read(MAX_LOG_BYTES))
