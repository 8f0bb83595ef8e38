"""Repeats: of a scenario that ran more than once, the distribution of its figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Final

from chaoslab.measure import Measurement, number
from chaoslab.report.text import plain
from chaoslab.report.values import Report

_SHOWN: Final = (
    ("detect_all_s", "noticed"),
    ("recovery_s", "recovered"),
    ("circuit_s", "given up"),
    ("lost_steps", "lost"),
)


def distributions(reports: Sequence[Report]) -> list[str]:
    """Give a line for each figure of each fault of the scenarios that ran more than once."""
    by_name: dict[str, list[Report]] = {}
    for report in reports:
        by_name.setdefault(report.name, []).append(report)
    lines = []
    for name, runs in by_name.items():
        if len(runs) > 1:
            lines += [f"{plain(name)}, {len(runs)} runs:", *_lines(runs)]
    return lines


def _lines(runs: Sequence[Report]) -> Iterable[str]:
    most = max(len(run.findings.expectation.injections) for run in runs)
    for index in range(most):
        for name, label in _SHOWN:
            figures = [
                run.measurement(name, index)
                for run in runs
                if index < len(run.findings.expectation.injections)
            ]
            told = _spread(figures)
            if told:
                place = f" from fault {index}" if most > 1 else ""
                yield f"  {label}{place}: {told}"


def _spread(figures: Sequence[Measurement]) -> str:
    """Give least, median and most; those that never came count as the longest of all."""
    values = sorted(figure.value for figure in figures if figure.value is not None)
    if not values:
        return ""
    marks = (values[0], statistics.median_high(values), values[-1])
    least, median, most = (number(value, figures[0].unit) for value in marks)
    never = sum(math.isinf(value) for value in values)
    absent = len(figures) - len(values)
    told = f"least {least}, median {median}, most {most}"
    told += f"; {never} never" if never else ""
    return told + (f"; {absent} not measured" if absent else "")
