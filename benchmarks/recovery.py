"""How long a job of four ranks is away after SIGKILL of one: three ways to restart, side by side.

    python benchmarks/recovery.py [--repeats 5] [--modes standby,fresh,torchrun]

All on the loopback interface, with examples/charlm.py. Counted from the SIGKILL until every rank
has completed a step beyond the highest before it (back): what was done since the last save, up to
five steps of 0.05 s, is done again before that. stepping: until every rank has completed its first
step in the new group. noticed: until the last survivor's failure_seen. fresh: a new interpreter at
once. torchrun: one agent, --max-restarts, same script. import: a fresh interpreter until the
script's imports are done.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import runpy
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "examples" / "charlm.py"
RANKS = 4
VICTIM = 2
LIMIT_S = 120.0
ARGUMENTS = ["--steps", "1000000", "--save-every", "5", "--step-floor-s", "0.05",
             "--patience-s", "60"]  # fmt: skip
MODES = ("standby", "fresh", "torchrun")
FIGURES = ("noticed", "stepping", "back")
NOTICED_S, STANDBY_S, FRESH_S = 0.3, 1.0, 1.0
"""What is claimed: notice on every survivor; back with a standby; without, beyond the import."""


class Job:
    """Four ranks under one of the modes, and what they tell."""

    def __init__(self, mode: str, place: Path, store: str) -> None:
        self.mode, self.place = mode, place
        self.environment = os.environ | {
            "CHAOSLAB_STORE": store,
            "CHAOSLAB_CHECKPOINTS": str(place / "checkpoints"),
            "CHAOSLAB_BENCH": str(place),
            "OMP_NUM_THREADS": "1",
            # facts: without it a restart may read the dead attempt's addresses
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.incarnations = dict.fromkeys(range(RANKS), 0)

    def start(self) -> None:
        """Start every rank, or the one agent that does."""
        if self.mode == "torchrun":
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                       f"--nproc-per-node={RANKS}", "--max-restarts=100", __file__]  # fmt: skip
            self.processes[0] = self._spawn([*command, "--as-rank", *ARGUMENTS], {})
            return
        for rank in range(RANKS):
            self.start_rank(rank)

    def start_rank(self, rank: int) -> None:
        """Start one rank, or its standby."""
        own = {
            "RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
            "CHAOSLAB_INCARNATION": str(self.incarnations[rank]),
        }
        warm = ["-m", "chaoslab.resilience.standby", "--healthy-s", "1"]  # no backoff in between
        command = [sys.executable, *(warm if self.mode == "standby" else []), __file__]
        self.processes[rank] = self._spawn([*command, "--as-rank", *ARGUMENTS], own)

    def _spawn(self, command: list[str], own: dict[str, str]) -> subprocess.Popen[bytes]:
        log = (self.place / "log").open("ab")
        return subprocess.Popen(
            command, env=self.environment | own, stdout=log, stderr=log, start_new_session=True
        )

    def events(self) -> list[dict[str, Any]]:
        """Read what all ranks have told so far."""
        found = []
        for path in self.place.glob("rank-*.jsonl"):
            whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
            found += [json.loads(line) for line in whole.splitlines()]
        return found

    def highest(self) -> dict[int, int]:
        """Give each rank's highest step."""
        steps = dict.fromkeys(range(RANKS), 0)
        for event in self.events():
            if event["kind"] == "step":
                steps[event["rank"]] = max(steps[event["rank"]], event["step"])
        return steps

    def until_step(self, step: int) -> None:
        """Wait until every rank has completed this step."""
        deadline_s = time.monotonic() + LIMIT_S
        while min(self.highest().values()) < step:
            if time.monotonic() > deadline_s:
                said = (self.place / "log").read_text(errors="replace")[-3000:]
                raise SystemExit(f"{self.mode}: step {step} not reached in {LIMIT_S} s:\n{said}")
            time.sleep(0.02)

    def kill_one(self) -> tuple[float, float, float]:
        """Kill the victim, wait until all are back; give the seconds of each of FIGURES."""
        started = [e for e in self.events() if e["kind"] == "rank_started" and e["rank"] == VICTIM]
        killed_s = time.monotonic()
        os.kill(started[-1]["pid"], signal.SIGKILL)
        # Read after the kill: a step may have been completed since anything was read before.
        done = [e for e in self.events() if e["kind"] == "step" and e["t_s"] <= killed_s]
        before = max(event["step"] for event in done)
        if self.mode == "fresh":
            self.processes[VICTIM].wait()
            self.incarnations[VICTIM] += 1
            self.start_rank(VICTIM)
        later = self._until_back(killed_s, before)
        stepping = _first_steps(later, beyond=0)
        back = _first_steps(later, beyond=before)
        seen = {
            e["rank"]: e["t_s"]
            for e in reversed(later)
            if e["kind"] == "failure_seen" and e["rank"] != VICTIM
        }
        is_all = len(seen) == RANKS - 1
        noticed_s = max(seen.values()) - killed_s if is_all else float("inf")
        return noticed_s, max(stepping.values()) - killed_s, max(back.values()) - killed_s

    def _until_back(self, killed_s: float, before: int) -> list[dict[str, Any]]:
        """Wait until every rank has been restored and is beyond; give the events since the kill."""
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            later = [event for event in self.events() if event["t_s"] >= killed_s]
            if len(_first_steps(later, beyond=before)) == RANKS:
                return later
            if time.monotonic() > deadline_s:
                raise SystemExit(f"{self.mode}: not all back in {LIMIT_S} s")
            time.sleep(0.02)

    def close(self) -> None:
        """End everything."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _first_steps(events: list[dict[str, Any]], *, beyond: int) -> dict[int, float]:
    """Give when each rank, once restored, completed its first step beyond one."""
    restored = {e["rank"]: e["t_s"] for e in events if e["kind"] == "restored"}
    found: dict[int, float] = {}
    for event in events:
        rank, t_s = event["rank"], event["t_s"]
        is_step = event["kind"] == "step" and event["step"] > beyond
        if is_step and rank in restored and t_s > restored[rank]:
            found[rank] = min(found.get(rank, t_s), t_s)
    return found


@contextlib.contextmanager
def running_store() -> Iterator[str]:
    """Run a store; give its address."""
    command = [sys.executable, "-m", "chaoslab.resilience.store", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[1]
        finally:
            process.terminate()


def import_s(repeats: int) -> float:
    """Give the median seconds of a fresh interpreter that imports what the script imports."""
    taken = []
    for _ in range(repeats):
        began_s = time.monotonic()
        subprocess.run([sys.executable, "-c", "import charlm"], cwd=SCRIPT.parent, check=True)
        taken.append(time.monotonic() - began_s)
    print(f"import {'':11s} median {statistics.median(taken):6.2f} s  "
          f"(least {min(taken):.2f}, most {max(taken):.2f}, n={len(taken)})")  # fmt: skip
    return statistics.median(taken)


def measure(mode: str, repeats: int, claims: dict[str, float]) -> None:
    """Measure one mode and print its lines, each beside what is claimed of it."""
    with tempfile.TemporaryDirectory(prefix="chaoslab-bench-") as directory, running_store() as at:
        job = Job(mode, Path(directory), at)
        try:
            job.start()
            job.until_step(30)
            figures = []
            for _ in range(repeats):
                figures.append(job.kill_one())
                job.until_step(max(job.highest().values()) + 25)
        finally:
            job.close()
    for name, values in zip(FIGURES, zip(*figures, strict=True), strict=True):
        if min(values) == float("inf") and name not in claims:  # torchrun's ranks tell nothing
            continue
        median_s, claim = statistics.median(values), ""
        if name in claims:
            judged_s = max(values) if name == "noticed" else median_s  # by every survivor, always
            kept = "held" if judged_s <= claims[name] else "NOT HELD"
            claim = f"  at most {claims[name]:.2f} s: {kept}"
        print(
            f"{mode:9s} {name:8s} median {median_s:6.2f} s  "
            f"(least {min(values):.2f}, most {max(values):.2f}, n={len(values)}){claim}"
        )


def be_rank(arguments: list[str]) -> None:
    """Be a rank: events into a file of its own, then the script."""
    rank = os.environ["RANK"]
    os.environ["CHAOSLAB_EVENTS"] = f"{os.environ['CHAOSLAB_BENCH']}/rank-{rank}.jsonl"
    os.environ.setdefault("CHAOSLAB_INCARNATION", os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    sys.argv[:] = [str(SCRIPT), *arguments]
    runpy.run_path(str(SCRIPT), run_name="__main__")


def main() -> None:
    """Measure all modes, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--modes", default=",".join(MODES))
    chosen = parser.parse_args()
    claims = {
        "standby": {"noticed": NOTICED_S, "back": STANDBY_S},
        "fresh": {"noticed": NOTICED_S, "back": import_s(chosen.repeats) + FRESH_S},
    }
    for mode in chosen.modes.split(","):
        measure(mode, chosen.repeats, claims.get(mode, {}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-rank"]:
        be_rank(sys.argv[2:])
    else:
        main()
