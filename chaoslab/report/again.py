"""Judges a saved run again: its history, by its own bounds or by others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaoslab import bounds as promises
from chaoslab.bounds import Bound, Findings, judge
from chaoslab.errors import ChaoslabError, HarnessError
from chaoslab.history import History
from chaoslab.measure import Expectation
from chaoslab.report.data import SCHEMA_VERSION


def judge_again(directory: Path, bounds: Sequence[Bound] | None = None) -> Findings:
    """Judge a report's saved history again, offline.

    bounds: other bounds than the scenario's (None: its own). A bound that needs the twin is
    UNKNOWN where the report holds no twin.jsonl. Raises: HarnessError when the directory holds
    no report that can be read.
    """
    path = directory / "report.json"
    try:
        data = _read(path)
        expectation = Expectation.from_data(data["expectation"])
        own = [promises.from_data(bound) for bound in data["scenario"]["data"]["bounds"]]
        history = History.load(directory / "history.jsonl")
        twin_path = directory / "twin.jsonl"
        twin = History.load(twin_path) if twin_path.exists() else None
    except HarnessError:
        raise
    except (OSError, ValueError, KeyError, TypeError, ChaoslabError) as problem:
        told = f"{type(problem).__name__}: {problem}"
        raise HarnessError(f"{directory}: want a report's directory: {told}") from problem
    return judge(history, expectation, own if bounds is None else bounds, twin)


def _read(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if data["schema_version"] != SCHEMA_VERSION:
        raise HarnessError(
            f"{path}: schema_version {data['schema_version']}: want {SCHEMA_VERSION}; "
            "use the chaoslab that wrote it"
        )
    return data
