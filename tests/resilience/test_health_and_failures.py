"""A node that is not fit is told apart from one that is; a lost peer from the user's own error."""

from __future__ import annotations

import signal

import pytest
import torch
import torch.distributed as dist
from loopback_job import Store

from chaoslab.resilience import failures, health
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.errors import GroupLost, StoreTimeout


def test_a_healthy_node_has_an_address_an_interface_and_a_store(client: StoreClient) -> None:
    """The healthy twin of the three tests below."""
    found = health.check(client, timeout_s=5)
    assert (found.ok, found.address, found.interface) == (True, "127.0.0.1", "lo")
    assert found.store_s is not None


def test_a_store_that_does_not_answer_is_no_health(store: Store, client: StoreClient) -> None:
    """The reason says that the store, not the interface, is at fault; it ends in time."""
    store.process.send_signal(signal.SIGSTOP)
    found = health.check(client, timeout_s=0.3)
    assert (found.ok, found.interface) == (False, "lo")
    assert "no answer within 0.3 s" in found.reason


def test_silent_peers_beside_a_silent_store_point_to_this_node(
    store: Store, client: StoreClient
) -> None:
    """Peers alone, or the store alone, do not: that is somebody else's fault."""
    found = health.check(client, timeout_s=5, silent_ranks=[1, 3])
    assert (found.ok, found.silent_ranks, found.reason) == (True, (1, 3), "")
    store.process.send_signal(signal.SIGSTOP)
    found = health.check(client, timeout_s=0.3, silent_ranks=[1, 3])
    assert "ranks [1, 3] were silent, too: is it this node's link?" in found.reason
    assert "link" not in health.check(client, timeout_s=0.3).reason


def test_a_node_without_a_route_is_not_fit() -> None:
    """An address family that has no route at all: no packet is needed to find out."""
    found = health.check(StoreClient("255.255.255.255", 1), timeout_s=0.3)
    assert not found.ok
    assert "no route" in found.reason


def test_an_interface_that_is_down_is_not_fit(
    client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may still know a route to the store; the reason names the interface."""
    monkeypatch.setattr(health, "_holder", lambda _: ("eth0", False))
    found = health.check(client, timeout_s=5)
    assert not found.ok
    assert "interface eth0, which has the address 127.0.0.1, is down" in found.reason


def test_an_address_of_no_interface_is_found_out() -> None:
    """192.0.2.1 is kept for documentation: no interface has it."""
    assert health.interface_of("192.0.2.1") is None
    assert health.interface_of("127.0.0.1") == "lo"


def test_an_address_that_no_interface_names_is_no_fault(
    client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second address of an interface, or IPv6: the store is asked all the same."""
    monkeypatch.setattr(health, "address_towards", lambda _: "2001:db8::1")
    found = health.check(client, timeout_s=5)
    assert (found.ok, found.interface, found.address) == (True, None, "2001:db8::1")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[x/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:1: reset"),
        RuntimeError("[x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 5000ms for"),
        RuntimeError("Connection closed by peer [127.0.0.1]:5"),
        RuntimeError("Socket closed [fe80::1]:5"),
        RuntimeError("Gloo connectFullMesh failed with timeout"),
        dist.DistNetworkError("x"),
        StoreTimeout("x"),
        GroupLost("x"),
    ],
)
def test_a_lost_peer_is_a_failure_to_recover_from(error: Exception) -> None:
    """Whatever torch, gloo or the store raise for it."""
    failure = failures.of(error, None)
    assert failure is not None
    assert failure.error_type == type(error).__name__
    assert failure.is_news


@pytest.mark.parametrize(
    "error",
    [
        ValueError("Read error [127.0.0.1]:1: reset"),
        RuntimeError("Read error in shard 7 of the data set"),
        RuntimeError("Connection closed by peer while fetching s3://data/7"),
        RuntimeError("shape '[2]' is invalid for input of size 3"),
        FileNotFoundError("data.bin"),
        KeyError("loss"),
        MemoryError(),
        AssertionError("loss is NaN"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
)
def test_the_users_own_error_is_not(error: Exception) -> None:
    """It is raised, even when its words or its type resemble gloo's."""
    assert failures.of(error, None) is None


class Told:
    """What `failures.of` asks of a group."""

    def __init__(self, *silent: int, lost: str | None = None) -> None:
        self.silent_ranks, self.lost, self.blamed_rank = silent, lost, None

    def blame(self, _: str) -> None:
        """Know no address."""


@pytest.mark.parametrize(
    ("group", "blamed"),
    [(Told(2), 2), (Told(1, 2), None), (Told(), None), (Told(2, lost="moved on"), None)],
)
def test_a_lone_silent_rank_is_blamed(group: Told, blamed: int | None) -> None:
    """Not one of several, nor by a rank that was only told."""
    failure = failures.of(GroupLost("x"), group)  # type: ignore[arg-type]
    assert failure is not None
    assert (failure.blamed_rank, failure.silent_ranks) == (blamed, group.silent_ranks)
