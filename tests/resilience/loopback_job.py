"""A small launcher: a store, and ranks forked from a process that has imported torch.

It stands in for a cluster's scheduler in these tests: it starts ranks, restarts one that was
killed, and reads their events. Everything runs on the loopback interface.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
CIRCUIT_OPEN_STATUS = 75
WORLD_SIZE = 4
STEPS = 40
SAVE_EVERY = 10
TIMEOUT_S = 3


class Store:
    """A store process on a port of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "chaoslab.resilience.store", "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[1]

    def close(self) -> None:
        """End the store, frozen or not."""
        for number in (signal.SIGCONT, signal.SIGTERM):
            if self.process.poll() is None:
                self.process.send_signal(number)
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Job:
    """A job of several ranks; each is forked, and restarted where told.

    The process that uses this must have no threads and have called `preload.warm`.
    """

    def __init__(
        self, script: Path, directory: Path, store: str, *, world_size: int, arguments: list[str]
    ) -> None:
        self.script, self.directory, self.store = script, directory, store
        self.world_size, self.arguments = world_size, arguments
        self.pids: dict[int, int] = {}
        self.statuses: dict[int, int] = {}
        self.incarnations: dict[int, int] = {}
        self.environment: dict[int, dict[str, str]] = {}
        self.checkpoints = directory / "checkpoints"

    def start(self, *ranks: int) -> None:
        """Fork these ranks, all when none is named."""
        for rank in ranks or range(self.world_size):
            self.incarnations[rank] = self.incarnations.get(rank, -1) + 1
            self.statuses.pop(rank, None)
            pid = os.fork()
            if pid == 0:
                self._become(rank)
            self.pids[rank] = pid

    def _become(self, rank: int) -> None:
        status = 70
        try:
            log = os.open(
                self.directory / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
            )
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # not pytest's
            os.environ |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(self.world_size),
                "CHAOSLAB_NODE": str(rank),
                "CHAOSLAB_INCARNATION": str(self.incarnations[rank]),
                "CHAOSLAB_STORE": self.store,
                "CHAOSLAB_CHECKPOINTS": str(self.checkpoints),
                "CHAOSLAB_EVENTS": str(self.events_path(rank)),
                **(self.environment.get(rank, {}) if self.incarnations[rank] == 0 else {}),
            }
            sys.argv = [str(self.script), *self.arguments]
            runpy.run_path(str(self.script), run_name="__main__")
            status = 0
        except SystemExit as leaving:
            status = int(leaving.code or 0)
        except BaseException:  # noqa: BLE001 - this is the child's outermost frame
            sys.excepthook(*sys.exc_info())
            status = 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def events_path(self, rank: int) -> Path:
        """Give the file of a rank's events."""
        return self.directory / f"rank-{rank}.jsonl"

    def events(self, kind: str | None = None, rank: int | None = None) -> list[dict[str, Any]]:
        """Read the events so far, in order of time."""
        found = []
        for number in range(self.world_size):
            path = self.events_path(number)
            if path.exists():
                whole = path.read_text().rpartition("\n")[0]  # the last line may be in the making
                found += [json.loads(line) for line in whole.splitlines() if line]
        chosen = [
            event
            for event in found
            if kind in (None, event["kind"]) and rank in (None, event["rank"])
        ]
        return sorted(chosen, key=lambda event: event["t_s"])

    def kill(self, rank: int, number: int = signal.SIGKILL) -> float:
        """Send a signal to a rank; give the time."""
        now_s = time.monotonic()
        os.kill(self.pids[rank], number)
        return now_s

    def replace(self, rank: int) -> float:
        """Kill a rank, wait until it is gone, start it again; give the time of the kill."""
        killed_s = self.kill(rank)
        self.until(lambda: rank in self.reap(), "the killed rank to be gone")
        self.start(rank)
        return killed_s

    def reap(self) -> dict[int, int]:
        """Give the exit statuses so far: a code, or minus the signal's number."""
        for rank, pid in self.pids.items():
            if rank not in self.statuses:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self.statuses[rank] = os.waitstatus_to_exitcode(status)
        return self.statuses

    def until(self, condition: Callable[[], Any], awaited: str, *, limit_s: float = 60.0) -> Any:
        """Wait for a condition and give its value; fail with what was awaited."""
        deadline_s = time.monotonic() + limit_s
        while not (value := condition()):
            self.reap()
            if time.monotonic() > deadline_s:
                raise AssertionError(f"waited {limit_s} s for {awaited}; {self.tell()}")
            time.sleep(0.005)
        return value

    def until_step(self, step: int, *, rank: int = 0, limit_s: float = 60.0) -> None:
        """Wait until a rank has completed a step."""
        self.until(
            lambda: any(event["step"] >= step for event in self.events("step", rank)),
            f"step {step} of rank {rank}",
            limit_s=limit_s,
        )

    def until_over(self, *, limit_s: float = 60.0) -> dict[int, int]:
        """Wait until every rank has ended; give the statuses."""
        self.until(lambda: len(self.reap()) == len(self.pids), "every rank to end", limit_s=limit_s)
        return dict(self.statuses)

    def tell(self) -> str:
        """Say what the ranks last did, for an assertion's message."""
        lines = [f"statuses {self.statuses}"]
        for rank in range(self.world_size):
            events = self.events(rank=rank)[-3:]
            log = self.directory / f"rank-{rank}.log"
            lines.append(f"rank {rank}: {events} {log.read_text()[-800:] if log.exists() else ''}")
        return "\n".join(lines)

    def close(self) -> None:
        """Kill what is left."""
        for rank, pid in self.pids.items():
            if rank not in self.reap():
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                self.statuses[rank] = -signal.SIGKILL


StartJob = Callable[..., Job]
"""What the fixture `start_job` gives."""


def make_job(directory: Path, store: Store, script: str, *arguments: str) -> Job:
    """Describe a job of the usual size; later arguments override the usual ones."""
    usual = ["--steps", str(STEPS), "--save-every", str(SAVE_EVERY), "--timeout-s", str(TIMEOUT_S)]
    return Job(
        REPOSITORY / script,
        directory,
        store.address,
        world_size=WORLD_SIZE,
        arguments=[*usual, *arguments],
    )


def results(job: Job) -> list[dict[str, Any]]:
    """Give what each rank told at its end, less what may differ: time and incarnation."""
    told = sorted(job.events("result"), key=lambda event: event["rank"])
    return [{k: v for k, v in event.items() if k not in ("t_s", "incarnation")} for event in told]
