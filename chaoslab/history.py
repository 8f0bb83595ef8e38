"""History: the one append-only record of a run, from which everything is judged.

An event is one JSON object on one line. Ranks write theirs through `chaoslab.probe`, each
to its own file; the harness adds its own (rank None). Times are CLOCK_MONOTONIC seconds of
one machine, so they compare across ranks.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from chaoslab.errors import HarnessError

RANK_KINDS: Final = frozenset(
    {
        "rank_started", "group_ready", "step", "save_begun", "save_committed", "failure_seen",
        "torn_down", "backoff", "health_checked", "restored", "circuit_opened", "alarm",
        "snapshot_written", "rank_exited", "held", "hold_expired", "result", "events_lost",
        "save_failed", "exit_alone", "store_load", "attempt", "gathered",
    }
)  # fmt: skip
"""Kinds that a rank writes. result: digests of the final state; held: stopped at a hold point.

gathered: all ranks have met at the store, and connect now. attempt: one try to connect again after
a failure; what ("store" or "peers"), ok (if it is known).
"""

HARNESS_KINDS: Final = frozenset(
    {
        "nodes_ready", "injected", "effective", "not_effective", "healed",
        "not_healed", "lease_expired", "flapped", "process_started", "process_exited", "pristine",
        "not_pristine", "leak", "malformed", "gave_up", "run_ended", "agent_failed",
    }
)  # fmt: skip
"""Kinds that the harness writes. process_exited: pid, status (exit code, or minus the signal)."""

_WITH_STEP: Final = frozenset({"step", "restored", "save_begun", "save_committed"})
_MAX_T_S: Final = 1e10

MAX_LINE_BYTES: Final = 64 * 1024
"""Longest event line that is read whole; a longer one becomes a `malformed` event."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened.

    t_s: CLOCK_MONOTONIC seconds. kind: see RANK_KINDS and HARNESS_KINDS. rank, node: 0-based,
    None for the harness. incarnation: 0 for a rank's first process, one more per restart.
    fields: what else the kind carries.
    """

    t_s: float
    kind: str
    rank: int | None = None
    node: int | None = None
    incarnation: int | None = None
    fields: Mapping[str, Any] = dataclasses.field(default_factory=lambda: MappingProxyType({}))

    def __getitem__(self, name: str) -> Any:
        """Give one field. Raises: KeyError."""
        return self.fields[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Give one field, or the default."""
        return self.fields.get(name, default)


def event_to_json(event: Event) -> str:
    """Give the event as one JSON line, without its newline."""
    head = {"t_s": round(event.t_s, 6), "kind": event.kind}
    for name in ("rank", "node", "incarnation"):
        if getattr(event, name) is not None:
            head[name] = getattr(event, name)
    return json.dumps(head | dict(event.fields), separators=(",", ":"), ensure_ascii=True)


def event_from_json(line: str) -> Event:
    """Read one line. Raises: ValueError for a line that is no event."""
    try:
        value = json.loads(line)
    except RecursionError as problem:
        raise ValueError("event line: nested too deeply") from problem
    if not isinstance(value, dict):
        raise ValueError(  # noqa: TRY004  a line, not an argument
            f"event line: want a JSON object, got {type(value).__name__}"
        )
    kind, t_s = value.pop("kind", None), value.pop("t_s", None)
    if not isinstance(kind, str) or isinstance(t_s, bool) or not isinstance(t_s, int | float):
        raise ValueError(  # noqa: TRY004
            "event line: want t_s (a number) and kind (a string)"
        )
    if not -_MAX_T_S < t_s < _MAX_T_S:
        raise ValueError(f"event line: t_s={t_s!r}: want seconds of CLOCK_MONOTONIC")
    if kind in _WITH_STEP and not isinstance(value.get("step"), int):
        raise ValueError(f"event line: {kind}: want step (a whole number)")
    places = {name: value.pop(name, None) for name in ("rank", "node", "incarnation")}
    for name, place in places.items():
        if place is not None and (isinstance(place, bool) or not isinstance(place, int)):
            raise ValueError(f"event line: {name}={place!r}: want a whole number")
    return Event(t_s=float(t_s), kind=kind, fields=MappingProxyType(value), **places)


class History:
    """The events of a run, in order of time; only ever appended to."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._events: list[Event] = sorted(events, key=lambda event: event.t_s)

    def append(self, event: Event) -> None:
        """Add an event; one that arrives late is put where its time belongs."""
        index = len(self._events)
        while index > 0 and self._events[index - 1].t_s > event.t_s:
            index -= 1
        self._events.insert(index, event)

    def __iter__(self) -> Iterator[Event]:
        """Give the events in order of time."""
        return iter(self._events)

    def __len__(self) -> int:
        """Count the events."""
        return len(self._events)

    def of(self, *kinds: str, rank: int | None = None) -> list[Event]:
        """Give the events of these kinds, of one rank where it is named."""
        return [e for e in self._events if e.kind in kinds and (rank is None or e.rank == rank)]

    def save(self, path: Path) -> None:
        """Write the history as JSON lines."""
        lines = "".join(event_to_json(event) + "\n" for event in self._events)
        path.write_text(lines, encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> History:
        """Read a saved history. Raises: HarnessError naming the line that is no event."""
        events = []
        with path.open(encoding="utf-8") as lines:
            for nth, line in enumerate(lines, start=1):
                try:
                    events.append(event_from_json(line))
                except ValueError as problem:
                    raise HarnessError(f"{path}:{nth}: {problem}") from problem
        return cls(events)
