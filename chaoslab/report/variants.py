"""Variants: a table of one job built in several ways, under the same fault.

What was measured stands beside what the field reports, and the two are never mixed: a figure
that is not in a run's own report is not in its column, and a footnote says why.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import re
import shutil
import tempfile
import urllib.parse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from chaoslab.errors import HarnessError, InvalidScenario
from chaoslab.history import History
from chaoslab.measure import Measurement, number
from chaoslab.report.data import measurement_data
from chaoslab.report.figures import Data, figure_text
from chaoslab.report.text import code, escaped, markdown_table
from chaoslab.report.values import Report

_COLUMNS: Final = (
    ("noticed", "detect_all_s"),
    ("recovered", "recovery_s"),
    ("released", "circuit_s"),
)
_LEGEND: Final = (
    "noticed: from the effect, by the last surviving rank. recovered: every rank beyond the step "
    "of the fault, from the heal, or from the effect of a fault without one. released: from the "
    "effect until every surviving rank has left with the circuit-open status."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """One line of the table: one way to build the job, and the run that shows what it does.

    name: of the variant. report: of its run, as it lies on disk. field: what the field reports of
    such a job, in plain words, and source, where (empty: nothing is reported). injection: index
    of the fault whose figures are shown (None: the only one of the schedule). default_timeout_s:
    a timeout that the job relies on and that is longer than the run, for the arithmetic of what
    could not be waited for (None: none).
    """

    name: str
    report: Report
    field: str = ""
    source: str = ""
    injection: int | None = None
    default_timeout_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be shown. Raises: InvalidScenario."""
        if bool(self.field.strip()) != bool(self.source.strip()):
            raise InvalidScenario(
                f"Variant(name={self.name!r}, field={self.field!r}, source={self.source!r}): "
                "want both or neither: what is reported, and where"
            )
        injections = len(self.report.findings.expectation.injections)
        if self.injection is None and injections != 1:
            raise InvalidScenario(
                f"Variant(name={self.name!r}): the schedule has {injections} faults; "
                "want injection=, the index of the one to show"
            )
        if self.injection is not None and not 0 <= self.injection < injections:
            raise InvalidScenario(
                f"Variant(name={self.name!r}, injection={self.injection}): want an index of the "
                f"schedule, which has {injections} faults"
            )
        timeout_s = self.default_timeout_s
        if timeout_s is not None and not 0 < timeout_s < math.inf:
            raise InvalidScenario(
                f"Variant(name={self.name!r}, default_timeout_s={timeout_s}): "
                "want more than 0, in seconds"
            )


def write_variants(reports: Path, name: str, rows: Sequence[Variant]) -> Path:
    """Write `<reports>/<name>.md` and `<reports>/<name>.json`; both or neither. Gives the first.

    Raises: HarnessError when they are there already, cannot be written, or a run's history cannot
    be read; InvalidScenario for a name that is no file name, or no rows.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise InvalidScenario(f"write_variants(name={name!r}): want letters, digits, '-', '_', '.'")
    final = [reports / f"{name}.json", reports / f"{name}.md"]
    for path in final:
        if path.exists():
            raise HarnessError(f"table {path}: already there; want a name of its own")
    data = variants_data(name, rows)
    texts = [json.dumps(data, indent=2, allow_nan=False) + "\n", _page(data, reports)]
    try:
        reports.mkdir(parents=True, exist_ok=True)
        _write_all(reports, name, dict(zip(final, texts, strict=True)))
    except OSError as problem:
        raise HarnessError(f"table {reports / name}: cannot be written: {problem}") from problem
    return final[-1]


def variants_table(rows: Sequence[Variant]) -> str:
    """Give the table as Markdown, with its footnotes. Raises: InvalidScenario without rows."""
    return _table(variants_data("variants", rows)["variants"])


def variants_data(name: str, rows: Sequence[Variant]) -> dict[str, Any]:
    """Give the content of the JSON file. Raises: InvalidScenario without rows."""
    if not rows:
        raise InvalidScenario("a table of variants: want at least one row")
    return {
        "schema_version": 1,
        "name": name,
        "written_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "variants": [_row(row) for row in rows],
    }


def _row(row: Variant) -> dict[str, Any]:
    """Give one line as data: each figure is the report's own, with the note that it wants."""
    report, index = row.report, row.injection or 0
    injection = report.findings.expectation.injections[index]
    given_up_s = _given_up_s(report)
    figures = {}
    for column, name in _COLUMNS:
        figure = report.measurement(name, index)
        note = _note(row, figure, given_up_s)
        cut = given_up_s is not None and figure.never
        figures[column] = {**measurement_data(figure), "cut_short": cut, "note": note}
    return {
        "variant": row.name,
        "run_id": report.run_id,
        "directory": str(report.directory),
        "verdict": str(report.verdict),
        "injection": index,
        "fault": injection.code or injection.fault,
        "on": injection.on,
        **figures,
        "field": row.field,
        "source": row.source,
        "default_timeout_s": row.default_timeout_s,
    }


def _given_up_s(report: Report) -> float | None:
    """Give the limit at which the harness ended the run (None: the job ended by itself).

    Raises: HarnessError when the run's history cannot be read.
    """
    try:
        history = History.load(report.directory / "history.jsonl")
    except OSError as problem:
        raise HarnessError(f"{report.directory}: want a report's directory: {problem}") from problem
    for event in history.of("gave_up"):
        limit_s = event.get("limit_s")
        return float(limit_s) if isinstance(limit_s, int | float) else report.scenario.job.limit_s
    return None


def _note(row: Variant, figure: Measurement, given_up_s: float | None) -> str:
    """Say why there is no figure (empty: there is one)."""
    if figure.value is None:
        return f"missing: {figure.missing}"
    if not figure.never:
        return ""
    if given_up_s is None:
        return figure.how
    still = row.report.measurement("stall_s").value
    stood = f"; longest time without a step: {number(still, 's')}" if still is not None else ""
    note = f"not until the run's limit of {number(given_up_s, 's')}{stood}"
    if row.default_timeout_s is None or row.default_timeout_s <= given_up_s:
        return note
    timeout = number(row.default_timeout_s, "s")
    return f"{note}; the stated default timeout is {timeout}, so not before {timeout} by arithmetic"


# --- Markdown ---------------------------------------------------------------------------------


def _page(data: Data, reports: Path) -> str:
    rows = data["variants"]
    parts = [
        f"# {escaped(data['name'])}",
        _table(rows),
        _LEGEND,
        "## Runs\n\n" + _runs(rows, reports),
        f"Written {escaped(data['written_at'])}.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(rows: Iterable[Data]) -> str:
    notes: list[str] = []
    lines = [
        (
            escaped(row["variant"]),
            *(_figure(row[column], notes) for column, _ in _COLUMNS),
            f"{escaped(row['field'])} ({escaped(row['source'])})" if row["field"] else "-",
        )
        for row in rows
    ]
    measured = (f"{column} (measured)" for column, _ in _COLUMNS)
    table = markdown_table(("variant", *measured, "the field reports"), lines)
    told = [f"{nth}. {escaped(note)}" for nth, note in enumerate(notes, start=1)]
    return "\n\n".join([table, "\n".join(told)] if told else [table])


def _figure(figure: Data, notes: list[str]) -> str:
    """Give a cell. A run that was cut short cannot show that something never comes: `-`."""
    text = "-" if figure["cut_short"] else figure_text(figure)
    if not figure["note"]:
        return text
    if figure["note"] not in notes:
        notes.append(figure["note"])
    return f"{text} ({notes.index(figure['note']) + 1})"


def _runs(rows: Iterable[Data], reports: Path) -> str:
    lines = []
    for row in rows:
        directory = Path(row["directory"])
        run = code(row["run_id"])
        if directory.parent == reports:
            run = f"[{run}]({urllib.parse.quote(directory.name)}/summary.md)"
        fault = code(row["fault"]) + (f" on {code(row['on'])}" if row["on"] else "")
        lines.append((escaped(row["variant"]), row["verdict"], fault, run))
    return markdown_table(("variant", "verdict", "fault", "run"), lines)


def _write_all(reports: Path, name: str, texts: dict[Path, str]) -> None:
    """Write files next to their places, then rename them; a rename that fails undoes the others.

    Raises: OSError.
    """
    partial = Path(tempfile.mkdtemp(prefix=f".{name}.partial.", dir=reports))
    placed: list[Path] = []
    try:
        for path, text in texts.items():
            (partial / path.name).write_text(text, encoding="utf-8")
        for path in texts:
            (partial / path.name).rename(path)
            placed.append(path)
    except BaseException:
        for path in placed:
            path.unlink(missing_ok=True)
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
