"""What a runner refuses, and how it fares when destroy, disk or store are not as they should be."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import own_tcp_store
import pytest
from loopback_job import (
    CIRCUIT_OPEN_STATUS,
    STEPS,
    TIMEOUT_S,
    WORLD_SIZE,
    StartJob,
    Store,
    make_job,
    results,
)

from chaoslab.resilience.checkpoint import AtomicCheckpointManager
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.limits import Limits
from chaoslab.resilience.runner import FINISHED_KEY, FaultTolerantRunner
from chaoslab.resilience.store import parse_address

VICTIM = 2
DESTROY_S = Limits(timeout_s=TIMEOUT_S).destroy_s


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout_s", -1),
        ("timeout_s", 0),
        ("patience_s", float("nan")),
        ("start_patience_s", float("inf")),
        ("teardown_s", True),
        ("exit_s", -0.5),
        ("attempts", 0),
        ("attempts", 1.5),
        ("failed_saves", -1),
        ("healthy_steps", 0),
    ],
)
def test_a_limit_that_cannot_be_is_refused(name: str, value: object) -> None:
    """The message names it and says what is wanted."""
    with pytest.raises(ValueError, match=rf"Limits\({name}={value!r}\): want"):
        Limits(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"world_size": 0},
        {"rank": 2},
        {"rank": -1},
        {"save_every_steps": 0},
        {"save_every_steps": -1},
        {"incarnation": -1},
    ],
)
def test_a_runner_that_cannot_be_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """Before anything is asked of the store, and in words."""
    given: dict[str, Any] = {"rank": 0, "world_size": 2, "save_every_steps": 10} | wrong
    with pytest.raises(ValueError, match="want 0 <= rank < world_size, save_every_steps >= 1"):
        FaultTolerantRunner(
            client=StoreClient("127.0.0.1", 1),
            checkpoints=AtomicCheckpointManager(tmp_path, rank=0, world_size=2),
            **given,
        )


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf")])
def test_a_client_without_a_deadline_is_refused(timeout_s: float) -> None:
    """No call may last for ever, none can end before it begins."""
    with pytest.raises(ValueError, match="want seconds, above 0 and finite"):
        StoreClient("127.0.0.1", 1, timeout_s=timeout_s)


def test_a_destroy_that_hangs_does_not_keep_the_process(start_job: StartJob) -> None:
    """All survivors leave with the circuit-open status, and have said why, by the deadline."""
    job = start_job("tests/resilience/hung_destroy.py")
    job.until_step(12)
    killed_s = job.kill(VICTIM)
    statuses = job.until_over()
    assert {s for rank, s in statuses.items() if rank != VICTIM} == {CIRCUIT_OPEN_STATUS}
    opened = job.events("circuit_opened")
    assert DESTROY_S < max(e["t_s"] for e in opened) - killed_s < DESTROY_S + Limits.exit_s
    assert any("was not destroyed within" in e["reason"] for e in opened)
    assert "gives up: " in (job.directory / "rank-0.log").read_text()


def test_a_rank_that_gives_up_keeps_no_socket_and_no_group(start_job: StartJob) -> None:
    """All is closed before the process ends; a connection of the task's own is told apart."""
    job = start_job(
        "tests/resilience/gives_back.py", "--patience-s", "4", environment={0: {"KEEPS_ONE": "1"}}
    )
    job.until_step(12)
    job.kill(VICTIM)
    statuses = job.until_over()
    assert {s for rank, s in statuses.items() if rank != VICTIM} == {CIRCUIT_OPEN_STATUS}
    told = {e["rank"]: e for e in job.events("left_behind")}
    assert {rank: len(e["sockets"]) for rank, e in told.items()} == {0: 1, 1: 0, 3: 0}
    assert not any(e["group"] for e in told.values())


def test_a_destroy_that_waits_for_a_collective_does_not_end_the_job(
    start_job: StartJob, twin: list[dict[str, Any]]
) -> None:
    """It takes the collective's timeout, and the job goes on."""
    job = start_job("tests/resilience/slow_destroy.py")
    job.until_step(12)
    job.replace(VICTIM)
    assert set(job.until_over().values()) == {0}, job.tell()
    assert results(job) == twin
    torn = [e["t_s"] for e in job.events("torn_down", 0)]
    seen = [e["t_s"] for e in job.events("failure_seen", 0)]
    assert torn[0] - seen[0] > Limits.teardown_s


def test_what_gloo_has_forgotten_holds_nobody_up(
    start_job: StartJob, twin: list[dict[str, Any]]
) -> None:
    """The new group is there long before the last of the old one has gone."""
    job = start_job("tests/resilience/slow_release.py")
    job.until_step(12)
    job.replace(VICTIM)
    assert set(job.until_over().values()) == {0}, job.tell()
    assert results(job) == twin
    (released,) = job.events("released", 0)
    (again,) = (e for e in job.events("group_ready", 0) if e["generation"] == 2)
    assert again["t_s"] < released["t_s"]


def test_a_destroy_that_hangs_after_the_last_step_costs_nothing_but_time(
    start_job: StartJob, twin: list[dict[str, Any]]
) -> None:
    """The work is done and saved: that is no reason to give up."""
    job = start_job("tests/resilience/hung_destroy.py")
    assert set(job.until_over().values()) == {0}, job.tell()
    assert job.events("circuit_opened") == []
    assert results(job) == twin


def test_a_disk_that_is_slow_is_no_lost_peer(
    start_job: StartJob, twin: list[dict[str, Any]]
) -> None:
    """That save fails on every rank; nobody tears the group down, and training goes on."""
    job = start_job("tests/resilience/slow_disk.py")
    assert set(job.until_over().values()) == {0}, job.tell()
    assert job.events("failure_seen") == []
    failed = job.events("save_failed")
    assert [e["step"] for e in failed] == [20] * WORLD_SIZE
    assert "is the disk slow?" in next(e["message"] for e in failed if e["rank"] == 0)
    assert results(job) == twin


@pytest.mark.parametrize("told", [STEPS - 10, STEPS])
def test_what_another_job_has_left_in_the_store_ends_nobody(
    start_job: StartJob, store: Store, twin: list[dict[str, Any]], told: int
) -> None:
    """A shorter job's end, or one whose checkpoints are elsewhere, is not this one's."""
    with contextlib.closing(StoreClient(*parse_address(store.address))) as client:
        client.set(FINISHED_KEY, str(told).encode())
    job = start_job()
    job.until_step(15)
    job.replace(VICTIM)
    assert set(job.until_over().values()) == {0}, job.tell()
    assert results(job) == twin


@pytest.fixture
def tcp_store() -> Iterator[str]:
    """Run torch's TCPStore in a process of its own; give its address."""
    body = (
        "import sys, torch.distributed as dist\n"
        "store = dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
        "print(f'127.0.0.1:{store.port}', flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", body],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"RES_OPTIONS": own_tcp_store.RESOLVER},
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate("")


def test_a_job_over_torchs_own_store_recovers_as_well(
    tmp_path: Path,
    store: Store,
    tcp_store: str,
    warmed: None,  # noqa: ARG001
    twin: list[dict[str, Any]],
) -> None:
    """An existing TCPStore, where one's host is trusted to live, serves the runner in full."""
    job = make_job(tmp_path, store, "tests/resilience/own_tcp_store.py")
    job.store = tcp_store
    try:
        job.start()
        job.until_step(15)
        job.replace(VICTIM)
        assert set(job.until_over().values()) == {0}, job.tell()
        assert results(job) == twin
        assert max(e["generation"] for e in job.events("group_ready")) >= 2
    finally:
        job.close()


@pytest.mark.parametrize("agreed", [False, True])
def test_a_job_of_another_size_goes_on_only_when_told_to(
    tmp_path: Path,
    warmed: None,  # noqa: ARG001
    agreed: bool,  # noqa: FBT001
) -> None:
    """It never begins anew beside the checkpoints of another; told to, it goes on from them."""
    told = ["--any-world-size"] if agreed else []
    for ranks, steps in ((4, 20), (2, 40)):
        store = Store()
        job = make_job(tmp_path, store, "examples/charlm.py", "--steps", str(steps), *told)
        job.world_size = ranks
        try:
            job.start()
            statuses = set(job.until_over().values())
            restored = job.events("restored")[-ranks:]
        finally:
            job.close()
            store.close()
        if ranks == 4:
            assert statuses == {0}
    if agreed:
        assert statuses == {0}
        assert [(e["step"], e["verified"]) for e in restored] == [(20, True)] * 2
    else:
        assert statuses == {1}
        log = (tmp_path / "rank-0.log").read_text()
        assert "shards of 4 ranks: want 2" in log
        assert "this job would begin anew beside it" in log
