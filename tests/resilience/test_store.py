"""The store answers, survives malformed input, and its client never hangs."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from loopback_job import Store

from chaoslab.resilience import frames
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.errors import StoreError, StoreTimeout
from chaoslab.resilience.store import MAX_CONNECTIONS, parse_address
from chaoslab.resilience.table import MAX_VALUE_BYTES, Table


def test_every_operation_does_what_its_name_says(client: StoreClient) -> None:
    """Set, get, add, append, compare_set, check, delete and num_keys over a real connection."""
    client.set("a", b"1")
    client.multi_set({"b": b"2", "c": b"\0\xff"})
    assert client.multi_get(["a", "b", "c", "d"]) == [b"1", b"2", b"\0\xff", None]
    assert (client.add("n", 3), client.add("n", -1)) == (3, 2)
    client.append("a", b"!")
    assert client.get("a") == b"1!"
    assert client.check(["a", "b"])
    assert not client.check(["a", "d"])
    assert client.num_keys() == 4
    assert client.delete("a")
    assert not client.delete("a")


def test_compare_set_sets_once(client: StoreClient) -> None:
    """Of two that expect no value the first wins, and the second learns the winner's."""
    assert client.compare_set("g", b"", b"1") == b"1"
    assert client.compare_set("g", b"", b"2") == b"1"
    assert client.compare_set("g", b"1", b"2") == b"2"
    assert client.compare_set("missing", b"x", b"y") == b"x"
    assert client.get("missing") is None


def test_a_wait_ends_when_the_last_key_comes(client: StoreClient) -> None:
    """A wait for two keys outlasts the first of them."""
    ended = threading.Event()
    waiting = threading.Thread(target=lambda: (client.wait(["x", "y"]), ended.set()))
    waiting.start()
    client.set("x", b"")
    assert not client.check(["y"])
    assert not ended.is_set()
    client.set("y", b"")
    waiting.join(10)
    assert ended.is_set()


def test_a_wait_for_a_key_that_never_comes_ends_at_its_deadline(client: StoreClient) -> None:
    """The error names the keys."""
    with pytest.raises(StoreTimeout, match="nowhere"):
        client.wait(["nowhere"], timeout_s=0.2)


def test_a_change_is_told_to_those_who_wait_for_it(client: StoreClient) -> None:
    """wait_change gives the new value; the known one when all other keys came; None at the end."""
    client.set("g", b"1")
    told: list[bytes | None] = []
    waiting = threading.Thread(target=lambda: told.append(client.wait_change("g", b"1")))
    waiting.start()
    client.set("g", b"2")
    waiting.join(10)
    assert told == [b"2"]
    assert client.wait_change("g", b"2", timeout_s=0.1) is None
    client.multi_set({"j/0": b"", "j/1": b""})
    assert client.wait_change("g", b"2", or_all=["j/0", "j/1"]) == b"2"


def test_what_is_of_numbers_below_one_is_forgotten(client: StoreClient) -> None:
    """Of the prefixes named, keys of lower numbers go; all others stay, and the bytes are free."""
    stay = ["join/3/0", "join/12/0", "join/x/0", "join", "joined/1/0", "mine/1/0", "1"]
    go = ["join/1/0", "join/2/0", "gloo/2/a/b", "join/0"]
    client.multi_set(dict.fromkeys([*stay, *go], b"v"))
    assert client.forget(["join", "gloo"], below=3) == len(go)
    assert client.multi_get(go) == [None] * len(go)
    assert client.multi_get(stay) == [b"v"] * len(stay)
    assert client.forget(["join", "gloo"], below=3) == 0


ONE_WAY_S = 0.06


@contextlib.contextmanager
def slow_link(address: str) -> Iterator[tuple[str, list[socket.socket]]]:
    """Give the address of a relay to a server, ONE_WAY_S each way, and the connections it took."""
    taken: list[socket.socket] = []
    ends: list[socket.socket] = []

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                time.sleep(ONE_WAY_S)  # the delay line itself
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def serve(server: socket.socket) -> None:
        while True:
            try:
                near, _ = server.accept()
            except OSError:
                return
            far = socket.create_connection(parse_address(address))
            taken.append(near)
            ends.extend((near, far))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=copy, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        host, port = server.getsockname()
        try:
            yield f"{host}:{port}", taken
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for end in ends:
                end.close()


def test_a_slow_link_costs_no_connection_for_each_wait(store: Store) -> None:
    """Where answers take longer than the margin, the first wait fails and the next ones do not."""
    with slow_link(store.address) as (address, taken):
        client = StoreClient(*parse_address(address))
        failed = 0
        for _ in range(6):
            try:
                assert client.wait_change("g", b"", timeout_s=0.6) is None
            except StoreTimeout:
                failed += 1
        client.close()
        assert failed <= 2
        assert len(taken) <= failed + 1


def test_a_frozen_store_gives_a_timeout_and_no_hang(store: Store, client: StoreClient) -> None:
    """Each call on a stopped store ends at its own deadline; after that it works again."""
    client.set("a", b"1")
    store.process.send_signal(signal.SIGSTOP)
    calls = (
        lambda: client.get("a", timeout_s=0.5),
        lambda: client.set("a", b"2", timeout_s=0.5),
        lambda: client.wait(["zz"], timeout_s=0.5),
        lambda: client.wait_change("a", b"1", timeout_s=0.5),
        lambda: StoreClient(*client.address).ping(timeout_s=0.5),
    )
    for call in calls:
        start_s = time.monotonic()
        with pytest.raises(StoreTimeout, match="is the store running"):
            call()
        assert time.monotonic() - start_s < 1.5
    store.process.send_signal(signal.SIGCONT)
    assert client.get("a") in (b"1", b"2")


def test_a_short_freeze_is_only_slow(store: Store, client: StoreClient) -> None:
    """A call whose deadline outlasts the freeze succeeds."""
    store.process.send_signal(signal.SIGSTOP)
    thaw = threading.Timer(0.3, lambda: store.process.send_signal(signal.SIGCONT))
    thaw.start()
    assert client.add("n", 1) == 1
    thaw.join()
    assert client.add("n", 1) == 2


def test_no_store_at_all_gives_a_timeout(client: StoreClient, store: Store) -> None:
    """A refused connection is retried until the deadline, then told."""
    store.close()
    with pytest.raises(StoreTimeout, match="refused"):
        client.get("a", timeout_s=0.3)


def test_a_request_that_comes_twice_is_done_once(store: Store) -> None:
    """The same name on a new connection repeats the answer: a retried add counts once."""
    answers = [exchange(store, frames.pack([b"name", b"add", b"n", b"5"])) for _ in range(2)]
    assert answers == [[b"ok", b"5"], [b"ok", b"5"]]
    assert exchange(store, frames.pack([b"other", b"add", b"n", b"5"])) == [b"ok", b"10"]


def exchange(store: Store, data: bytes) -> list[bytes] | None:
    """Send raw bytes; give the answer, None when the store hangs up."""
    with socket.create_connection(parse_address(store.address), timeout=5) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    return frames.unpack(answer[4:]) if answer else None


@pytest.fixture(scope="module")
def lasting_store() -> object:
    running = Store()
    yield running
    running.close()


@given(data=st.one_of(st.binary(max_size=200), st.lists(st.binary(max_size=40), max_size=5)))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_malformed_input_never_kills_the_store(
    lasting_store: Store, data: bytes | list[bytes]
) -> None:
    """Any bytes, framed or not, leave the store answering others."""
    with_frame = frames.pack(data) if isinstance(data, list) else data
    with contextlib.suppress(ConnectionError, StoreError):
        exchange(lasting_store, with_frame)
    assert exchange(lasting_store, frames.pack([os.urandom(8), b"num_keys"])) is not None


@pytest.mark.parametrize(
    "request_fields",
    [
        [b"n", b"add", b"k", b"x"],
        [b"n", b"add"],
        [b"n", b"set", b"k"],
        [b"n", b"nonsense"],
        [b"n", b"wait", b"nan", b"k"],
        [b"n", b"wait"],
        [b"n", b"wait_change", b"1", b"k"],
        [b"n", b"\xff\xfe"],
    ],
)
def test_a_bad_request_is_refused_with_a_reason(store: Store, request_fields: list[bytes]) -> None:
    """The answer says what was wrong, and the store lives."""
    answer = exchange(store, frames.pack(request_fields))
    assert answer is not None
    assert answer[0] == b"refused"
    assert exchange(store, frames.pack([b"m", b"ping"])) is not None


def test_a_value_over_the_limit_is_refused(client: StoreClient) -> None:
    """Values and frames are bounded; what is refused changes nothing."""
    with pytest.raises(StoreError, match="want at most"):
        client.set("big", bytes(MAX_VALUE_BYTES + 1))
    with pytest.raises(StoreError, match="frame of"):
        client.set("bigger", bytes(frames.MAX_FRAME_BYTES + 1))
    assert client.get("big") is None


def test_a_large_value_arrives_whole(client: StoreClient) -> None:
    """More than one socket buffer in each direction."""
    value = os.urandom(4 * 1024 * 1024)
    client.set("big", value)
    assert client.get("big") == value


@pytest.fixture
def store_of_few_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Give a store that may have no more than FILES open."""
    limit = (FILES, FILES)
    monkeypatch.setattr(
        subprocess, "Popen", functools.partial(subprocess.Popen, preexec_fn=lambda: cap(limit))
    )
    store = Store()
    monkeypatch.undo()
    yield store
    store.close()


FILES = 64


def cap(limit: tuple[int, int]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def test_too_many_connections_cost_the_idle_ones(store_of_few_files: Store) -> None:
    """Over the limit the longest idle connection goes, and a client just makes another."""
    address = parse_address(store_of_few_files.address)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(contextlib.closing(StoreClient(*address)))
        client.set("a", b"1")
        for _ in range(2 * FILES):
            stack.enter_context(socket.create_connection(address, timeout=5))
        assert client.get("a") == b"1"
        other = stack.enter_context(contextlib.closing(StoreClient(*address)))
        assert other.get("a") == b"1"
        status = Path(f"/proc/{store_of_few_files.process.pid}/stat").read_text().split()
        assert int(status[13]) + int(status[14]) < 100  # ticks of 10 ms: it does not spin


def test_the_store_may_open_as_many_files_as_it_needs(store: Store) -> None:
    """The soft limit, 1024 on most systems, is raised: that is 340 ranks only."""
    soft, hard = resource.prlimit(store.process.pid, resource.RLIMIT_NOFILE)
    assert soft >= min(hard, MAX_CONNECTIONS)


def test_a_closed_client_wakes_its_waiting_threads(client: StoreClient) -> None:
    """close() ends a wait in another thread at once, with an error."""
    failed = threading.Event()

    def wait() -> None:
        try:
            client.wait(["never"], timeout_s=60)
        except StoreError:
            failed.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not client._busy:
        time.sleep(0.001)
    client.close()
    assert failed.wait(5)
    waiting.join(5)


def test_the_store_does_not_import_torch() -> None:
    """Its process stays small and starts at once."""
    code = "import sys, chaoslab.resilience.store as s; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"


def test_a_port_in_use_is_told(store: Store) -> None:
    """The second store on a port ends with a message and a status."""
    command = [sys.executable, "-m", "chaoslab.resilience.store", "--listen", store.address]
    told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert told.returncode == 2
    assert store.address in told.stderr


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_a_frame_gives_back_its_fields(fields: list[bytes]) -> None:
    """Packing and unpacking are inverse."""
    frame = frames.pack(fields)
    assert frames.body_bytes(frame[:4]) == len(frame) - 4
    assert frames.unpack(frame[4:]) == fields


@given(st.lists(st.tuples(st.sampled_from("abc"), st.binary(max_size=20)), max_size=30))
def test_the_table_counts_its_bytes(pairs: list[tuple[str, bytes]]) -> None:
    """The total that bounds memory equals what is held, whatever is set and deleted."""
    table = Table()
    for key, value in pairs:
        if value == b"":
            table.do(b"delete", [key.encode()])
        else:
            table.do(b"set", [key.encode(), value])
    assert table._total_bytes == sum(len(value) for value in table._values.values())
