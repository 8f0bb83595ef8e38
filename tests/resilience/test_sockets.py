"""What a rank knows of its connections: silence, their end, what it borrows."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from checkpoints import in_a_child

from chaoslab.resilience import sockets

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
"""Source: linux/sched.h."""


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
