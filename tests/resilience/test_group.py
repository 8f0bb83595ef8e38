"""The group of one generation: how a rank in it is woken."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
from checkpoints import in_a_child
from loopback_job import Store
from pairs import in_two_processes, until

from chaoslab.resilience import group as module, rendezvous
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.errors import StoreError
from chaoslab.resilience.group import Group
from chaoslab.resilience.store import parse_address

TIMEOUT_S = 30.0


def fail_to_connect(client: StoreClient) -> None:
    """Try to form generation 1, whose other rank does not come; it moves on meanwhile."""
    mover = threading.Timer(
        0.2, rendezvous.advance, (client.again(timeout_s=5), 1), {"timeout_s": 5}
    )
    mover.start()
    with pytest.raises((StoreError, RuntimeError)):
        Group(client, number=1, rank=0, world_size=2, timeout_s=TIMEOUT_S)


@pytest.mark.usefixtures("warmed")
def test_a_rank_that_failed_to_connect_connects_to_a_fresh_one(store: Store) -> None:
    """Torch counts a process's tries in the keys: the two must look under the same ones."""

    def be(rank: int) -> None:
        client = StoreClient(*parse_address(store.address), timeout_s=TIMEOUT_S)
        if rank == 0:
            rendezvous.advance(client, 0, timeout_s=5)
            fail_to_connect(client)
        while client.get(rendezvous.GENERATION_KEY) != b"2":
            time.sleep(0.01)
        group = Group(client, number=2, rank=rank, world_size=2, timeout_s=5)
        dist.barrier()
        client.set(f"done/{rank}", b"1")
        client.wait(["done/0", "done/1"])
        assert group.close(deadline_s=5)

    in_two_processes(be)


@pytest.mark.usefixtures("warmed")
@pytest.mark.parametrize("work_is_done", [False, True])
def test_a_peer_that_dies_is_noticed_by_a_rank_that_computes(
    store: Store,
    work_is_done: bool,  # noqa: FBT001
) -> None:
    """It is in no collective and asks nothing: all ranks are told all the same, within a second.

    Once all work is done, a peer may leave.
    """

    def be(rank: int) -> None:
        client = StoreClient(*parse_address(store.address), timeout_s=TIMEOUT_S)
        if rank == 0:
            rendezvous.advance(client, 0, timeout_s=5)
        else:
            client.wait([rendezvous.GENERATION_KEY])
        group = Group(client, number=1, rank=rank, world_size=2, timeout_s=TIMEOUT_S)
        dist.barrier()
        until(group._peer_watcher.is_alive)
        client.set(f"known/{rank}", b"1")
        client.wait(["known/0", "known/1"])
        if rank == 1:
            os._exit(0)
        if work_is_done:
            group.let_peers_go()
            until(lambda: group._closed_by_peer() is not None)
            assert (group.lost, client.get(rendezvous.GENERATION_KEY)) == (None, b"1")
        else:
            until(lambda: client.get(rendezvous.GENERATION_KEY) == b"2", 1.0)
            assert "a peer closed its connection" in str(group.lost)
        assert group.close(deadline_s=5)

    in_two_processes(be)


@pytest.mark.usefixtures("warmed")
def test_a_group_of_one_cuts_nobody_elses_connection(store: Store) -> None:
    """It has no connection of its own: what the user has opened meanwhile stays open."""

    def be() -> None:
        client = StoreClient(*parse_address(store.address), timeout_s=TIMEOUT_S)
        rendezvous.advance(client, 0, timeout_s=5)
        hook = sys.excepthook
        group = Group(client, number=1, rank=0, world_size=1, timeout_s=TIMEOUT_S)
        assert sys.excepthook is hook
        with socket.create_server(("127.0.0.1", 0)) as server:
            mine = socket.create_connection(server.getsockname())
            theirs, _ = server.accept()
            assert group.close(deadline_s=5)
            theirs.sendall(b"still here")
            assert mine.recv(64) == b"still here"

    assert in_a_child(be) == (0, "")


@pytest.mark.usefixtures("warmed")
def test_a_default_group_of_the_scripts_own_is_refused_and_left_alone(store: Store) -> None:
    """The runner makes the group; one that is there is not destroyed for it."""

    def be() -> None:
        client = StoreClient(*parse_address(store.address), timeout_s=TIMEOUT_S)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        with pytest.raises(RuntimeError, match="want the runner to make it"):
            Group(client, number=1, rank=0, world_size=1, timeout_s=TIMEOUT_S)
        assert dist.is_initialized()
        dist.destroy_process_group()

    assert in_a_child(be) == (0, "")


def test_lazy_connections_are_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would notice the end of a peer that has not been connected to."""
    monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", "1")
    client = StoreClient(*parse_address(store.address), timeout_s=TIMEOUT_S)
    with pytest.raises(RuntimeError, match="TORCH_GLOO_LAZY_INIT=1: want it unset"):
        Group(client, number=1, rank=0, world_size=1, timeout_s=TIMEOUT_S)


@pytest.mark.usefixtures("warmed")
def test_a_group_with_something_in_hand_does_not_hold_up_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The destructor waits for a collective that nothing can wake; the next group works meanwhile.

    The cut, which would wake it, is left out: it stands for a send that gloo has forgotten.
    """
    monkeypatch.setattr(Group, "cut", lambda _: None)
    stuck_s = 4.0

    def be(rank: int) -> None:
        client = StoreClient(*parse_address(store.address), timeout_s=TIMEOUT_S)
        if rank == 0:
            rendezvous.advance(client, 0, timeout_s=5)
        else:
            client.wait([rendezvous.GENERATION_KEY])
        first = Group(client, number=1, rank=rank, world_size=2, timeout_s=stuck_s)
        dist.barrier()
        client.set(f"met/{rank}", b"1")
        client.wait(["met/0", "met/1"])
        first.let_peers_go()
        if rank == 1:  # it stays, and does not answer
            client.wait(["closed/0"])
        else:
            dist.all_reduce(torch.ones(4), async_op=True)
        began_s = time.monotonic()
        assert first.close(deadline_s=TIMEOUT_S)
        assert time.monotonic() - began_s < stuck_s / 2
        if rank == 0:
            assert not first.has_gone(0.0)
        client.set(f"closed/{rank}", b"1")
        if rank == 0:
            rendezvous.advance(client, 1, timeout_s=5)
        until(lambda: client.get(rendezvous.GENERATION_KEY) == b"2")
        second = Group(client, number=2, rank=rank, world_size=2, timeout_s=TIMEOUT_S)
        dist.barrier()
        second.let_peers_go()
        client.set(f"done/{rank}", b"1")
        client.wait(["done/0", "done/1"])
        assert second.close(deadline_s=5)
        assert first.has_gone(2 * stuck_s)

    in_two_processes(be)


class Opener(threading.Thread):
    """A user's own thread, which opens a connection while the group connects."""

    def __init__(self, server: socket.socket) -> None:
        super().__init__(daemon=True)
        self.server, self.near, self.far = server, None, None

    def run(self) -> None:
        self.near = socket.create_connection(self.server.getsockname())
        self.far, _ = self.server.accept()


@pytest.mark.usefixtures("warmed")
def test_a_connection_that_a_user_opens_meanwhile_is_not_the_groups(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is no peer's loss, and a cut leaves it alone; the group's own are still watched."""
    start_gloo = module._start_gloo

    def be(rank: int) -> None:
        client = StoreClient(*parse_address(store.address), timeout_s=TIMEOUT_S)
        rendezvous.advance(client, 0, timeout_s=5)
        with socket.create_server(("127.0.0.1", 0)) as server:
            openers = [Opener(server), Opener(server)]

            def start_and_open(*given: object) -> None:
                for opener in openers:
                    opener.start()
                    opener.join(10)
                start_gloo(*given)

            monkeypatch.setattr(module, "_start_gloo", start_and_open)
            group = Group(client, number=1, rank=rank, world_size=2, timeout_s=5)
            until(lambda: len(group._sockets) == 1)
            openers[0].far.close()
            dist.barrier()
            assert group.check() is None
            client.set(f"checked/{rank}", b"1")
            client.wait(["checked/0", "checked/1"])
            group.cut()
            openers[1].far.send(b"whole")
            assert openers[1].near.recv(10) == b"whole"
            until(lambda: group.check() is not None)
            assert group.close(deadline_s=5)

    in_two_processes(be)


@pytest.mark.usefixtures("warmed")
def test_a_rank_that_connects_is_woken_when_the_generation_moves_on(store: Store) -> None:
    """It waits for a peer that has left already: that is told at once, not after the timeout."""

    def connect() -> None:
        client = StoreClient(*parse_address(store.address), timeout_s=TIMEOUT_S)
        rendezvous.advance(client, 0, timeout_s=5)
        mover = threading.Timer(
            0.5, rendezvous.advance, (client.again(timeout_s=5), 1), {"timeout_s": 5}
        )
        mover.start()
        began_s = time.monotonic()
        with pytest.raises((StoreError, RuntimeError)):
            Group(client, number=1, rank=0, world_size=2, timeout_s=TIMEOUT_S)
        took_s = time.monotonic() - began_s
        assert 0.5 <= took_s < TIMEOUT_S / 3, took_s

    assert in_a_child(connect) == (0, "")
