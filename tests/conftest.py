"""What all tests share: their order, and how properties are tested."""

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

from tests.host import host_state

# No deadline and no check of speed: a machine that is busy is not a defect of the code.
settings.register_profile(
    "chaoslab",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
)
settings.load_profile("chaoslab")


@pytest.fixture(autouse=True)
def forgotten_reports():
    """Forget the runs that a test made on purpose: they are not results of the suite."""
    yield
    runner = sys.modules.get("chaoslab.runner")
    if runner is not None:
        runner.SESSION.reports.clear()


@pytest.fixture(scope="session", autouse=True)
def untouched_host():
    """Compare the host's network and mounts before everything and after everything."""
    before = host_state()
    yield
    assert host_state() == before


FAST_FIRST = ("values", "measure", "bounds", "report", "cluster", "agent", "resilience", "inject")


def pytest_collection_modifyitems(items):
    """Put the fast tests first."""
    place = {name: nth for nth, name in enumerate(FAST_FIRST)}
    items.sort(key=lambda item: place.get(item.path.parent.name, len(place)))
