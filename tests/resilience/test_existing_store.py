"""A TCPStore that is there already serves as well, and cannot hang its clients either."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from test_store import (  # the contract, run here over a torch store by the fixture `client`
    test_a_change_is_told_to_those_who_wait_for_it,  # noqa: F401
    test_a_large_value_arrives_whole,  # noqa: F401
    test_a_wait_ends_when_the_last_key_comes,  # noqa: F401
    test_a_wait_for_a_key_that_never_comes_ends_at_its_deadline,  # noqa: F401
    test_compare_set_sets_once,  # noqa: F401
    test_every_operation_does_what_its_name_says,  # noqa: F401
)

from chaoslab.resilience import rendezvous
from chaoslab.resilience.errors import StoreError, StoreTimeout
from chaoslab.resilience.existing_store import MOST_CALLS, ExistingStoreClient

PATIENT_S = 30
"""For calls that must succeed: torch asks the name service about each new connection."""

REPOSITORY = Path(__file__).resolve().parents[2]


class Host:
    """A process that hosts a TCPStore, as rank 0 or torchrun's agent does."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                own = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
                os.write(writer, f"{own.port}\n".encode())
                signal.pause()
            finally:
                os._exit(1)
        os.close(writer)
        with os.fdopen(reader) as lines:
            self.port = int(lines.readline())

    def signal(self, number: int) -> None:
        """Send a signal; a stop is waited for, since the host may answer until it takes effect."""
        os.kill(self.pid, number)
        deadline_s = time.monotonic() + 10
        while number == signal.SIGSTOP and not all(state in "TZ" for state in self._states()):
            assert time.monotonic() < deadline_s, "the host does not stop"
            time.sleep(0.001)

    def _states(self) -> list[str]:
        """Give the state of each of its threads: one that serves the store may stop last."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks]

    def store(self) -> dist.TCPStore:
        """Connect as torch does."""
        return dist.TCPStore(
            "127.0.0.1",
            self.port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=300),
        )

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def host(warmed: None) -> Iterator[Host]:  # noqa: ARG001
    """Run a process with a TCPStore; afterwards no thread of a client is left."""
    running = Host()
    yield running
    running.close()
    until(lambda: not calls(), "every call to end", limit_s=60.0)  # torch takes 15 s to see it


@pytest.fixture(params=["plain", "prefixed"])
def client(host: Host, request: pytest.FixtureRequest) -> Iterator[ExistingStoreClient]:
    """Connect over torch's store, or over the kind of prefix that torch puts round it."""
    own = host.store()
    if request.param == "prefixed":
        own = dist.PrefixStore("attempt/0", dist.PrefixStore("worker", own))
    connected = ExistingStoreClient(own, timeout_s=PATIENT_S)
    yield connected
    connected.close()


def calls() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "store-call"]


def until(condition: Callable[[], bool], awaited: str, limit_s: float = 20.0) -> None:
    """Wait for a condition; fail with what was awaited."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {limit_s} s for {awaited}"
        time.sleep(0.01)


def test_it_knows_where_its_store_is(host: Host, client: ExistingStoreClient) -> None:
    """The address is the one that the connection goes to: health and blame need it."""
    assert client.address == ("127.0.0.1", host.port)
    assert client.ping() < PATIENT_S


def test_a_prefix_keeps_its_keys_apart(host: Host) -> None:
    """Two clients under different prefixes do not see each other's keys; two of one do."""
    one = ExistingStoreClient(dist.PrefixStore("one", host.store()), timeout_s=PATIENT_S)
    other = ExistingStoreClient(dist.PrefixStore("other", host.store()), timeout_s=PATIENT_S)
    again = one.again(timeout_s=20)
    one.set("k", b"\x00\xff")
    assert (other.get("k"), again.get("k"), again.timeout_s) == (None, b"\x00\xff", 20)
    for each in (one, other, again):
        each.close()


def test_the_store_that_was_given_stays_usable(host: Host) -> None:
    """Its own limit is untouched, and closing the client does not close it."""
    own = host.store()
    client = ExistingStoreClient(own, timeout_s=PATIENT_S)
    client.set("k", b"1")
    client.close()
    assert own.timeout == timedelta(seconds=300)
    assert own.get("k") == b"1"


def test_a_frozen_host_holds_no_call_beyond_its_deadline(
    host: Host, client: ExistingStoreClient
) -> None:
    """Not even `set`, which torch itself answers at once, done or not; after a thaw all is well."""
    client.set("a", b"1")
    host.signal(signal.SIGSTOP)
    attempts: list[Callable[[], object]] = [
        lambda: client.get("a", timeout_s=0.4),
        lambda: client.set("a", b"2", timeout_s=0.4),
        lambda: client.add("n", 1, timeout_s=0.4),
        lambda: client.append("a", b"!", timeout_s=0.4),
        lambda: client.compare_set("a", b"1", b"2", timeout_s=0.4),
        lambda: client.delete("zz", timeout_s=0.4),
        lambda: client.wait(["zz"], timeout_s=0.4),
        lambda: client.wait_change("a", b"1", timeout_s=0.4),
        lambda: client.ping(timeout_s=0.4),
        lambda: client.again(timeout_s=0.4),
    ]
    for attempt in attempts:
        start_s = time.monotonic()
        with pytest.raises(StoreTimeout, match=r"no answer within .* is the store running"):
            attempt()
        assert time.monotonic() - start_s < 0.4 + 1.0
    host.signal(signal.SIGCONT)
    assert client.set("b", b"1") is None
    assert client.get("b") == b"1"


def test_a_call_that_was_given_up_leaves_no_thread(host: Host, client: ExistingStoreClient) -> None:
    """It is woken and awaited: one that came back while the process ends would abort it."""
    client.set("a", b"1")
    host.signal(signal.SIGSTOP)
    with pytest.raises(StoreTimeout):
        client.get("a", timeout_s=0.2)
    assert not calls()
    host.signal(signal.SIGCONT)


def test_a_long_freeze_costs_a_bounded_number_of_threads(host: Host) -> None:
    """Calls that have been given up count against a limit, and end once the host is back."""
    client = ExistingStoreClient(host.store(), timeout_s=PATIENT_S)
    host.signal(signal.SIGSTOP)
    for _ in range(MOST_CALLS + 5):
        with pytest.raises(StoreTimeout):
            client.get("a", timeout_s=0.02)
    assert len(calls()) <= MOST_CALLS
    host.signal(signal.SIGCONT)
    until(lambda: not calls(), "the calls to come back")
    assert client.get("a") is None
    client.close()


def test_a_short_freeze_is_only_slow(host: Host, client: ExistingStoreClient) -> None:
    """A call whose deadline outlasts the freeze succeeds."""
    host.signal(signal.SIGSTOP)
    thaw = threading.Timer(0.3, lambda: host.signal(signal.SIGCONT))
    thaw.start()
    assert client.add("n", 1) == 1
    thaw.join()


def test_a_host_that_is_gone_is_told(host: Host, client: ExistingStoreClient) -> None:
    """Reading ends at the deadline; a sum is not sent twice, and the caller is told so."""
    assert client.add("n", 1) == 1
    host.signal(signal.SIGKILL)
    with pytest.raises(StoreError, match="may or may not be done"):
        client.add("n", 1, timeout_s=0.5)
    with pytest.raises(StoreTimeout, match=r"no answer within 0\.5 s"):
        client.get("n", timeout_s=0.5)
    with pytest.raises(StoreTimeout, match=r"connect: .*refused.*is the store running"):
        client.again(timeout_s=0.5)


def test_a_closed_client_wakes_its_waiting_threads(host: Host, client: ExistingStoreClient) -> None:
    """Those that poll, and one whose call is stuck in torch because the host is frozen."""
    ended = []

    def call(work: Callable[[], object]) -> None:
        with pytest.raises(StoreError, match="has been closed"):
            work()
        ended.append(True)

    polling = threading.Thread(target=call, args=[lambda: client.wait(["never"], timeout_s=60)])
    polling.start()
    until(client._ready.empty, "the first poll")
    host.signal(signal.SIGSTOP)
    stuck = threading.Thread(target=call, args=[lambda: client.get("a", timeout_s=60)])
    stuck.start()
    until(lambda: bool(client._pending), "the call to be stuck")
    client.close()
    polling.join(10)
    stuck.join(10)
    assert ended == [True, True]
    with pytest.raises(StoreError, match="has been closed"):
        client.get("a")
    host.signal(signal.SIGCONT)


@pytest.mark.parametrize("store", [dist.HashStore(), dist.PrefixStore("p", dist.HashStore()), 3])
def test_a_store_without_an_address_is_refused(store: object) -> None:
    """The message says which kinds will do."""
    with pytest.raises(TypeError, match="want a TCPStore, or a PrefixStore over one"):
        ExistingStoreClient(store)


def member(rank: int, process: str) -> rendezvous.Member:
    return rendezvous.Member(rank=rank, process=process, incarnation=0, steps=(10 * rank, 20))


def run_rank(host: Host, rank: int, process: str, after: int) -> int:
    """Fork a rank that joins and exits with 10 x the generation + the number of members."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            client = ExistingStoreClient(dist.PrefixStore("job", host.store()), timeout_s=PATIENT_S)
            found = rendezvous.join(
                client, member(rank, process), world_size=2, after=after, patience_s=60
            )
            assert found.restore_step == 20
            assert found.members[rank].process == process
            status = 10 * found.number + len(found.members)
        finally:
            os._exit(status)
    return pid


def statuses(pids: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def test_two_ranks_agree_over_a_tcp_store(host: Host) -> None:
    """They meet in generation 1; when one is replaced and the other follows, in generation 2."""
    assert statuses([run_rank(host, 0, "a", 0), run_rank(host, 1, "b", 0)]) == [12, 12]
    assert statuses([run_rank(host, 1, "c", 0), run_rank(host, 0, "a", 1)]) == [22, 22]


def test_torchruns_store_is_found_by_what_it_tells_its_workers(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The three variables of a worker lead to the agent's store; a frozen one holds nobody."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(host.port))
    client = ExistingStoreClient.of_torchrun(timeout_s=PATIENT_S)
    assert client.add("n", 2) == 2
    client.close()
    host.signal(signal.SIGSTOP)
    start_s = time.monotonic()
    with pytest.raises(StoreTimeout, match=r"connect: no answer within 0.3 s"):
        ExistingStoreClient.of_torchrun(timeout_s=0.3)
    assert time.monotonic() - start_s < 1.3
    host.signal(signal.SIGCONT)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
        {"MASTER_ADDR": "h", "MASTER_PORT": "1", "TORCHELASTIC_USE_AGENT_STORE": "False"},
        {"MASTER_ADDR": "h", "MASTER_PORT": "x", "TORCHELASTIC_USE_AGENT_STORE": "True"},
    ],
)
def test_outside_torchrun_there_is_no_such_store(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    """The message says what is missing and what to unset."""
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreError, match="unset TORCH_DISABLE_SHARE_RDZV_TCP_STORE"):
        ExistingStoreClient.of_torchrun()


WORKER = """
import os
from chaoslab.resilience import rendezvous
from chaoslab.resilience.existing_store import ExistingStoreClient
rank = int(os.environ["RANK"])
client = ExistingStoreClient.of_torchrun(timeout_s=20)
me = rendezvous.Member(rank=rank, process=str(os.getpid()), incarnation=0, steps=(5,))
found = rendezvous.join(client, me, world_size=2, after=0, patience_s=60)
print(f"joined {found.number} {[m.rank for m in found.members]} {found.restore_step}", flush=True)
client.close()
"""


@pytest.mark.nightly
def test_two_workers_of_torchrun_agree_over_its_own_store(tmp_path: Path) -> None:
    """The real launcher, its real agent's store."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", str(script)),
        ],
        capture_output=True,
        text=True,
        timeout=85,
        check=False,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
    )
    assert told.returncode == 0, told.stderr[-2000:]
    assert sorted(told.stdout.split("\n"))[1:] == ["joined 1 [0, 1] 5"] * 2
