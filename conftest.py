"""The nightly mark, for tests and scenarios alike: what takes minutes runs with --nightly."""

from pathlib import Path


def pytest_addoption(parser):
    parser.addoption("--nightly", action="store_true", help="run the tests that take minutes too")


def pytest_collection_modifyitems(config, items):
    """Leave the tests that take minutes to the night, but those that the command names."""
    if config.getoption("--nightly"):
        return
    here = config.invocation_params.dir
    named = [_split(Path(here), argument) for argument in config.args if "::" in argument]
    left_out = [
        item
        for item in items
        if item.get_closest_marker("nightly") and not any(_is(item, one) for one in named)
    ]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _split(here, argument):
    file, _, test = argument.partition("::")
    return (here / file).resolve(), test


def _is(item, named):
    file, test = named
    own = item.nodeid.partition("::")[2]
    return item.path == file and (own == test or own.startswith((f"{test}[", f"{test}::")))
