"""A job of four ranks survives what it should, gives up on what it must, and ends the same."""

from __future__ import annotations

import contextlib
import json
import signal
from typing import Any

import pytest
from loopback_job import (
    CIRCUIT_OPEN_STATUS,
    SAVE_EVERY,
    STEPS,
    WORLD_SIZE,
    Job,
    StartJob,
    Store,
    results,
)

from chaoslab.resilience import layout, rendezvous
from chaoslab.resilience.checkpoint import AtomicCheckpointManager
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.store import parse_address

SURVIVORS = [0, 1, 3]
VICTIM = 2


def ends_like(job: Job, twin: list[dict[str, Any]]) -> None:
    """Assert that every rank ends well and that the result is the twin's, bit for bit."""
    assert set(job.until_over().values()) == {0}, job.tell()
    assert results(job) == twin
    assert len(twin) == WORLD_SIZE


def test_two_runs_of_a_seed_give_the_same_result(
    start_job: StartJob, twin: list[dict[str, Any]]
) -> None:
    """The healthy twin: no failure is seen, and all digests are equal."""
    job = start_job()
    ends_like(job, twin)
    assert job.events("failure_seen") == []
    assert [e["status"] for e in job.events("rank_exited")] == [0] * WORLD_SIZE
    assert len({e["parameters"] for e in twin}) == 1
    assert len({e["random_state"] for e in twin}) == WORLD_SIZE


def test_another_seed_gives_another_result(start_job: StartJob, twin: list[dict[str, Any]]) -> None:
    """The comparison can tell runs apart: with another seed every digest differs."""
    job = start_job("examples/charlm.py", "--seed", "1")
    assert set(job.until_over().values()) == {0}
    for other, own in zip(results(job), twin, strict=True):
        for name in ("parameters", "optimizer", "random_state", "sample_order"):
            assert other[name] != own[name]


def test_a_killed_rank_is_replaced_and_the_result_is_the_same(
    start_job: StartJob, store: Store, twin: list[dict[str, Any]]
) -> None:
    """Every survivor notices, all meet in generation 2 at the newest checkpoint, and go on.

    The store forgets generation 1: else a job that recovers often would fill it.
    """
    job = start_job()
    job.until_step(15)
    job.replace(VICTIM)
    ends_like(job, twin)
    assert sorted(e["rank"] for e in job.events("failure_seen")) == SURVIVORS
    assert {e["generation"] for e in job.events("group_ready")} == {1, 2}
    restored = [e["step"] for e in job.events("restored")]
    assert restored == [0] * WORLD_SIZE + [10] * WORLD_SIZE
    with contextlib.closing(StoreClient(*parse_address(store.address))) as client:
        assert client.forget(rendezvous.OF_GENERATIONS, below=2) == 0
        assert client.forget(rendezvous.OF_GENERATIONS, below=3) > 3 * WORLD_SIZE  # and gloo's own
        assert client.num_keys() <= 4


def test_a_kill_in_the_middle_of_a_save_leaves_the_checkpoint_before(
    start_job: StartJob, twin: list[dict[str, Any]]
) -> None:
    """The torn shard is never seen: all resume from the save before, and end the same."""
    hold = json.dumps([{"point": "save", "nth": 2, "at_write": 5}])
    job = start_job(environment={VICTIM: {"CHAOSLAB_HOLD": hold}})
    job.until(lambda: job.events("held", VICTIM), "the hold in the second save")
    found = AtomicCheckpointManager(job.checkpoints, rank=0, world_size=WORLD_SIZE).latest()
    assert found is not None
    assert (found.step, found.refused) == (SAVE_EVERY, ())
    job.replace(VICTIM)
    ends_like(job, twin)
    assert [e["step"] for e in job.events("restored")][WORLD_SIZE:] == [SAVE_EVERY] * WORLD_SIZE
    assert not [p for p in job.checkpoints.iterdir() if layout.is_work(p.name)]


def test_a_peer_lost_during_a_save_is_noticed_before_any_timeout(start_job: StartJob) -> None:
    """Those who wait for the dead rank's shard notice its closed connections, and blame it."""
    hold = json.dumps([{"point": "save", "nth": 1, "at_write": 5}])
    job = start_job(
        "examples/charlm.py", "--timeout-s", "60", environment={VICTIM: {"CHAOSLAB_HOLD": hold}}
    )
    job.until(lambda: job.events("held", VICTIM), "the hold in the first save")
    job.kill(VICTIM)
    job.until(lambda: len(job.events("failure_seen")) == len(SURVIVORS), "all to notice")
    assert VICTIM in {e["blamed_rank"] for e in job.events("failure_seen")}


def test_a_frozen_rank_that_thaws_rejoins(start_job: StartJob, twin: list[dict[str, Any]]) -> None:
    """SIGSTOP: the others time out and wait; the thawed rank finds itself left behind and joins."""
    job = start_job()
    job.until_step(15)
    job.kill(VICTIM, signal.SIGSTOP)
    job.until(lambda: len(job.events("failure_seen")) >= len(SURVIVORS), "survivors to notice")
    job.kill(VICTIM, signal.SIGCONT)
    ends_like(job, twin)
    assert {e["rank"] for e in job.events("failure_seen")} == set(range(WORLD_SIZE))


def test_a_rank_that_never_comes_back_opens_the_circuit(start_job: StartJob) -> None:
    """Every survivor says why and exits with the circuit-open status; nobody hangs."""
    job = start_job("examples/charlm.py", "--patience-s", "2")
    job.until_step(15)
    job.kill(VICTIM)
    statuses = job.until_over(limit_s=20)
    assert [statuses[rank] for rank in SURVIVORS] == [CIRCUIT_OPEN_STATUS] * 3
    opened = job.events("circuit_opened")
    assert {e["rank"] for e in opened} == set(SURVIVORS)
    assert any("[2]" in e["reason"] for e in opened)
    assert {e["status"] for e in job.events("rank_exited")} == {CIRCUIT_OPEN_STATUS}


def test_a_second_kill_during_the_recovery_is_survived(
    start_job: StartJob, twin: list[dict[str, Any]]
) -> None:
    """Another rank dies as soon as the first failure is seen; both come back."""
    job = start_job()
    job.until_step(15)
    job.kill(VICTIM)
    job.until(lambda: job.events("failure_seen"), "the first to notice")
    job.replace(1)
    job.until(lambda: VICTIM in job.reap(), "the killed rank to be gone")
    job.start(VICTIM)
    ends_like(job, twin)


def test_rank_0_has_no_privilege_in_dying(start_job: StartJob, twin: list[dict[str, Any]]) -> None:
    """The rank that commits checkpoints is replaced like any other."""
    job = start_job()
    job.until_step(15, rank=1)
    job.replace(0)
    ends_like(job, twin)


def test_a_rank_killed_after_its_last_step_does_not_strand_the_others(
    start_job: StartJob, twin: list[dict[str, Any]]
) -> None:
    """Killed between the last step and its exit: its replacement still tells the same result."""
    job = start_job()
    job.until_step(STEPS, rank=VICTIM)
    job.replace(VICTIM)
    ends_like(job, twin)


def test_a_frozen_store_does_not_stop_the_training(
    start_job: StartJob, store: Any, twin: list[dict[str, Any]]
) -> None:
    """Steps and saves go on while the store does not answer."""
    job = start_job()
    job.until_step(12)
    store.process.send_signal(signal.SIGSTOP)
    try:
        job.until_step(25)  # saved at 20
    finally:
        store.process.send_signal(signal.SIGCONT)
    ends_like(job, twin)
    assert job.events("failure_seen") == []


def test_an_error_of_the_users_code_is_raised_at_once(start_job: StartJob) -> None:
    """The rank that raises ends with status 1; the others do not wait out their timeout."""
    job = start_job("tests/resilience/raises.py", "--timeout-s", "60", "--patience-s", "2")
    statuses = job.until_over(limit_s=30)
    assert statuses[1] == 1
    assert "ValueError: planted at step 5" in (job.directory / "rank-1.log").read_text()
    assert job.events("failure_seen", rank=1) == []
    assert [statuses[rank] for rank in (0, 2, 3)] == [CIRCUIT_OPEN_STATUS] * 3


def test_a_last_save_that_fails_is_no_success(start_job: StartJob) -> None:
    """Other saves may fail a few times; without the last one the work would be lost in silence."""
    job = start_job("tests/resilience/no_last_save.py")
    statuses = job.until_over()
    assert set(statuses.values()) == {1}
    assert len(job.events("save_failed")) == 2 * WORLD_SIZE
    assert (
        "CheckpointWriteFailed: planted at step 40"
        in (job.directory / f"rank-{VICTIM}.log").read_text()
    )


def test_a_crash_at_the_same_step_opens_the_circuit(start_job: StartJob) -> None:
    """A rank that dies at step 5 in every life is not retried for ever."""
    job = start_job("tests/resilience/raises.py", "--attempts", "2")

    def restart() -> bool:
        for rank, status in list(job.reap().items()):
            if status == 1:
                job.start(rank)
        return CIRCUIT_OPEN_STATUS in job.statuses.values()

    job.until(restart, "the circuit to open")
    assert any("without 10 new steps" in e["reason"] for e in job.events("circuit_opened"))


def test_peers_that_come_but_cannot_connect_are_not_absent(
    start_job: StartJob, twin: list[dict[str, Any]]
) -> None:
    """The patience is for ranks that do not come: on a lossy link they come, and try again."""
    job = start_job("tests/resilience/cannot_connect.py", "--patience-s", "3")
    job.until_step(12)
    job.replace(VICTIM)
    ends_like(job, twin)
    failed = [e for e in job.events("failure_seen") if "planted" in e["message"]]
    assert len({e["generation"] for e in failed}) == 3  # 4.5 s in all
    assert max(e["wait_s"] for e in job.events("backoff")) <= 3 / 4  # the rest is for meeting


def test_peers_that_never_connect_open_the_circuit_by_their_number(start_job: StartJob) -> None:
    """They are not tried for ever either."""
    job = start_job("tests/resilience/cannot_connect.py", "--patience-s", "3", "--attempts", "2")
    job.until_step(12)
    job.replace(VICTIM)
    statuses = job.until_over()
    assert set(statuses.values()) == {CIRCUIT_OPEN_STATUS}
    assert any("without 10 new steps" in e["reason"] for e in job.events("circuit_opened"))


@pytest.mark.parametrize("keep", [1, 2])
def test_a_corrupt_newest_checkpoint_costs_one_save_interval(
    start_job: StartJob, twin: list[dict[str, Any]], keep: int
) -> None:
    """With two kept all resume from the one before; with one they start afresh; same result."""
    job = start_job("examples/charlm.py", "--keep", str(keep))
    job.until(lambda: len(job.events("save_committed")) >= 2 * WORLD_SIZE, "the second save")
    job.kill(VICTIM)
    job.until(lambda: VICTIM in job.reap(), "the killed rank to be gone")
    newest = max(path for path in job.checkpoints.iterdir() if path.name.startswith("step-"))
    (newest / "rank-00002.pt").write_bytes(b"torn")
    job.start(VICTIM)
    ends_like(job, twin)
    last = job.events("restored", VICTIM)[-1]
    step = int(newest.name.split("-")[1])
    assert last["step"] == (step - SAVE_EVERY if keep == 2 else 0)
    assert any("rank-00002.pt has 4 bytes" in reason for reason in last["refused"])
