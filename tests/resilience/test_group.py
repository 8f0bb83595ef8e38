"""The group of one generation: how a rank in it is woken."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
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
