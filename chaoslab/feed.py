"""The feed: a history that is still growing, and waits for what it will hold."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from chaoslab.errors import HarnessError
from chaoslab.history import Event, History, event_to_json


class Feed:
    """Collects the events of a run as they arrive. One per run, used on one event loop.

    path: file that each event is appended to at once, so that a run that is killed has left
    its record, and one that goes on can be watched.
    """

    def __init__(self, path: Path) -> None:
        self.history = History()
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._watchers: list[tuple[Callable[[Event], bool], asyncio.Future[Event]]] = []

    def add(self, event: Event) -> None:
        """Append an event and wake whoever waits for it."""
        self.history.append(event)
        self._file.write(event_to_json(event) + "\n")
        for matches, future in self._watchers:
            if not future.done() and matches(event):
                future.set_result(event)

    def close(self) -> None:
        """Close the file; twice is harmless."""
        self._file.close()

    def note(self, kind: str, *, t_s: float | None = None, **fields: Any) -> Event:
        """Append an event of the harness, stamped now unless `t_s` says otherwise.

        rank, node and incarnation among the fields become the event's own.
        """
        places = {name: fields.pop(name, None) for name in ("rank", "node", "incarnation")}
        frozen: Mapping[str, Any] = MappingProxyType(fields)
        stamp = time.monotonic() if t_s is None else t_s
        event = Event(t_s=stamp, kind=kind, fields=frozen, **places)
        self.add(event)
        return event

    async def first(
        self,
        matches: Callable[[Event], bool],
        *,
        limit_s: float | None = None,
        what: str = "an event",
    ) -> Event:
        """Wait for the first event that matches; one that is here already counts.

        Raises: HarnessError naming `what` when none came within limit_s (None: no limit).
        """
        for event in self.history:
            if matches(event):
                return event
        future: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        entry = (matches, future)
        self._watchers.append(entry)
        try:
            async with asyncio.timeout(limit_s):
                return await future
        except TimeoutError as problem:
            raise HarnessError(f"waited {limit_s} s for {what}: it never came") from problem
        finally:
            self._watchers.remove(entry)
