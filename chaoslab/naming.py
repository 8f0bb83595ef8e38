"""Names of runs and scenarios, and the command that replays one."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import sys
import time
from pathlib import Path
from typing import Final

from chaoslab.options import Options
from chaoslab.scenario import Scenario

ROOT: Final = "CHAOSLAB_PYTEST_ROOT"
"""Environment variable by which the pytest plugin tells pytest's root directory."""


def test_id() -> str:
    """Give the id of the pytest test that runs now, or an empty string."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]


def scenario_name(scenario: Scenario) -> str:
    """Name a scenario: its own name, else its test's, else its script's."""
    named = scenario.name or test_id().rpartition("::")[2].removeprefix("test_")
    return named or Path(scenario.job.script).name


def new_run_id(name: str) -> str:
    """Make a run's id: time, scenario, and four random digits. Wall time only labels it."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "run"
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{slug}-{secrets.token_hex(2)}"


def replay_command(options: Options) -> str:
    """Give the command that runs the present test again in the same way, from the same place."""
    test = test_id()
    if not test:
        return ""
    file, colons, rest = test.partition("::")
    root = os.environ.get(ROOT)
    if root is not None:  # ids are relative to pytest's root directory, not to where it runs
        file = _from_here(Path(root) / file)
    parts = [_from_here(Path(sys.executable)), "-m", "pytest", f"{file}{colons}{rest}"]
    parts.append(f"--chaos-seed={options.seed}")
    if options.backend != Options().backend:
        parts.append(f"--chaos-backend={options.backend}")
    if options.image:
        parts.append(f"--chaos-image={options.image}")
    if options.kernel != "auto":
        parts.append(f"--chaos-kernel={options.kernel}")
    if options.reports != Options().reports:
        parts.append(f"--chaos-reports={options.reports}")
    return f"cd {shlex.quote(str(Path.cwd()))} && {shlex.join(parts)}"


def _from_here(path: Path) -> str:
    """Give a path relative to the working directory where it lies below that."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
