"""Tries to connect again are told, spread over the ranks, and never told of a healthy client."""

from __future__ import annotations

import socket

import pytest
from loopback_job import Store

from chaoslab.resilience import client as module
from chaoslab.resilience.backoff import Backoff
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.errors import StoreTimeout


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the kinds of the events that a client emits."""
    kinds: list[str] = []
    monkeypatch.setattr(module.probe, "emit", lambda kind, **_: kinds.append(kind))
    return kinds


def test_a_healthy_client_tells_no_attempt(client: StoreClient, told: list[str]) -> None:
    """The twin: calls that are answered are no attempts to connect again."""
    for _ in range(3):
        client.ping()
    assert told == []


def test_the_first_try_of_a_client_in_doubt_is_told_once(
    client: StoreClient, told: list[str]
) -> None:
    """After an answer there is no doubt any more."""
    client.suspect()
    client.ping()
    client.ping()
    assert told == ["attempt"]


def test_every_try_after_a_failed_one_is_told(told: list[str]) -> None:
    """A port that refuses: of each call the first try is none, and the next ones are."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        quick = Backoff(base_s=0.01, cap_s=0.02)
        lost = StoreClient(*taken.getsockname(), timeout_s=0.3, backoff=quick)
        with pytest.raises(StoreTimeout):
            lost.ping()
        first = len(told)
        with pytest.raises(StoreTimeout):
            lost.again(timeout_s=0.3).ping()
    assert first >= 2
    assert len(told) >= first + 2


def peak(waits_s: list[float]) -> int:
    """Give the most waits that end in any 100 ms."""
    return max(sum(0 <= other - wait < 0.1 for other in waits_s) for wait in waits_s)


def test_sixteen_ranks_of_one_world_are_spread_and_those_of_one_seed_are_not() -> None:
    """The planted defect is one seed for all: the same draw, sixteen times."""
    for attempt in range(8):
        spread = [Backoff.for_world(16, rank=rank).wait_s(attempt) for rank in range(16)]
        alike = [Backoff.for_world(16, rank=0).wait_s(attempt) for _ in range(16)]
        assert peak(spread) <= 10
        assert peak(alike) == 16


@pytest.mark.parametrize("ranks", [*range(1, 33), 64, 256])
def test_ranks_of_any_world_come_ten_at_a_time_at_most(ranks: int) -> None:
    """Small worlds come back at once, large ones spread: no more at a time than the small."""
    for attempt in range(4):
        waits_s = [Backoff.for_world(ranks, rank=rank).wait_s(attempt) for rank in range(ranks)]
        assert peak(waits_s) <= 10
    assert max(Backoff.for_world(8, rank=rank).wait_s(0) for rank in range(8)) <= 0.05


def test_a_world_without_ranks_is_refused() -> None:
    """The message says what is wanted."""
    with pytest.raises(ValueError, match="want world_size >= 1"):
        Backoff.for_world(0, rank=0)


def test_another_client_of_the_same_store_is_like_the_first(store: Store) -> None:
    """Another client of the same store reaches it, with waits of its own rank."""
    first = StoreClient("127.0.0.1", int(store.address.rpartition(":")[2]), timeout_s=5)
    other = first.again(timeout_s=2)
    first.set("a", b"1")
    assert other.get("a") == b"1"
    assert other.backoff == first.backoff
    assert other.timeout_s == 2
    first.close()
    other.close()
