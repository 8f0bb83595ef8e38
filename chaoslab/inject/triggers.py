"""Triggers: waits for the moment that an injection names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from chaoslab import schedule
from chaoslab.errors import InvalidScenario
from chaoslab.feed import Feed
from chaoslab.history import Event


def holds_of(injections: tuple[schedule.Injection, ...]) -> dict[int, list[dict[str, Any]]]:
    """Give each rank's hold points (see chaoslab.probe), for the saves that are to be hit."""
    holds: dict[int, list[dict[str, Any]]] = {}
    for injection in injections:
        if isinstance(injection.at, schedule.DuringSave):
            rank = getattr(injection.on, "rank", 0)
            at = injection.at.at
            place = {"at_write": at} if isinstance(at, int) else {"at_ratio": at}
            holds.setdefault(rank, []).append({"point": "save", "nth": injection.at.nth} | place)
    return holds


async def reached(injection: schedule.Injection, feed: Feed) -> Event:
    """Wait until the trigger is reached. Returns the event that reached it."""
    match injection.at:
        case schedule.AtStep(step=step):
            return await feed.first(lambda e: e.kind == "step" and e.get("step", 0) >= step)
        case schedule.After(delay_s=delay_s):
            first = await feed.first(lambda e: e.kind == "step")
            await asyncio.sleep(delay_s)
            return first
        case schedule.DuringSave(nth=nth):
            rank = getattr(injection.on, "rank", 0)
            return await feed.first(
                lambda e: e.kind == "held" and e.rank == rank and e.get("nth") == nth
            )
        case schedule.OnEvent(kind=kind, nth=nth):
            return await feed.first(_nth_of(kind, nth))
        case schedule.WhenHealed(injection=other):
            return await feed.first(lambda e: e.kind == "healed" and e.get("injection") == other)
        case schedule.WhileRecovering():
            bitten = await feed.first(lambda e: e.kind == "effective")
            # It may be noticed before the harness has seen that it bit.
            since_s = min(
                float(e.get("begun_t_s", e.t_s))
                for e in [*feed.history.of("injected"), bitten]
                if e.get("injection") == bitten.get("injection")
            )
            return await feed.first(lambda e: e.kind == "failure_seen" and e.t_s >= since_s)
    raise InvalidScenario(f"{injection.at!r}: not a trigger")


def _nth_of(kind: str, nth: int) -> Callable[[Event], bool]:
    seen = 0

    def matches(event: Event) -> bool:
        nonlocal seen
        seen += event.kind == kind
        return event.kind == kind and seen >= nth

    return matches
