"""How many crash states a minute are judged, beside ckpt-chaos on the same training script.

    python benchmarks/crash_states.py [--ckpt-chaos DIR]

DIR: where ckpt-chaos 0.1.8 is, as `pip install --target DIR ckpt-chaos==0.1.8` puts it; left out
without it. The script trains a 64 x 64 layer for ten steps and saves at each by torch.save and
os.replace, without any fsync. states: judged; unique: different directories among them. Then: what
one core does with a state of 1 MB, and what a recording adds to a save.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from chaoslab.crash import explore, explore_recording, record
from chaoslab.crash.recording import record_command

TIMES_THEIRS, STATES_A_SECOND, RECORDING_COST = 1000, 100, 1.3
"""What is claimed: times ckpt-chaos's points a minute, unique states, times a bare save."""

TRAIN = """
import os, pathlib, sys
import torch

def main(root, steps):
    torch.manual_seed(0)
    layer, begin = torch.nn.Linear(64, 64), 0
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    last = root / "last.pt"
    if last.exists():
        saved = torch.load(last, weights_only=True)
        layer.load_state_dict(saved["layer"])
        begin = saved["step"]
    print(f"resumed from step {begin}", flush=True)
    for step in range(begin + 1, steps + 1):
        torch.manual_seed(step)
        optimizer.zero_grad()
        layer(torch.rand(8, 64)).square().mean().backward()
        optimizer.step()
        torch.save({"layer": layer.state_dict(), "step": step}, root / "draft")
        os.replace(root / "draft", last)
        print(f"saved step {step}", flush=True)
    torch.save(layer.state_dict(), root / "final.pt")

def restore(root):
    last = root / "last.pt"
    return torch.load(last, weights_only=True) if last.exists() else None

if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), 10)
"""


def claim(value: float, *, least: float = 0.0, most: float = float("inf")) -> str:
    """Word what is claimed of a figure, and whether it holds."""
    what = f"at least {least:g}" if least else f"at most {most:g}"
    return f"  {what}: {'held' if least <= value <= most else 'NOT HELD'}"


def line(what: str, value: str) -> None:
    """Print one figure."""
    print(f"{what:58s} {value}")


def theirs(place: Path, where: Path) -> float:
    """Give the points a minute of ckpt-chaos."""
    command = [sys.executable, "-m", "ckpt_chaos", "run", "--step-regex",
               r"resumed from step (\d+)", "--result-file", "{out}/final.pt", "--",
               sys.executable, "train.py", "{out}"]  # fmt: skip
    began_s = time.perf_counter()
    done = subprocess.run(
        command, cwd=place, env=os.environ | {"PYTHONPATH": str(where)}, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    took_s = time.perf_counter() - began_s
    points = [int(n) for n in re.findall(r"(\d+) (?:points|kill points)", done.stdout)]
    passed = re.findall(r"(\d+) ?/ ?(\d+) PASS|PASS\D+(\d+)", done.stdout)
    print(done.stdout[-1500:])
    count = max([*points, *(int(n) for found in passed for n in found if n), 1])
    line("ckpt-chaos 0.1.8: points, s, exit status", f"{count}, {took_s:.1f}, {done.returncode}")
    return 60 * count / took_s


def ours(place: Path) -> float:
    """Give the states a minute of ours, recording included."""
    sys.path.insert(0, str(place))
    import train  # type: ignore[import-not-found]  # noqa: PLC0415  written by this script

    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as root:
        argv = [sys.executable, str(place / "train.py"), "{dir}"]
        recording = record_command(Path(root), argv, pattern=r"saved step (\d+)")
    recorded_s = time.perf_counter() - began_s
    explored = explore_recording(recording, train.restore)
    took_s = time.perf_counter() - began_s
    states = sum(result.states for result in explored.results)
    unique = sum(result.unique for result in explored.results)
    line(
        "chaoslab: states (unique), s, of these recording",
        f"{states} ({unique}), {took_s:.1f}, {recorded_s:.1f}",
    )
    for result in explored.results:
        line(f"  {result.model}", f"{result.verdict.value}, {result.states} states")
    return 60 * unique / took_s


def one_core() -> None:
    """Measure unique states a second of one worker, with a state of 1 MB."""
    numbers = (1 << 20) // 4

    def save(root: Path, step: int) -> None:
        torch.save({"w": torch.full((numbers,), float(step)), "step": step}, root / "draft")
        (root / "draft").replace(root / "last.pt")

    def restore(root: Path) -> Any:
        last = root / "last.pt"
        return torch.load(last, weights_only=True) if last.exists() else None

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    began_s = time.perf_counter()
    explored = explore(save, restore, workers=1)
    took_s = time.perf_counter() - began_s
    unique = sum(result.unique for result in explored.results)
    rate = unique / took_s
    judged = claim(rate, least=STATES_A_SECOND)
    line("unique states a second, 1 MB, one core", f"{rate:.0f}{judged}")


def recording_cost(repeats: int = 15) -> None:
    """Measure a save of 1 MB with and without the recorder."""
    state = {"w": torch.rand(1 << 18)}

    def timed(root: Path, told: Path) -> None:
        for _ in range(repeats):
            began_s = time.perf_counter()
            torch.save(state, root / "draft")
            (root / "draft").replace(root / "last.pt")
            with told.open("a") as file:
                file.write(f"{time.perf_counter() - began_s}\n")

    def recorded(root: Path, told: Path) -> None:
        record(root, lambda: timed(root, told))

    figures = []
    with tempfile.TemporaryDirectory() as place:
        for run in (timed, recorded):
            root, told = Path(place, run.__name__), Path(place, f"{run.__name__}.s")
            root.mkdir()
            run(root, told)
            figures.append(statistics.median(map(float, told.read_text().split())))
    bare_ms, recorded_ms = (1e3 * figure for figure in figures)
    judged = f"{recorded_ms / bare_ms:.2f} x{claim(recorded_ms / bare_ms, most=RECORDING_COST)}"
    line("a save of 1 MB, bare and recorded", f"{bare_ms:.2f} ms, {recorded_ms:.2f} ms: {judged}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ckpt-chaos", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "train.py").write_text(TRAIN)
        rates = [ours(Path(place))]
        if chosen.ckpt_chaos is not None:
            rates.append(theirs(Path(place), chosen.ckpt_chaos.resolve()))
    line("unique states a minute, ours", f"{rates[0]:.0f}")
    if len(rates) > 1:
        ratio = rates[0] / rates[1]
        judged = f"{rates[1]:.1f}; ours {ratio:.0f} x{claim(ratio, least=TIMES_THEIRS)}"
        line("points a minute, ckpt-chaos", judged)
    recording_cost()
    one_core()


if __name__ == "__main__":
    main()
