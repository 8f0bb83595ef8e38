"""How long a group waits: to connect, in a collective, for a message."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from checkpoints import in_a_child
from loopback_job import Store
from pairs import in_two_processes

from chaoslab.resilience import rendezvous
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.group import Group
from chaoslab.resilience.store import parse_address

TIMEOUT_S = 30.0
LIMIT_S = 2.5
"""Of the groups here."""


@pytest.mark.usefixtures("warmed")
def test_a_peer_that_never_connects_costs_the_timeout_once(store: Store) -> None:
    """Not five times, as gloo has it: the others would take this rank for an absent one.

    Of two ranks the one whose port is the greater calls the other: this one never does.
    """
    limit_s, port = 1.0, 0xFFFF

    def be() -> None:
        client = StoreClient(*parse_address(store.address), timeout_s=TIMEOUT_S)
        rendezvous.advance(client, 0, timeout_s=5)
        threading.Thread(target=answer_for_rank_1, args=(client.again(timeout_s=5), port)).start()
        began_s = time.monotonic()
        with pytest.raises(RuntimeError, match=r"[Tt]imed out|[Cc]onnect"):
            Group(client, number=1, rank=0, world_size=2, timeout_s=limit_s)
        assert 0.9 * limit_s < time.monotonic() - began_s < 2 * limit_s

    assert in_a_child(be) == (0, "")


def answer_for_rank_1(client: StoreClient, port: int) -> None:
    """Tell rank 0 where rank 1 would be: on another port of the same address.

    The value is the host's name and a sockaddr, each after its length. Source: Rank::bytes of
    gloo's tcp/context.cc.
    """
    mine, its = (f"gloo/1/0//cpu//0/{rank}" for rank in (0, 1))
    client.wait([mine])
    value = client.get(mine)
    assert value is not None
    at = 8 + int.from_bytes(value[:8], sys.byteorder) + 8 + 2  # after sin_family
    client.set(its, value[:at] + port.to_bytes(2, "big") + value[at + 2 :])


def rank_0_waits(
    store: Store, wait: Callable[[], object], *, s: tuple[float, float], late_s: float = 0.0
) -> None:
    """Let rank 0 wait for rank 1, which connects and does nothing: it times out within these s."""

    def be(rank: int) -> None:
        dist.set_debug_level_from_env()
        client = StoreClient(*parse_address(store.address), timeout_s=TIMEOUT_S)
        if rank == 0:
            rendezvous.advance(client, 0, timeout_s=5)
        else:
            time.sleep(late_s)
        client.wait([rendezvous.GENERATION_KEY])
        group = Group(client, number=1, rank=rank, world_size=2, timeout_s=LIMIT_S)
        if rank == 0:
            began_s = time.monotonic()
            with pytest.raises(RuntimeError, match=r"[Tt]imed out|failed to pass monitoredBarrier"):
                wait()
            assert s[0] < time.monotonic() - began_s < s[1]
            client.set("noticed", b"1")
        else:
            client.wait(["noticed"])
        assert group.close(deadline_s=5)

    in_two_processes(be)


def reduce() -> None:
    dist.all_reduce(torch.ones(4))


def receive(limit_s: float | None) -> None:
    work = dist.irecv(torch.ones(4), 1)
    assert work is not None
    work.wait(*(() if limit_s is None else (timedelta(seconds=limit_s),)))


@pytest.mark.usefixtures("warmed")
def test_a_collective_and_a_late_peer_have_the_whole_timeout(store: Store) -> None:
    """The limit of one of gloo's tries is a fifth of it, and is nobody's but the connection's."""
    rank_0_waits(store, reduce, s=(LIMIT_S * 0.9, LIMIT_S * 1.5), late_s=LIMIT_S * 0.6)


@pytest.mark.usefixtures("warmed")
@pytest.mark.parametrize(("own_limit_s", "waits_s"), [(None, LIMIT_S / 5), (LIMIT_S, LIMIT_S)])
def test_a_receive_waits_a_fifth_unless_it_has_its_own_limit(
    store: Store, own_limit_s: float | None, waits_s: float
) -> None:
    """As documented: gloo copies the limit for point-to-point messages when it connects."""
    rank_0_waits(store, lambda: receive(own_limit_s), s=(waits_s * 0.9, waits_s + 0.7))


@pytest.mark.usefixtures("warmed")
def test_torchs_wrapper_for_debugging_has_the_whole_timeout(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its limit cannot be changed later, so it is formed with it."""
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    rank_0_waits(store, reduce, s=(LIMIT_S * 0.9, LIMIT_S * 2))
