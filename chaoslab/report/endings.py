"""How the ranks of a run ended, with the last words of those that failed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from chaoslab.history import History
from chaoslab.measure import Expectation
from chaoslab.measure.timeline import Ending, Timeline, build
from chaoslab.report.text import plain

_END_BYTES: Final = 4096
_MOST_CHARACTERS: Final = 160


def endings(history: History, expectation: Expectation, logs: Path | None) -> tuple[str, ...]:
    """Say how ranks ended, those that ended alike together; nothing when all finished.

    logs: the report's directory of logs, of which a failed rank's last line is quoted.
    """
    timeline = build(history, expectation)
    ends = [timeline.ending(rank) for rank in range(expectation.world_size)]
    if all(end.outcome == "finished" for end in ends):
        return ()
    by_text: dict[str, list[Ending]] = {}
    for end in ends:
        text = f"not known: lacks {end.missing}" if end.outcome == "unknown" else end.told
        by_text.setdefault(text, []).append(end)
    return tuple(_line(timeline, text, alike, logs) for text, alike in by_text.items())


def _line(timeline: Timeline, text: str, alike: list[Ending], logs: Path | None) -> str:
    ranks = ", ".join(str(end.rank) for end in alike)
    line = f"{'rank' if len(alike) == 1 else 'ranks'} {ranks}: {text}"
    first = alike[0]
    if first.outcome == "finished" or logs is None:
        return line
    if not timeline.by_rank.get(first.rank):
        return line
    return line + _last_words(logs, first.rank)


def _last_words(logs: Path, rank: int) -> str:
    """Quote the last line of a rank's newest log, and say where that is."""
    found = sorted(logs.glob(f"*/rank-{rank}.*.log"), key=lambda path: (len(path.name), path.name))
    if not found:
        return ""
    place = found[-1].relative_to(logs.parent)
    data = found[-1].read_bytes()[-_END_BYTES:].decode(errors="replace")
    lines = [line.strip() for line in data.splitlines() if line.strip()]
    said = f", which ends: {plain(lines[-1])[:_MOST_CHARACTERS]}" if lines else ", which is empty"
    return f"; see {place}{said}"
