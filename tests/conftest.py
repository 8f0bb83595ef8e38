"""What all tests share: their order, and the nightly mark."""

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

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


def pytest_addoption(parser):
    parser.addoption("--nightly", action="store_true", help="run the tests that take minutes too")


FAST_FIRST = ("values", "measure", "bounds", "report", "cluster", "agent", "resilience", "inject")


def pytest_collection_modifyitems(config, items):
    """Put the fast tests first; leave the ones that take minutes to the night."""
    place = {name: nth for nth, name in enumerate(FAST_FIRST)}
    items.sort(key=lambda item: place.get(item.path.parent.name, len(place)))
    if config.getoption("--nightly"):
        return
    left_out = [item for item in items if item.get_closest_marker("nightly")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
