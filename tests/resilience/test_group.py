"""The group of one generation: how a rank in it is woken."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from checkpoints import in_a_child
from loopback_job import Store

from chaoslab.resilience import group as module, rendezvous, sockets
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.errors import StoreError
from chaoslab.resilience.group import Group
from chaoslab.resilience.store import parse_address

TIMEOUT_S = 30.0
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
"""Source: linux/sched.h."""


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


def in_two_processes(be: Callable[[int], None]) -> None:
    """Be rank 0 and rank 1, and see that both end well."""

    def both() -> None:
        pid = os.fork()
        if pid == 0:
            try:
                be(1)
                os._exit(0)
            finally:
                os._exit(1)
        be(0)
        assert os.waitpid(pid, 0)[1] == 0

    assert in_a_child(both) == (0, "")


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


@pytest.mark.usefixtures("warmed")
def test_a_collective_and_a_late_peer_have_the_whole_timeout(store: Store) -> None:
    """The limit of one of gloo's tries is a fifth of it, and is nobody's but the connection's."""
    limit_s = 2.5

    def be(rank: int) -> None:
        client = StoreClient(*parse_address(store.address), timeout_s=TIMEOUT_S)
        if rank == 0:
            rendezvous.advance(client, 0, timeout_s=5)
        else:
            time.sleep(limit_s * 0.6)
        group = Group(client, number=1, rank=rank, world_size=2, timeout_s=limit_s)
        if rank == 0:
            began_s = time.monotonic()
            with pytest.raises(RuntimeError, match=r"Timed out"):
                dist.all_reduce(torch.ones(4))
            assert limit_s * 0.9 < time.monotonic() - began_s < limit_s * 1.5
            client.set("noticed", b"1")
        else:
            client.wait(["noticed"])
        assert group.close(deadline_s=5)

    in_two_processes(be)


@pytest.mark.usefixtures("warmed")
@pytest.mark.parametrize(("own_limit_s", "waits_s"), [(None, 0.5), (2.5, 2.5)])
def test_a_receive_waits_a_fifth_unless_it_has_its_own_limit(
    store: Store, own_limit_s: float | None, waits_s: float
) -> None:
    """As documented: gloo copies the limit for point-to-point messages when it connects."""

    def be(rank: int) -> None:
        client = StoreClient(*parse_address(store.address), timeout_s=TIMEOUT_S)
        if rank == 0:
            rendezvous.advance(client, 0, timeout_s=5)
        client.wait([rendezvous.GENERATION_KEY])
        group = Group(client, number=1, rank=rank, world_size=2, timeout_s=2.5)
        if rank == 0:
            work = dist.irecv(torch.ones(4), 1)
            assert work is not None
            limits = () if own_limit_s is None else (timedelta(seconds=own_limit_s),)
            began_s = time.monotonic()
            with pytest.raises(RuntimeError, match=r"[Tt]imed out"):
                work.wait(*limits)
            assert waits_s * 0.9 < time.monotonic() - began_s < waits_s + 0.7
            client.set("noticed", b"1")
        else:
            client.wait(["noticed"])
        assert group.close(deadline_s=5)

    in_two_processes(be)


@pytest.mark.usefixtures("warmed")
def test_torchs_wrapper_for_debugging_has_the_whole_timeout(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its limit cannot be changed later, so it is formed with it."""
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    limit_s = 2.5

    def be(rank: int) -> None:
        dist.set_debug_level_from_env()
        client = StoreClient(*parse_address(store.address), timeout_s=TIMEOUT_S)
        if rank == 0:
            rendezvous.advance(client, 0, timeout_s=5)
        client.wait([rendezvous.GENERATION_KEY])
        group = Group(client, number=1, rank=rank, world_size=2, timeout_s=limit_s)
        if rank == 0:
            began_s = time.monotonic()
            with pytest.raises(RuntimeError):
                dist.all_reduce(torch.ones(4))
            assert limit_s * 0.9 < time.monotonic() - began_s < limit_s * 2
            client.set("noticed", b"1")
        else:
            client.wait(["noticed"])
        assert group.close(deadline_s=5)

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


def until(condition: Callable[[], bool], limit_s: float = 10) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Give both ends of a connection over lo, in a network namespace of this process's own."""
    own = CLONE_NEWNET | (CLONE_NEWUSER if os.geteuid() else 0)
    assert ctypes.CDLL(None, use_errno=True).unshare(own) == 0
    set_lo("up")
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as near,
    ):
        far, _ = server.accept()
        with far:
            yield near, far


def set_lo(state: str) -> None:
    subprocess.run(["/sbin/ip", "link", "set", "lo", state], check=True)


def becomes_silent(sock: socket.socket, *, within_s: float) -> bool:
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        if sockets.is_unanswered(sock.fileno()):
            return True
        time.sleep(0.02)
    return False


def test_a_host_that_acknowledges_nothing_is_silent() -> None:
    """Its peer's data is retransmitted; known in less than two seconds, and over with the cut."""

    def cut() -> None:
        with connection() as (near, far):
            near.send(b"before")
            assert far.recv(100) == b"before"
            assert not sockets.is_unanswered(near.fileno())
            set_lo("down")
            near.send(b"during")
            assert becomes_silent(near, within_s=2)
            set_lo("up")
            assert far.recv(100) == b"during"
            assert not sockets.is_unanswered(near.fileno())

    assert in_a_child(cut) == (0, "")


@pytest.mark.parametrize("how", ["end_reading", "shutdown"])
def test_a_cut_reads_its_end_and_refuses_no_send_that_waits(how: str) -> None:
    """What a full socket still has to send finds room. Planted: a shutdown of both sides."""

    def cut() -> None:
        with connection() as (near, _):
            near.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                while near.send(bytes(1 << 20)):
                    pass
            if how == "shutdown":
                near.shutdown(socket.SHUT_RDWR)
                with pytest.raises(BrokenPipeError):
                    near.send(b"waits")
            else:
                sockets.end_reading(near)
                assert near.send(b"waits") == len(b"waits")
            assert near.recv(1) == b""

    if os.geteuid():
        pytest.skip("NotAvailable: only CAP_NET_ADMIN makes room beyond net.core.wmem_max")
    assert in_a_child(cut) == (0, "")


def test_a_process_that_reads_nothing_is_not_silent() -> None:
    """Its host acknowledges for it: a frozen peer is no lost one; nor is an idle connection."""

    def idle() -> None:
        with connection() as (near, far):
            near.send(b"unread")
            assert not becomes_silent(near, within_s=1.5)
            assert not sockets.is_unanswered(far.fileno())

    assert in_a_child(idle) == (0, "")


def test_what_is_no_connection_is_not_silent() -> None:
    """A closed descriptor, a pipe."""
    read, write = os.pipe()
    assert not sockets.is_unanswered(read)
    os.close(read)
    os.close(write)
    assert not sockets.is_unanswered(read)


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


def test_a_borrowed_socket_keeps_its_blocking_mode() -> None:
    """Also where the user's script has set a default timeout."""

    def borrow() -> None:
        near, far = socket.socketpair()
        socket.setdefaulttimeout(5)
        with sockets.borrowed(near.fileno()):
            assert os.get_blocking(near.fileno())
        with socket.socket(fileno=os.dup(near.fileno())):
            assert not os.get_blocking(near.fileno())  # what the plain way does
        far.close()

    assert in_a_child(borrow) == (0, "")
