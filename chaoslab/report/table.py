"""What is printed at the end of pytest: a line a fault, then what went wrong and how to see it."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Final

from chaoslab.bounds import Verdict
from chaoslab.measure import Measurement
from chaoslab.report.repeats import distributions
from chaoslab.report.text import plain
from chaoslab.report.values import Report

WIDTH: Final = 100
"""Columns of the table: it fits the terminals and CI logs that people read it in."""

_COLUMNS: Final = (
    ("verdict", ""),
    ("scenario", ""),
    ("fault", ""),
    ("noticed", ""),
    ("torn", "down"),
    ("rendez-", "vous"),
    ("restored", ""),
    ("recovered", "/limit"),
    ("lost", "steps"),
    ("wall", ""),
)
_LEFT: Final = 3  # columns that are aligned to the left: words, not figures
_PHASES: Final = ("detect_all_s", "teardown_s", "rendezvous_s", "restore_s")
_LEGEND: Final = (
    "Times in seconds. noticed: by the last rank; recovered: from the heal, or from the effect "
    "of a fault without one; open: the job gave up in order. '-': not seen in this run."
)


def terminal_table(reports: Sequence[Report]) -> str:
    """Give the table of all runs, and for each that did not pass why, and how to run it again."""
    if not reports:
        return ""
    rows = [row for report in reports for row in _rows(report)]
    parts = [_aligned(rows), textwrap.fill(_LEGEND, WIDTH)]
    parts += ["\n".join(lines)] if (lines := distributions(reports)) else []
    parts += [explain(report) for report in reports if report.verdict is not Verdict.PASSED]
    parts.append("\n".join(f"report: {plain(report.directory)}/summary.md" for report in reports))
    return "\n\n".join([*parts, _count(reports)])


def explain(report: Report) -> str:
    """Say of one run, in plain words, what broke, what is missing, and how to see it again."""
    lines = [f"{report.verdict}: {plain(report.name)}"]
    for verdict in (Verdict.FAILED, Verdict.UNKNOWN):
        lines += _judgement_lines(report, verdict)
    for doubt in report.findings.doubts:
        lines += _wrapped(f"  {'in doubt':<9}", plain(doubt))
    if report.verdict is Verdict.UNKNOWN and any(
        one.verdict is Verdict.FAILED for one in report.findings.judgements
    ):
        told = "a bound is broken, but the fault is not proven to have bitten: no evidence"
        lines += _wrapped(f"  {'note':<9}", told)
    for end in report.endings:
        lines += _wrapped(f"  {'ended':<9}", plain(end))
    passed = sum(one.verdict is Verdict.PASSED for one in report.findings.judgements)
    lines.append(f"  {'PASSED':<9}{passed} of {len(report.findings.judgements)} bounds")
    lines.append(f"  {'report':<9}{plain(report.directory)}/summary.md")
    if report.replay:
        lines.append(f"  {'replay':<9}{plain(report.replay)}")
    return "\n".join(lines)


def _judgement_lines(report: Report, verdict: Verdict) -> list[str]:
    """Say it of all bounds of one verdict; those with one reason share a line."""
    several = len(report.findings.expectation.injections) > 1
    bounds_by_reason: dict[tuple[str, str], list[str]] = {}
    for one in report.findings.judgements:
        if one.verdict is verdict:
            place = f" [fault {one.injection}]" if several and one.injection is not None else ""
            bounds_by_reason.setdefault((place, plain(one.message)), []).append(one.bound)
    lines = []
    for (place, message), bounds in bounds_by_reason.items():
        lines += _wrapped(f"  {verdict:<9}", f"{', '.join(bounds)}{place}: {message}")
    return lines


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * (len(head) + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _rows(report: Report) -> list[tuple[str, ...]]:
    injections = report.findings.expectation.injections
    ends = (f"{report.wall_s:.1f}",)
    if not injections:
        none = ("-",) * (len(_COLUMNS) - 4)
        return [(str(report.verdict), plain(report.name), "none", *none, *ends)]
    rows = []
    for nth, injection in enumerate(injections):
        first = nth == 0
        index = injection.index
        rows.append(
            (
                str(report.verdict) if first else "",
                plain(report.name) if first else "",
                injection.fault,
                *(_seconds(report.measurement(name, index)) for name in _PHASES),
                _recovered(report, index),
                _number(report.measurement("lost_steps", index)),
                *(ends if first else ("",)),
            )
        )
    return rows


def _recovered(report: Report, injection: int) -> str:
    opens = _limit(report, "circuit_opens_within", injection)
    recovery = report.measurement("recovery_s", injection)
    if opens and (recovery.value is None or recovery.never):
        return f"open {_seconds(report.measurement('circuit_s', injection))}{opens}"
    return _seconds(recovery) + _limit(report, "recovers_within", injection)


def _limit(report: Report, name: str, injection: int) -> str:
    for bound in report.scenario.bounds:
        if bound.name == name and bound.injection in (None, injection):
            return f"/{bound.limit:g}"
    return ""


def _seconds(figure: Measurement) -> str:
    if figure.value is None:
        return "-"
    return "never" if figure.never else f"{figure.value:.2f}"


def _number(figure: Measurement) -> str:
    return "-" if figure.value is None else f"{figure.value:g}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    heads = [tuple(column[nth] for column in _COLUMNS) for nth in (0, 1)]
    widths = [max(len(row[nth]) for row in (*heads, *rows)) for nth in range(len(_COLUMNS))]
    widths[1] = max(len("scenario"), min(widths[1], WIDTH - _others(widths)))
    lines = [_line(row, widths) for row in (*heads, *rows)]
    lines.insert(len(heads), "-" * min(WIDTH, sum(widths) + len(widths) - 1))
    return "\n".join(line.rstrip() for line in lines)


def _others(widths: Sequence[int]) -> int:
    return sum(widths) - widths[1] + len(widths) - 1


def _line(row: tuple[str, ...], widths: Sequence[int]) -> str:
    cells = []
    for nth, (cell, width) in enumerate(zip(row, widths, strict=True)):
        shown = cell if len(cell) <= width else cell[: width - 2] + ".."
        cells.append(shown.ljust(width) if nth < _LEFT else shown.rjust(width))
    return " ".join(cells)


def _count(reports: Sequence[Report]) -> str:
    counts = Counter(report.verdict for report in reports)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
    plural = "run" if len(reports) == 1 else "runs"
    return f"{len(reports)} {plural}: {told}"
