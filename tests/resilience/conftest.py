"""What the tests of resilience share: a store, a job's launcher, an unfaulted run to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from loopback_job import REPOSITORY, Job, Store

from chaoslab.resilience import preload
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.store import parse_address

WORLD_SIZE = 4
STEPS = 40
SAVE_EVERY = 10

StartJob = Callable[..., Job]


@pytest.fixture
def store() -> Iterator[Store]:
    """Run a store process."""
    running = Store()
    yield running
    running.close()


@pytest.fixture
def client(store: Store) -> Iterator[StoreClient]:
    """Connect to the store."""
    connected = StoreClient(*parse_address(store.address), timeout_s=5)
    yield connected
    connected.close()


@pytest.fixture(scope="session")
def warmed() -> None:
    """Import torch in this process once, so that forked ranks start at once."""
    preload.warm()


@pytest.fixture
def start_job(tmp_path: Path, store: Store, warmed: None) -> Iterator[StartJob]:  # noqa: ARG001
    """Give a function that starts a job; all of it is killed after the test."""
    jobs: list[Job] = []

    def start(
        script: str = "examples/charlm.py",
        *arguments: str,
        environment: dict[int, dict[str, str]] | None = None,
    ) -> Job:
        job = make_job(tmp_path, store, script, *arguments)
        job.environment = environment or {}
        jobs.append(job)
        job.start()
        return job

    yield start
    for job in jobs:
        job.close()


def make_job(directory: Path, store: Store, script: str, *arguments: str) -> Job:
    """Describe a job of the usual size; later arguments override the usual ones."""
    usual = ["--steps", str(STEPS), "--save-every", str(SAVE_EVERY), "--timeout-s", "3"]
    return Job(
        REPOSITORY / script,
        directory,
        store.address,
        world_size=WORLD_SIZE,
        arguments=[*usual, *arguments],
    )


@pytest.fixture(scope="session")
def twin(tmp_path_factory: pytest.TempPathFactory, warmed: None) -> list[dict[str, Any]]:  # noqa: ARG001
    """Run the usual job without faults once; give its results."""
    running = Store()
    job = make_job(tmp_path_factory.mktemp("twin"), running, "examples/charlm.py")
    try:
        job.start()
        statuses = job.until_over()
        assert set(statuses.values()) == {0}, job.tell()
        return results(job)
    finally:
        job.close()
        running.close()


def results(job: Job) -> list[dict[str, Any]]:
    """Give what each rank told at its end, less what may differ: time and incarnation."""
    told = sorted(job.events("result"), key=lambda event: event["rank"])
    return [{k: v for k, v in event.items() if k not in ("t_s", "incarnation")} for event in told]
