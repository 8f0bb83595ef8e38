"""The pytest plugin: options, the choice of the kernel, the table at the end.

Loaded by entry point. It does nothing in a session none of whose tests uses chaoslab.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.runner import runtestprotocol  # no public way to run a test without logging it

from chaoslab import kernel_choice
from chaoslab.cluster.scratch import locked_directory
from chaoslab.errors import ChaoslabError, NeedsNetem
from chaoslab.naming import ROOT
from chaoslab.options import BACKENDS, KERNELS

_RERUN: Final = pytest.StashKey[list[str]]()
_GUEST_STATUS: Final = pytest.StashKey[int]()
_GUEST_JUNIT: Final = pytest.StashKey[bytes]()
_NEEDS_NETEM: Final = pytest.StashKey[str]()
_SAVED: Final = pytest.StashKey[dict[str, str | None]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the --chaos-* options; each sets the environment variable of the same name."""
    group = parser.getgroup("chaoslab", "breaking distributed jobs")
    group.addoption("--chaos-backend", choices=BACKENDS, help="what a node is")
    group.addoption(
        "--chaos-image",
        metavar="NAME",
        help="image of the training containers; host: this machine's own files",
    )
    group.addoption(
        "--chaos-kernel",
        choices=KERNELS,
        help="where netem comes from: host, uml (user-mode Linux), or auto (uml where need be)",
    )
    group.addoption("--chaos-seed", type=int, help="draws one_rank() and ranks(k)")
    group.addoption("--chaos-reports", metavar="DIR", help="where each run's report goes")
    group.addoption("--chaos-repeat", type=int, help="runs of each scenario; each must pass")


def pytest_configure(config: pytest.Config) -> None:
    """Pass the options on as environment variables, which `chaoslab.run` reads."""
    config.addinivalue_line(
        "markers", "netem(needed=True): whether the test needs netem (chaoslab picks the kernel)"
    )
    saved: dict[str, str | None] = {}
    for name in ("backend", "image", "kernel", "seed", "reports", "repeat"):
        value = config.getoption(f"chaos_{name}")
        if value is not None:
            variable = f"CHAOS_{name.upper()}"
            saved[variable] = os.environ.get(variable)
            os.environ[variable] = str(value)
    saved[ROOT] = os.environ.get(ROOT)
    os.environ[ROOT] = str(config.rootpath)
    config.stash[_SAVED] = saved


def pytest_unconfigure(config: pytest.Config) -> None:
    """Put the environment back as it was."""
    for variable, value in config.stash.get(_SAVED, {}).items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Set apart the tests that need netem where this kernel has none.

    Raises: pytest.UsageError with the mending command where nothing here has netem.
    """
    if kernel_choice.in_guest():
        kept = kernel_choice.kept_in_guest()
        lost = kept - {item.nodeid for item in items}
        if lost:
            raise pytest.UsageError(f"not found under user-mode Linux: {', '.join(sorted(lost))}")
        items[:] = [item for item in items if item.nodeid in kept]
        return
    if config.option.collectonly:
        return
    try:
        moved = kernel_choice.tests_for_the_guest(items)
    except ChaoslabError as problem:
        raise pytest.UsageError(str(problem)) from problem
    if moved and hasattr(config, "workerinput"):
        raise pytest.UsageError(
            "tests that need netem cannot be spread by pytest-xdist where this kernel has none: "
            "run them without -n"
        )
    config.stash[_RERUN] = [item.nodeid for item in moved]
    items[:] = [item for item in items if item not in moved]


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Run the tests that stay here, then the others by the same command in the guest."""
    result = yield
    moved = session.config.stash.get(_RERUN, None)
    if moved:
        _run_in_guest(session, moved)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> object:
    """Move a test to the guest when its run says that it needs netem: nothing had started yet.

    Where a module's scenarios are made inside its tests, they are known only then.
    """
    config = item.config
    if not kernel_choice.may_move(item) or hasattr(config, "workerinput"):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if config.stash.get(_NEEDS_NETEM, None) == item.nodeid:
        config.stash.setdefault(_RERUN, []).append(item.nodeid)
    else:
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note a test that was refused for want of netem."""
    if call.excinfo is not None and call.excinfo.errisinstance(NeedsNetem):
        item.config.stash[_NEEDS_NETEM] = item.nodeid
    return (yield)


def _run_in_guest(session: pytest.Session, moved: list[str]) -> None:
    config = session.config
    tests = "1 test needs" if len(moved) == 1 else f"{len(moved)} tests need"
    where = "which this kernel has not: under user-mode Linux, by the same command"
    _say(config, f"{tests} netem, {where}:")
    runner = importlib.import_module("chaoslab.runner")
    with locked_directory("guest") as directory, _uncaptured(config):
        runner.SESSION.guard(directory)
        told, junit = directory / "reports", directory / "junit.xml"
        # With tests on both kernels there is one table, and one JUnit file, of this process.
        mixed = bool(session.items)
        extra = [f"--junitxml={junit}"] if mixed and config.getoption("xmlpath", None) else []
        try:
            status = kernel_choice.rerun(
                config.invocation_params.args, moved, str(told) if mixed else None, extra
            )
        except ChaoslabError as problem:
            raise pytest.UsageError(str(problem)) from problem
        runner.SESSION.reports += kernel_choice.reports_of_guest(told)
        config.stash[_GUEST_JUNIT] = junit.read_bytes() if junit.exists() else b""
    config.stash[_GUEST_STATUS] = status
    if not session.items:
        _silence(config)


def _uncaptured(config: pytest.Config) -> contextlib.AbstractContextManager[None]:
    """Let a child write to the terminal that pytest otherwise keeps for itself."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    return contextlib.nullcontext() if capture is None else capture.global_and_fixture_disabled()


def _say(config: pytest.Config, text: str) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(f"\nchaoslab: {text}")
    sys.stdout.flush()


def _silence(config: pytest.Config) -> None:
    """Leave the last word to the guest's pytest, which ran every test that there is."""
    manager = config.pluginmanager
    for plugin in manager.get_plugins():
        if type(plugin).__name__ in ("TerminalReporter", "LogXML"):
            manager.unregister(plugin)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the warm server, and take over the guest's exit status where it is the worse one."""
    runner = sys.modules.get("chaoslab.runner")
    if runner is not None:
        runner.SESSION.close()
    if session.exitstatus == pytest.ExitCode.INTERRUPTED and kernel_choice.in_guest():
        _leave_hypothesis_out(session.config)
    guest = session.config.stash.get(_GUEST_STATUS, None)
    suites = session.config.stash.get(_GUEST_JUNIT, b"")
    if suites:
        place = Path(os.path.expandvars(session.config.option.xmlpath)).expanduser()
        kernel_choice.add_suites(place, suites)
    if guest is not None and (guest != 0 or not session.items):
        own = int(session.exitstatus)
        if own in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = guest


def _leave_hypothesis_out(config: pytest.Config) -> None:
    """Leave out a summary that imports Hypothesis first: seconds in the guest, after Ctrl-C.

    Source: pytest_terminal_summary of _hypothesis_pytestplugin.py, hypothesis 6.
    """
    plugin = config.pluginmanager.get_plugin("hypothesispytest")
    if plugin is not None and "hypothesis" not in sys.modules:
        config.pluginmanager.unregister(plugin)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table of scenarios, and how the tests in the guest went."""
    _print_table(terminalreporter)
    stash = terminalreporter.config.stash
    if _GUEST_STATUS in stash:
        status, count = stash[_GUEST_STATUS], len(stash[_RERUN])
        tests = "1 test" if count == 1 else f"{count} tests"
        told = f"{tests} ran under user-mode Linux, exit status {int(status)}"
        terminalreporter.write_line(f"{told}: their results stand above, not in the line below")


def _print_table(terminalreporter: Any) -> None:
    runner = sys.modules.get("chaoslab.runner")
    if runner is None or not runner.SESSION.reports:
        return
    if kernel_choice.tell_host(runner.SESSION.reports):
        return
    from chaoslab.report import terminal_table  # noqa: PLC0415  only where scenarios ran

    terminalreporter.section("chaoslab")
    terminalreporter.write_line(terminal_table(runner.SESSION.reports))
