"""Engines for these tests: the one that is there, or ones of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from own_engine import OwnEngine, answers, connected, started

from chaoslab.cluster.containers.engine import Engine


@pytest.fixture(scope="session")
def engine_address() -> Iterator[str | None]:
    """Give where an engine answers (None: where one usually is); skip where none can be had."""
    if answers(None):
        yield os.environ.get("DOCKER_HOST")
        return
    with started() as own:
        yield own.address


@pytest.fixture
def engine(engine_address: str | None) -> Iterator[Engine]:
    """Give a connection to the engine of all tests."""
    with connected(engine_address) as found:
        yield found


@pytest.fixture
def own_engine() -> Iterator[OwnEngine]:
    """Start an engine for one test, which may break it."""
    with started() as own:
        yield own


@pytest.fixture
def fresh_engine(own_engine: OwnEngine) -> Iterator[Engine]:
    """Give a connection to the engine of this test alone."""
    with connected(own_engine.address) as found:
        yield found


@pytest.fixture
def full_engine() -> Iterator[Engine]:
    """Give a connection to an engine that has little space."""
    with started(disk="24m") as own, connected(own.address) as found:
        yield found
