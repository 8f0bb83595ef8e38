"""Watches a real pytest run from outside: its record, its processes, what it leaves behind."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PHASE_LIMIT_S = 120.0
CLEAN_LIMIT_S = 5.0

SCENARIO = """
from chaoslab import Injection, Job, Scenario, at_step, bounds, faults, node, run

def test_watched():
    run(Scenario(
        job=Job(script="examples/charlm.py", nodes=2, steps=120, limit_s=100,
                args=("--save-every", "10", "--step-floor-s", "0.02")),
        schedule=[Injection(fault=faults.SilentDrop(duration_s=2), on=node(1), at=at_step(20))],
        bounds=[bounds.recovers_within(30)],
    ))
"""


@dataclasses.dataclass
class Watched:
    """One pytest process and the directories that are its own."""

    process: subprocess.Popen[bytes]
    tmp: Path
    reports: Path

    def events(self) -> list[dict]:
        """Read the run's live record."""
        found = []
        for path in self.tmp.glob("chaoslab-*/history.jsonl"):
            for line in path.read_text().splitlines():
                try:
                    found.append(json.loads(line))
                except ValueError:
                    break
        return found

    def wait_for(self, kind: str) -> None:
        """Wait until the record holds an event of this kind."""
        deadline_s = time.monotonic() + PHASE_LIMIT_S
        while not any(event["kind"] == kind for event in self.events()):
            assert time.monotonic() < deadline_s, f"no {kind!r} within {PHASE_LIMIT_S} s"
            if self.process.poll() is not None:
                out = self.process.stdout.read().decode(errors="replace")
                pytest.fail(f"pytest ended before {kind!r}: {out[-3000:]}")
            time.sleep(0.005)

    def wait_for_server(self, *, importing: bool) -> None:
        """Wait until the warm server is there; importing: until it has opened torch's files."""
        deadline_s = time.monotonic() + PHASE_LIMIT_S
        while not any(_is_server(line, importing=importing) for line in self.processes()):
            assert time.monotonic() < deadline_s, f"no warm server within {PHASE_LIMIT_S} s"
            assert self.process.poll() is None
            time.sleep(0.005)

    def processes(self) -> list[str]:
        """List the processes whose environment names this run's temporary directory."""
        mark = f"TMPDIR={self.tmp}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            # pytest itself is the harness, and no process of the run.
            if not entry.name.isdigit() or int(entry.name) in (os.getpid(), self.process.pid):
                continue
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    if state != "Z":
                        found.append(f"{entry.name} {(entry / 'cmdline').read_bytes()!r}")
            except OSError:
                continue
        return found

    def left_behind(self) -> list[str]:
        """List what there is of the run: processes, temporary files, half-written reports."""
        files = [str(path) for path in self.tmp.iterdir()]
        partial = [str(path) for path in self.reports.glob(".*")] if self.reports.exists() else []
        return self.processes() + files + partial

    def wait_clean(self) -> float:
        """Wait until nothing is left. Returns the seconds it took."""
        began_s = time.monotonic()
        while left := self.left_behind():
            took_s = time.monotonic() - began_s
            assert took_s < CLEAN_LIMIT_S, f"left after {CLEAN_LIMIT_S} s: {left}"
            time.sleep(0.02)
        return time.monotonic() - began_s


def _is_server(line: str, *, importing: bool) -> bool:
    if "chaoslab.cluster.server" not in line:
        return False
    try:
        maps = Path(f"/proc/{line.split(maxsplit=1)[0]}/maps").read_text()
    except OSError:
        return False
    return not importing or "libtorch" in maps


@pytest.fixture
def watch(tmp_path):
    """Start pytest on a scenario of its own; end it, if the test did not, at the end."""
    started = []

    def start(name="one", scenario=SCENARIO):
        base = tmp_path / name
        tmp, reports = base / "tmp", base / "reports"
        tmp.mkdir(parents=True)
        file = base / "test_watched.py"
        file.write_text(scenario)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c",
                   str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}", str(file),
                   f"--chaos-reports={reports}", "--chaos-kernel=host"]  # fmt: skip
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(tmp)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # a shell starts what runs in its background with SIGINT ignored, and that is inherited
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )
        started.append(Watched(process=process, tmp=tmp, reports=reports))
        return started[-1]

    yield start
    for watched in started:
        if watched.process.poll() is None:
            watched.process.kill()
        watched.process.wait()
        watched.process.stdout.close()
