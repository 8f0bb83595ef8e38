"""Triggers: the moment that an injection names, told from a feed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from chaoslab import Injection, faults, rank, while_recovering
from chaoslab.feed import Feed
from chaoslab.history import Event
from chaoslab.inject.triggers import reached

SECOND = Injection(fault=faults.Kill(), on=rank(1), at=while_recovering())


def fed(folder: Path, *told: tuple[float, str, dict[str, Any]]) -> Feed:
    feed = Feed(folder / "history.jsonl")
    for t_s, kind, fields in told:
        feed.add(Event(t_s=t_s, kind=kind, fields=MappingProxyType(fields)))
    feed.close()
    return feed


FAULT = (
    (1.004, "injected", {"injection": 0, "begun_t_s": 1.0}),
    (1.006, "effective", {"injection": 0}),
)


def test_a_failure_that_is_seen_before_the_proof_starts_the_second_fault(tmp_path: Path) -> None:
    """A peer may notice a reset before the harness has seen that it bit."""
    feed = fed(tmp_path, (1.003, "failure_seen", {}), *FAULT)
    event = asyncio.run(asyncio.wait_for(reached(SECOND, feed), 5))
    assert (event.kind, event.t_s) == ("failure_seen", 1.003)


def test_a_failure_from_before_the_fault_does_not(tmp_path: Path) -> None:
    """It is no recovery from this fault."""
    feed = fed(tmp_path, (0.9, "failure_seen", {}), *FAULT)
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(reached(SECOND, feed), 0.2))
