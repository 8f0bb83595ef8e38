"""The choice of the kernel: which tests move, one JUnit file, and the end of a moved run."""

import os
import signal
import subprocess
import sys
import types
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from chaoslab import kernel, kernel_choice
from tests.kernel.conftest import (
    LIMIT_S,
    ROOT,
    alive,
    descendants,
    environment,
    leavings,
    wait_until,
)

CLEAN_LIMIT_S = 5.0
HAS_NETEM = kernel.host_has_netem().available
MIXED = """
import os
import pytest

def under_uml():
    return os.environ.get("CHAOSLAB_IN_UML") == "1"

@pytest.mark.netem
def test_moved():
    assert under_uml()

@pytest.mark.netem
def test_moved_and_broken():
    assert not under_uml()

def test_stays():
    assert not under_uml()
"""
INSIDE = """
import os
import pytest
from chaoslab import Injection, InvalidScenario, Job, NotProven, Scenario
from chaoslab import at_step, bounds, faults, node, run

@pytest.mark.parametrize("fault", [faults.Delay(delay_s=0.1), faults.Stop(duration_s=0.1)])
def test_made_inside(fault):
    netem = isinstance(fault, faults.Delay)
    try:
        run(Scenario(
            job=Job(script="tests/trainers/counter.py", nodes=1, steps=3, warm=False),
            schedule=[Injection(fault=fault, on=node(0), at=at_step(2))],
            bounds=[bounds.finishes()],
        ))
    except NotProven:
        pass
    assert (os.environ.get("CHAOSLAB_IN_UML") == "1") == netem
"""
SCENARIO = """
from chaoslab import Injection, Job, Scenario, at_step, bounds, faults, node, run

SLOW = Scenario(
    job=Job(script="tests/trainers/counter.py", nodes=2, steps=100000,
            args=("--step-s", "0.05", "--touch", {touched!r})),
    schedule=[Injection(fault=faults.Delay(delay_s=0.1), on=node(1), at=at_step(2))],
    bounds=[bounds.recovers_within(30)],
)

def test_slow():
    run(SLOW)
"""


def pytest_command(file: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c",
            str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}", str(file), *options]  # fmt: skip


def ran(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on a file, to its end."""
    return subprocess.run(
        pytest_command(file, *options),
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.skipif(
    kernel.host_has_netem().available,
    reason="NotAvailable: this kernel has netem, so no test moves",
)
def test_tests_on_both_kernels_make_one_result(tmp_path) -> None:
    """Each runs where it must; exit status, output and the JUnit file hold those of both."""
    file, junit = tmp_path / "test_mixed.py", tmp_path / "junit.xml"
    file.write_text(MIXED)
    done = ran(file, f"--junitxml={junit}", "--chaos-kernel=auto")
    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 passed" in done.stdout
    assert "2 tests ran under user-mode Linux, exit status 1" in done.stdout
    results = {
        case.get("name"): case.find("failure") is not None
        for case in ET.parse(junit).iter("testcase")
    }
    assert results == {"test_moved": False, "test_moved_and_broken": True, "test_stays": False}
    suites = ET.parse(junit).getroot().findall("testsuite")
    assert sum(int(suite.get("tests", "0")) for suite in suites) == 3


@pytest.mark.skipif(
    kernel.host_has_netem().available,
    reason="NotAvailable: this kernel has netem, so no test moves",
)
def test_a_scenario_made_inside_its_test_moves_only_when_it_needs_netem(tmp_path) -> None:
    """What a test needs is known when it runs: the one with netem is run again in the guest."""
    file = tmp_path / "test_inside.py"
    file.write_text(INSIDE)
    done = ran(file, f"--chaos-reports={tmp_path / 'reports'}", "--chaos-kernel=auto")
    assert done.returncode == 0, done.stdout
    assert "1 test ran under user-mode Linux, exit status 0" in done.stdout
    assert done.stdout.count("1 passed") == 2, done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
def test_a_scenario_under_it_ends_with_its_pytest(tmp_path, number) -> None:
    """SIGKILL or SIGINT of pytest while a scenario runs in the guest: nothing is left."""
    touched, file, reports = tmp_path / "touched", tmp_path / "test_slow.py", tmp_path / "reports"
    file.write_text(SCENARIO.format(touched=str(touched)))
    process = subprocess.Popen(
        pytest_command(file, "--chaos-kernel=uml", f"--chaos-reports={reports}"),
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        wait_until(
            lambda: touched.exists() or process.poll() is not None, "a step in the guest", LIMIT_S
        )
        assert process.poll() is None, process.stdout and process.stdout.read().decode()
        family = descendants(process.pid)
        assert len(family) > 3
        os.kill(process.pid, number)
        took_s = wait_until(
            lambda: not alive(family) and not leavings(process), "the guest to end", LIMIT_S
        )
        process.communicate(timeout=LIMIT_S)
    finally:
        if process.poll() is None:
            process.kill()
    assert took_s < CLEAN_LIMIT_S
    assert not list(reports.glob(".*")), "a half-written report"
    assert not list(Path("/tmp").glob(f"chaoslab-guest-*{process.pid}*"))


def item_of(tmp_path: Path, text: str) -> types.SimpleNamespace:
    """Give what the choice looks at: a test's module and its marker."""
    file = tmp_path / "written.py"
    file.write_text(text)
    module = types.ModuleType("written")
    module.__file__ = str(file)
    exec(compile(text, str(file), "exec"), vars(module))
    return types.SimpleNamespace(module=module, get_closest_marker=lambda _: None)


LOSS = """
S = {prefix}Scenario(
    job={prefix}Job(script="x.py", nodes=2, steps=9),
    schedule=[{prefix}Injection(
        fault={prefix}faults.PacketLoss(ratio=0.1), on={prefix}node(1), at={prefix}at_step(2),
    )],
    bounds=[{prefix}bounds.recovers_within(9)],
)
"""
DROP = LOSS.replace("PacketLoss(ratio=0.1)", "SilentDrop()")
NAMED = """
from chaoslab import Injection, Job, Scenario, at_step, bounds, faults, node, run
"""
CALL = "def test_it():\n    {prefix}run(S)\n"


@pytest.mark.parametrize(
    ("text", "uses", "needs"),
    [
        (NAMED + LOSS.format(prefix="") + CALL.format(prefix=""), True, True),
        (NAMED + DROP.format(prefix="") + CALL.format(prefix=""), True, False),
        ("import chaoslab\n" + (LOSS + CALL).format(prefix="chaoslab."), True, True),
        ("import chaoslab\n" + (DROP + CALL).format(prefix="chaoslab."), True, False),
        ("import chaoslab as c\n" + (LOSS + CALL).format(prefix="c."), True, True),
        ("import chaoslab\n" + CALL.format(prefix="chaoslab."), True, False),
        ("import chaoslab\n\ndef test_it():\n    chaoslab.Job\n", False, False),
        ("def test_it():\n    pass\n", False, False),
    ],
    ids=["run", "run-drop", "dotted", "dotted-drop", "as", "drawn", "no-run", "foreign"],
)
def test_a_module_is_read_for_what_it_runs(tmp_path, text, uses, needs) -> None:
    """However a module names `run`, its tests move when their scenarios need netem."""
    item = item_of(tmp_path, text)
    assert kernel_choice.uses_chaoslab(item) is uses
    assert kernel_choice.needs_netem(item) is needs
