"""Storm: the section of a summary that shows attempts to connect, per 100 ms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final

from chaoslab.measure import WINDOW_S
from chaoslab.report.figures import Data, figure_text
from chaoslab.report.text import block, escaped

MAX_LINES: Final = 40
"""Lines of a plot, its head among them."""

BAR_WIDTH: Final = 60
"""Columns of the longest bar: a line with its labels fits a terminal of 80 columns."""

_BOUND: Final = "spreads_retries"
_Bins = Sequence[tuple[int, int]]  # place on the axis, attempts


def storm_section(fault: Data, data: Data) -> str:
    """Give the section of one fault: peak, limit, plot; empty where nobody tried to connect."""
    bins = [
        (round(one["start_s"] / WINDOW_S), one["count"])
        for one in fault.get("attempts_per_100_ms", ())
    ]
    if not bins:
        return ""
    limit = _limit(fault["index"], data)
    lines, per_line = plot(bins, limit)
    each = "A line is 100 ms"
    if per_line > 1:
        each = f"A line is {per_line * WINDOW_S:g} s and shows the busiest 100 ms in it"
    note = f"{each}, counted from the effect; the peak may lie across two of them."
    parts = ["### Retries per 100 ms", _peak(fault["index"], data, limit), block("\n".join(lines))]
    return "\n\n".join([*parts, note])


def plot(bins: _Bins, limit: float | None = None) -> tuple[list[str], int]:
    """Draw (place, count) as bars, at most MAX_LINES lines; give also how many places a line is.

    Places without attempts are folded. Where the lines do not suffice, several places share one,
    which shows the busiest of them.
    """
    for per_line in (factor * 10**power for power in itertools.count() for factor in (1, 2, 5)):
        shared = _shared(bins, per_line)
        lines = ["   after  attempts of all ranks", *_lines(shared, per_line, limit)]
        if len(lines) <= MAX_LINES:
            return lines, per_line
    raise AssertionError("unreachable: in the end one line holds all")


def _shared(bins: _Bins, per_line: int) -> _Bins:
    most: dict[int, int] = {}
    for place, count in bins:
        most[place // per_line] = max(count, most.get(place // per_line, 0))
    return sorted(most.items())


def _lines(bins: _Bins, per_line: int, limit: float | None) -> Iterator[str]:
    scale = max(1.0, max(count for _, count in bins) / BAR_WIDTH)  # attempts a column
    expected = 0
    for place, count in bins:
        if place > expected:
            yield f"     ...  none for {(place - expected) * per_line * WINDOW_S:.1f} s"
        over = f", over {limit:g}" if limit is not None and count > limit else ""
        bar = "#" * math.ceil(count / scale)
        yield f"{place * per_line * WINDOW_S:>6.1f} s  {bar} {count}{over}"
        expected = place + 1


def _peak(index: int, data: Data, limit: float | None) -> str:
    bound = "" if limit is None else f", limit {limit:g}"
    for figure in data["measurements"]:
        if figure["name"] == "retry_peak" and figure["injection"] == index:
            if figure["value"] is None:
                lack = escaped(figure["missing"])
                return f"Peak not known{bound}. Missing: {lack}. What is on record:"
            return f"Peak {figure_text(figure)}{bound}: {escaped(figure['how'])}."
    return f"Peak not measured{bound}."


def _limit(index: int, data: Data) -> float | None:
    """Give the tightest limit that was set for a fault."""
    limits = [
        one["limit"]
        for one in data["judgements"]
        if one["bound"].startswith(f"{_BOUND}(") and one["injection"] in (None, index)
    ]
    return min((limit for limit in limits if limit is not None), default=None)
