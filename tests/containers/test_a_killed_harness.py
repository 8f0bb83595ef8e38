"""SIGKILL of pytest in mid-run: no container goes on, and the rest is found and removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from docker_lab import REPOSITORY, everything

from chaoslab.cluster.containers import identity, leftovers
from chaoslab.cluster.containers.engine import Engine, labels
from chaoslab.cluster.containers.recipes import create_volume

RUNNING_LIMIT_S = 120.0
GONE_LIMIT_S = 10.0
SCENARIO = """
from chaoslab import Job, Scenario, bounds, run
LONG = Scenario(
    job=Job(script="{script}", nodes=2, steps=100000, args=("--step-floor-s", "0.05")),
    schedule=[], bounds=[bounds.finishes()],
)
def test_long():
    run(LONG)
"""


def running(engine: Engine) -> list[str]:
    """Name the containers of chaoslab that run."""
    return [c["Id"] for c in engine.api.containers(filters={"label": ["org.chaoslab=1"]})]


def test_no_container_outlives_a_killed_harness(engine: Engine, tmp_path: Path) -> None:
    """Ten seconds after SIGKILL none runs; cleanup removes network and volumes, and says so."""
    test = tmp_path / "test_long.py"
    test.write_text(SCENARIO.format(script=REPOSITORY / "examples" / "charlm.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    chosen = ["--chaos-backend=docker", "--chaos-image=host", f"--chaos-reports={tmp_path}"]
    process = subprocess.Popen(
        [*command, *chosen],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        deadline_s = time.monotonic() + RUNNING_LIMIT_S
        while len(running(engine)) < 6:  # two nodes and the store's, of two containers each
            assert process.poll() is None, process.communicate()[0].decode()[-3000:]
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        # Not ours to remove: another harness lives (this one).
        other = create_volume(engine, "another-run", "kept")
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    killed_s = time.monotonic()
    while running(engine):
        assert time.monotonic() - killed_s < GONE_LIMIT_S, "containers go on without a harness"
        time.sleep(0.1)
    assert any(one.startswith("network") for one in everything(engine))
    cleaned = subprocess.run(
        [Path(sys.executable).parent / "chaoslab", "cleanup", "--reports", tmp_path],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "on the Docker engine" in cleaned.stdout
    assert everything(engine) == [f"volume {other}"]
    engine.api.remove_volume(other)


def test_a_run_of_somebody_else_is_left_alone_while_it_is_young(engine: Engine) -> None:
    """Whose harness cannot be looked for here, its leavings are believed abandoned only later."""
    foreign = labels("foreign") | {"org.chaoslab.harness": "other-boot:1:2:3"}
    made = engine.api.create_volume("chaoslab-foreign-test", labels=foreign)
    assert leftovers.sweep(engine) == []
    assert everything(engine) == [f"volume {made['Name']}"]
    engine.api.remove_volume(made["Name"])


def test_a_process_is_told_from_one_that_got_its_number() -> None:
    """By when it started; and of another boot or pid namespace nothing is known."""
    mine = identity.this_harness()
    assert identity.is_gone(mine) is False
    boot, namespace, pid, started = mine.split(":")
    assert identity.is_gone(f"{boot}:{namespace}:{pid}:{int(started) - 1}") is True
    assert identity.is_gone(f"{boot}:1:{pid}:{started}") is None
    assert identity.is_gone(f"elsewhere:{namespace}:{pid}:{started}") is None
    assert identity.is_gone("") is None
    with subprocess.Popen(["sleep", "60"]) as child:
        name = f"{boot}:{namespace}:{child.pid}:{identity._started(child.pid)}"
        assert identity.is_gone(name) is False
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert identity.is_gone(name) is True
