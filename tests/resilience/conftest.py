"""What the tests of resilience share: a store, a job's launcher, a run without faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loopback_job import Job, StartJob, Store, make_job, results

from chaoslab.resilience import preload
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.store import parse_address


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
