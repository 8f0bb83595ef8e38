"""Each defective twin trains when nothing goes wrong, and has its defect when something does."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest
from loopback_job import CIRCUIT_OPEN_STATUS, WORLD_SIZE, StartJob, results

pytestmark = pytest.mark.nightly

TRAINERS = "tests/trainers"
SURVIVORS = [0, 1, 3]
VICTIM = 2


@pytest.mark.parametrize(
    "name", ["no_timeout", "no_backoff", "no_breaker", "in_place_save", "fragile"]
)
def test_a_defective_trainer_works_when_nothing_goes_wrong(
    name: str, start_job: StartJob, twin: list[dict[str, Any]]
) -> None:
    """Without faults its result is the healthy trainer's, bit for bit."""
    job = start_job(f"{TRAINERS}/{name}.py")
    assert set(job.until_over().values()) == {0}, job.tell()
    assert results(job) == twin


def test_no_timeout_does_not_notice_a_silent_peer(start_job: StartJob) -> None:
    """Well past the healthy trainer's limit nobody has seen a failure; it just goes on later."""
    job = start_job(f"{TRAINERS}/no_timeout.py", "--timeout-s", "1")
    job.until_step(15)
    job.kill(VICTIM, signal.SIGSTOP)
    stopped_s = time.monotonic()
    job.until(lambda: time.monotonic() > stopped_s + 3, "three times the limit")
    assert job.events("failure_seen") == []
    job.kill(VICTIM, signal.SIGCONT)
    assert set(job.until_over().values()) == {0}, job.tell()


def test_no_breaker_waits_on(start_job: StartJob) -> None:
    """Past the patience it was given it has not opened its circuit, and still takes a rank back."""
    job = start_job(f"{TRAINERS}/no_breaker.py", "--patience-s", "1")
    job.until_step(15)
    killed_s = job.kill(VICTIM)
    job.until(lambda: time.monotonic() > killed_s + 3, "three times the patience")
    assert job.events("circuit_opened") == []
    assert all(rank not in job.reap() for rank in SURVIVORS)
    job.start(VICTIM)
    assert set(job.until_over().values()) == {0}, job.tell()


def test_no_backoff_hammers_the_store(start_job: StartJob) -> None:
    """While a rank is away the others retry a hundred times, with waits of 0 s."""
    job = start_job(f"{TRAINERS}/no_backoff.py")
    job.until_step(15)
    job.kill(VICTIM)
    job.until(lambda: len(job.events("backoff")) > 100 * len(SURVIVORS), "the storm")
    assert {event["wait_s"] for event in job.events("backoff")} == {0.0}
    job.until(lambda: VICTIM in job.reap(), "the killed rank to be gone")
    job.start(VICTIM)
    assert set(job.until_over().values()) == {0}, job.tell()


def test_in_place_save_loses_what_it_acknowledged(
    start_job: StartJob, twin: list[dict[str, Any]]
) -> None:
    """Killed in the middle of rank 0's second save, the job starts again at step 0."""
    hold = json.dumps([{"point": "save", "nth": 2, "at_ratio": 0.5}])
    job = start_job(f"{TRAINERS}/in_place_save.py", environment={0: {"CHAOSLAB_HOLD": hold}})
    job.until(lambda: job.events("held", 0), "the hold in the second save")
    assert [event["step"] for event in job.events("save_committed")] == [10]
    job.kill(0)
    job.until(lambda: 0 in job.reap(), "the killed rank to be gone")
    job.start(0)
    assert set(job.until_over().values()) == {0}, job.tell()
    assert [event["step"] for event in job.events("restored")] == [0] * 2 * WORLD_SIZE
    assert results(job) == twin  # a job that redoes everything ends the same: lost, not wrong


def test_in_place_save_resumes_when_the_file_is_whole(
    start_job: StartJob, twin: list[dict[str, Any]]
) -> None:
    """Killed between saves it resumes from the acknowledged step: the defect is the overwriting."""
    job = start_job(f"{TRAINERS}/in_place_save.py")
    job.until_step(15)
    job.kill(VICTIM)
    job.until(lambda: VICTIM in job.reap(), "the killed rank to be gone")
    job.start(VICTIM)
    assert set(job.until_over().values()) == {0}, job.tell()
    assert results(job) == twin
    assert job.events("restored")[-1]["step"] == 10


def test_fragile_dies_of_the_first_lost_peer(start_job: StartJob) -> None:
    """Every survivor ends with status 1, without recovering and without opening a circuit."""
    job = start_job(f"{TRAINERS}/fragile.py")
    job.until_step(15)
    job.kill(VICTIM)
    statuses = job.until_over()
    assert [statuses[rank] for rank in SURVIVORS] == [1, 1, 1]
    assert CIRCUIT_OPEN_STATUS not in statuses.values()
    assert len(job.events("failure_seen")) == len(SURVIVORS)
