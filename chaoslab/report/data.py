"""A report as JSON data; report.schema.json says what it holds."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from chaoslab.bounds import Bound
from chaoslab.history import Event, History
from chaoslab.measure import Expectation, Measurement, attempts_seen
from chaoslab.report.values import Report
from chaoslab.scenario import Scenario
from chaoslab.schedule import describe

SCHEMA_VERSION: Final = 1
"""Grows when a field of report.json changes its meaning or goes."""

_STAGES: Final = (
    "injected",
    "effective",
    "not_effective",
    "healed",
    "not_healed",
    "lease_expired",
    "flapped",
)


def report_data(report: Report, history: History, written_at: str) -> dict[str, Any]:
    """Give report.json's content. written_at: wall-clock time, a label only."""
    findings = report.findings
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": report.run_id,
        "name": report.name,
        "verdict": str(report.verdict),
        "doubts": list(findings.doubts),
        "judgements": [_fields(judgement) for judgement in findings.judgements],
        "measurements": [measurement_data(figure) for figure in findings.measurements],
        "injections": [
            _injection(one, history, findings.expectation)
            for one in findings.expectation.injections
        ],
        "scenario": {"code": scenario_code(report.scenario), "data": as_data(report.scenario)},
        "expectation": findings.expectation.to_data(),
        "seed": report.seed,
        "versions": dict(report.versions),
        "replay": report.replay,
        "twin": {"source": report.twin_source},
        "durations": {"wall_s": round(report.wall_s, 3), "run_s": round(run_s(history), 3)},
        "written_at": written_at,
        "endings": list(report.endings),
        "notes": list(report.notes),
    }


def as_data(value: Any) -> Any:
    """Give any value of a scenario or a finding as JSON data; infinity becomes "never"."""
    if isinstance(value, Bound):
        return value.to_data()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__} | _fields(value)
    if isinstance(value, Mapping):
        return {str(key): as_data(item) for key, item in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return [as_data(item) for item in items]
    return _scalar(value)


def _scalar(value: Any) -> str | float | None:
    if isinstance(value, enum.Enum | Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "never" if value == math.inf else str(value)
    known = value is None or isinstance(value, bool | int | float | str)
    return value if known else repr(value)


def _fields(value: Any) -> dict[str, Any]:
    return {f.name: as_data(getattr(value, f.name)) for f in dataclasses.fields(value)}


def measurement_data(figure: Measurement) -> dict[str, Any]:
    """Give a measurement as JSON data; its figures by rank become an object."""
    data = _fields(figure)
    return data | {"by_rank": {str(rank): value for rank, value in data["by_rank"]}}


def _injection(injection: Any, history: History, expectation: Expectation) -> dict[str, Any]:
    begin_s = start_s(history)
    bins = attempts_seen(history, expectation, injection.index)
    events = [e for e in history if e.get("injection") == injection.index and e.kind in _STAGES]
    return {
        "index": injection.index,
        "fault": injection.code or injection.fault,
        "on": injection.on,
        "at": injection.at,
        "ranks": list(injection.ranks),
        "events": [_event(event, begin_s) for event in events],
        "attempts_per_100_ms": [_fields(one) for one in bins],
    }


def _event(event: Event, begin_s: float) -> dict[str, Any]:
    fields = {key: value for key, value in event.fields.items() if key != "injection"}
    return {"kind": event.kind, "at_s": round(event.t_s - begin_s, 6), "fields": as_data(fields)}


def start_s(history: History) -> float:
    """Give the time of a run's first event (0 without any)."""
    return next((event.t_s for event in history), 0.0)


def run_s(history: History) -> float:
    """Give the seconds from a run's first event to its last one."""
    return max((event.t_s for event in history), default=0.0) - start_s(history)


def scenario_code(scenario: Scenario) -> str:
    """Give a scenario as code, one injection and one bound a line."""
    name = [f"    name={scenario.name!r},"] if scenario.name else []
    schedule = [
        f"        Injection(fault={describe(i.fault)}, on={describe(i.on)}, at={describe(i.at)}),"
        for i in scenario.schedule
    ]
    bounds = [f"        bounds.{bound.code}," for bound in scenario.bounds]
    lines = [
        "Scenario(",
        *name,
        f"    job={describe(scenario.job)},",
        *(["    schedule=[", *schedule, "    ],"] if schedule else ["    schedule=[],"]),
        "    bounds=[",
        *bounds,
        "    ],",
        ")",
    ]
    return "\n".join(lines)
