"""The choice of the kernel: which tests run here, which under user-mode Linux."""

from __future__ import annotations

import ast
import inspect
import json
import os
import pickle
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

from chaoslab import kernel, platforms
from chaoslab.errors import HarnessError, NotAvailable
from chaoslab.options import from_environment

if TYPE_CHECKING:
    import pytest

IN_GUEST: Final = "CHAOSLAB_IN_UML"
_KEPT: Final = "CHAOSLAB_TESTS"
_TOLD: Final = "CHAOSLAB_GUEST_REPORTS"
_MARKER: Final = "netem"


def tell_host(reports: Sequence[object]) -> bool:
    """Hand the guest's reports to the pytest outside, which prints one table of all.

    Returns whether there is one that wants them.
    """
    told = os.environ.get(_TOLD)
    if told is None:
        return False
    try:
        data = pickle.dumps(list(reports))
    except Exception:  # noqa: BLE001  a bound of the user's own need not be picklable
        return False
    Path(told).write_bytes(data)
    return True


def reports_of_guest(file: Path) -> list[object]:
    """Read what the guest has handed over. It is a file of this process's own making."""
    data = file.read_bytes() if file.exists() else b""
    return list(pickle.loads(data)) if data else []  # noqa: S301


def add_suites(junit: Path, of_guest: bytes) -> None:
    """Add the guest's test suites to the host's JUnit file, so that it holds every test.

    Raises: HarnessError when either file is not what pytest writes.
    """
    try:
        whole = ET.parse(junit)  # noqa: S314  a file of this process's own making
        for suite in ET.fromstring(of_guest).iter("testsuite"):  # noqa: S314  same
            whole.getroot().append(suite)
    except (OSError, ET.ParseError) as problem:
        raise HarnessError(f"{junit}: the guest's tests cannot be added: {problem}") from problem
    whole.write(junit, encoding="utf-8", xml_declaration=True)


def in_guest() -> bool:
    """Tell whether this pytest was started inside user-mode Linux by another one."""
    return os.environ.get(IN_GUEST) == "1" and _KEPT in os.environ


def kept_in_guest() -> frozenset[str]:
    """Give the ids of the tests that this pytest was started for."""
    return frozenset(json.loads(os.environ[_KEPT]))


def tests_for_the_guest(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Give the tests that must run under user-mode Linux.

    Raises: NotAvailable when they must and cannot, with the command that mends it.
    """
    users = [item for item in items if uses_chaoslab(item)]
    if not users or os.environ.get(IN_GUEST) == "1":
        return []
    options = from_environment()
    choice = options.kernel
    if choice == "host" or (choice == "auto" and options.backend == "docker"):
        return []  # the engine's kernel counts, and no engine of this machine answers in the guest
    moved = users if choice == "uml" else [item for item in users if needs_netem(item)]
    if not moved:
        return []
    host = kernel.host_has_netem()
    if choice == "auto" and host.available:
        return []
    guest = kernel.user_mode_linux()
    if not guest.available:
        raise NotAvailable(
            f"{len(moved)} tests need netem; this kernel: {host.reason}: "
            f"{platforms.mending('netem', platforms.of_this_machine())}; "
            f"user-mode Linux: {guest.reason}"
        )
    return moved


def uses_chaoslab(item: pytest.Item) -> bool:
    """Tell whether a test runs scenarios, or is marked as one that needs netem."""
    return item.get_closest_marker(_MARKER) is not None or _runs_scenarios(item)


def needs_netem(item: pytest.Item) -> bool:
    """Tell whether a test needs netem, by its marker or by the scenarios of its module.

    @pytest.mark.netem says that it does, @pytest.mark.netem(needed=False) that it does not.

    Of a module that calls `run` and names no scenario it is not known: see `may_move`.
    """
    marker = item.get_closest_marker(_MARKER)
    if marker is not None:
        return bool(marker.kwargs.get("needed", True))
    if not _runs_scenarios(item):
        return False
    return any("netem" in scenario.needs for scenario in _scenarios(item))


def may_move(item: pytest.Item) -> bool:
    """Tell whether a test is to be moved once its run says that it needs netem."""
    if os.environ.get(IN_GUEST) == "1" or from_environment().kernel != "auto":
        return False
    if item.get_closest_marker(_MARKER) is not None:
        return False
    # A fixture may call `run`, too; then its module has loaded it.
    if not _runs_scenarios(item) and "chaoslab.runner" not in sys.modules:
        return False
    return bool(kernel.user_mode_linux().available)


def _runs_scenarios(item: pytest.Item) -> bool:
    """Tell whether a test's module imports `run`, or calls it as `chaoslab.run`."""
    runner = sys.modules.get("chaoslab.runner")
    if runner is not None and any(value is runner.run for value in _module_values(item)):
        return True
    module = getattr(item, "module", None)
    if not any(value is sys.modules.get("chaoslab") for value in _module_values(item)):
        return False
    names = {name for name, value in vars(module).items() if value is sys.modules["chaoslab"]}
    return _calls_run(module, names)


def _calls_run(module: ModuleType | None, names: set[str]) -> bool:
    """Tell whether `<one of names>.run` stands in a module's source."""
    try:
        tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]
    except (OSError, TypeError, SyntaxError):
        return True  # unknown: a test that need not move is only slower there
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "run"
        and isinstance(node.value, ast.Name)
        and node.value.id in names
        for node in ast.walk(tree)
    )


def _scenarios(item: pytest.Item) -> Iterable[Any]:
    from chaoslab.scenario import Scenario  # noqa: PLC0415  loaded already where it matters

    return (value for value in _module_values(item) if isinstance(value, Scenario))


def _module_values(item: pytest.Item) -> list[Any]:
    return list(vars(getattr(item, "module", None) or object).values())


def rerun(
    args: Sequence[str | os.PathLike[str]],
    tests: Sequence[str],
    told: str | None,
    extra: Sequence[str] = (),
) -> int:
    """Run the same pytest command under user-mode Linux, for these tests.

    told: file that the guest hands its reports over in (None: it prints its own table). extra:
    arguments that override the command's. Returns the command's exit status.
    """
    environment = dict(os.environ) | {_KEPT: json.dumps(list(tests))}
    if told is not None:
        environment[_TOLD] = told
    if sys.stdout.isatty():
        environment.setdefault("FORCE_COLOR", "1")
    argv = [sys.executable, "-m", "pytest", *(os.fspath(arg) for arg in args), *extra]
    return kernel.run_in_uml(argv, cwd=Path.cwd(), env=environment)
