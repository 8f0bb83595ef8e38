"""The nightly mark, for tests and scenarios alike: what takes minutes runs with --nightly."""


def pytest_addoption(parser):
    parser.addoption("--nightly", action="store_true", help="run the tests that take minutes too")


def pytest_collection_modifyitems(config, items):
    """Leave the tests that take minutes to the night."""
    if config.getoption("--nightly"):
        return
    left_out = [item for item in items if item.get_closest_marker("nightly")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
