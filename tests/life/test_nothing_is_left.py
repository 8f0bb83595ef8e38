"""A run leaves nothing behind, however and whenever it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaoslab.cluster.scratch import (
    PARTIAL_OLD_S,
    PREFIX,
    locked_directory,
    scratch_directory,
    sweep,
)
from tests.host import host_state
from tests.life.conftest import CLEAN_LIMIT_S

PHASES = ["nodes_ready", "step", "effective", "healed", "run_ended"]
STARTING = ["the first process", "the server imports"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
@pytest.mark.parametrize("phase", STARTING)
def test_a_pytest_killed_while_it_starts_leaves_nothing_within_5_s(watch, phase, number) -> None:
    """The same before any node is up: while the warm server begins, and while it imports torch."""
    watched = watch()
    watched.wait_for_server(importing=phase == "the server imports")
    began_s = time.monotonic()
    os.kill(watched.process.pid, number)
    watched.wait_clean()
    assert time.monotonic() - began_s < CLEAN_LIMIT_S
    watched.process.wait(timeout=30)
    watched.wait_clean()
    assert not watched.events()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_killed_pytest_leaves_nothing_within_5_s(watch, phase, number) -> None:
    """SIGKILL or SIGINT at any phase: 5 s later no process and no temporary file is left."""
    watched = watch()
    watched.wait_for(phase)
    assert watched.processes()
    began_s = time.monotonic()
    os.kill(watched.process.pid, number)
    watched.wait_clean()
    assert time.monotonic() - began_s < CLEAN_LIMIT_S
    watched.process.wait(timeout=30)
    watched.wait_clean()


def test_a_run_that_ends_by_itself_leaves_nothing_but_its_report(watch) -> None:
    """The healthy twin: it passes, and only the report is there."""
    watched = watch()
    out, _ = watched.process.communicate(timeout=120)
    assert watched.process.returncode == 0, out.decode()
    watched.wait_clean()
    (report,) = watched.reports.iterdir()
    assert json.loads((report / "report.json").read_text())["verdict"] == "PASSED"


def test_two_runs_side_by_side_do_not_disturb_each_other(watch) -> None:
    """Both pass, each in nodes and addresses of its own."""
    both = [watch("one"), watch("two")]
    for watched in both:
        out, _ = watched.process.communicate(timeout=200)
        assert watched.process.returncode == 0, out.decode()
        watched.wait_clean()


def test_the_hosts_own_network_is_never_touched(watch) -> None:
    """Links, addresses, routes, qdiscs and mounts of the host are the same, also during a run."""
    before = host_state()
    watched = watch()
    for phase in PHASES[:4]:
        watched.wait_for(phase)
        assert host_state() == before, f"at {phase}"
    watched.process.communicate(timeout=120)
    watched.wait_clean()
    assert host_state() == before


CHANGES = {
    "links": "ip link add left type bridge",
    "addresses": "ip address add 127.9.9.9/32 dev lo",
    "routes": "ip route add 127.9.0.0/16 dev lo",
    "rules": "ip rule add to 127.9.0.0/16 table 9",
    "qdiscs": "tc qdisc add dev lo root pfifo",
    "mounts": "mount -t tmpfs left /mnt",
}
"""What a run might leave, by the part of the host's state that it changes."""


@pytest.mark.parametrize("part", CHANGES)
def test_the_comparison_of_the_host_would_see_a_change(part: str) -> None:
    """The planted change, in namespaces of its own; without one the state is the same."""
    as_root = [] if os.geteuid() == 0 else ["-U", "-r"]
    script = f"""
import subprocess
from tests.host import host_state
subprocess.run("ip link set lo up", shell=True, check=True)
before = host_state()
assert host_state() == before
subprocess.run("{CHANGES[part]}", shell=True, check=True)
print(*(name for name, value in host_state().items() if value != before[name]))
"""
    seen = subprocess.run(
        ["unshare", *as_root, "-n", "-m", sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert part in seen.stdout.split()


def test_a_sweep_removes_what_a_crash_of_the_machine_left(tmp_path, monkeypatch) -> None:
    """An unlocked scratch directory and a half-written report go; a run that lives stays."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    reports = tmp_path / "reports"
    for name in ("gone", "alive", "elsewhere"):
        (reports / f".{name}.partial").mkdir(parents=True)
    old_s = time.time() - PARTIAL_OLD_S - 1
    for name in ("gone", "alive"):
        os.utime(reports / f".{name}.partial", (old_s, old_s))
    (reports / "kept").mkdir()
    stale = tmp_path / f"{PREFIX}gone"
    stale.mkdir()
    (stale / "lock").touch()
    foreign = tmp_path / f"{PREFIX}without-a-lock"
    foreign.mkdir()
    begun = {age: tmp_path / f".{PREFIX}{age}" for age in ("old", "young")}
    for path in begun.values():
        path.mkdir()
        (path / "lock").touch()
    os.utime(begun["old"], (old_s, old_s))
    with scratch_directory("alive", owner=None) as scratch, locked_directory("guest") as guest:
        removed = sweep(reports)
        assert scratch.root.exists()
        assert (reports / ".alive.partial").exists()
        # It may be of a run that lives with another TMPDIR, or under another kernel.
        assert (reports / ".elsewhere.partial").exists()
        assert guest.exists()
    assert set(removed) == {stale, begun["old"], reports / ".gone.partial"}
    assert foreign.exists()
    assert (reports / "kept").exists()
    assert not scratch.root.exists()


def test_a_killed_lab_takes_its_whole_run_with_it(watch) -> None:
    """SIGKILL of the run's first process: the kernel ends the rest, and pytest says so."""
    watched = watch()
    watched.wait_for("step")
    lab = [line.split()[0] for line in watched.processes() if "cluster.server" in line]
    # The lab is the only forked server that is the child of a forked server.
    parents = {pid: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
               for pid in lab}  # fmt: skip
    first = next(pid for pid in lab if parents.get(parents[pid]) in parents)
    os.kill(int(first), signal.SIGKILL)
    out, _ = watched.process.communicate(timeout=60)
    assert watched.process.returncode == 1
    assert b"HarnessError" in out or b"ClusterError" in out
    assert b"PASSED" not in out
    watched.wait_clean()


def test_cleanup_by_hand_says_what_it_did(tmp_path) -> None:
    """`chaoslab cleanup` removes what is stale and names it; a second time there is nothing."""
    stale = tmp_path / f"{PREFIX}stale"
    stale.mkdir()
    (stale / "lock").touch()
    command = [Path(os.sys.executable).parent / "chaoslab", "cleanup"]
    env = os.environ | {"TMPDIR": str(tmp_path)}
    outputs = [
        subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert str(stale) in outputs[0]
    assert outputs[1] == "nothing was left behind\n"
