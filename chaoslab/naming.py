"""Names of runs and scenarios, and the command that replays one."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import time
from pathlib import Path

from chaoslab.options import Options
from chaoslab.scenario import Scenario


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
    """Give the command that runs the present test again in the same way."""
    test = test_id()
    if not test:
        return ""
    parts = ["pytest", test, f"--chaos-seed={options.seed}"]
    if options.kernel != "auto":
        parts.append(f"--chaos-kernel={options.kernel}")
    return shlex.join(parts)
