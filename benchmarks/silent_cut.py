"""How long a job of four nodes is away when one is cut off silently for its timeout.

    python benchmarks/silent_cut.py [--repeats 5] [--timeout-s 5]

Real namespaces, no packet of node 2 comes or goes for exactly the job's timeout T. noticed: from
the cut until the last rank knows. back: from the cut until every rank has done a step beyond the
highest before; up to five steps of 0.05 s are done again for that. Everything else beyond T is the
library's own: tearing down, backing off, meeting, restoring.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from chaoslab import Injection, Job, Scenario, at_step, bounds, faults, node, on_failure, run
from chaoslab.options import Options

BEYOND_S = 1.0
"""What is claimed: noticed, and back, at most this long after the timeout."""


def cut(timeout_s: float) -> Scenario:
    """Give the scenario."""
    return Scenario(
        job=Job(
            script="examples/charlm.py",
            nodes=4,
            steps=120,
            args=("--save-every", "5", "--step-floor-s", "0.05", "--timeout-s", str(timeout_s)),
            restart=on_failure(limit=3),
        ),
        schedule=[
            Injection(fault=faults.SilentDrop(duration_s=timeout_s), on=node(2), at=at_step(50))
        ],
        bounds=[bounds.finishes()],
    )


def faulted_s(directory: Path) -> float:
    """Give the seconds from the cut's effect until it was healed."""
    lines = (directory / "history.jsonl").read_text(encoding="utf-8").splitlines()
    told = {event["kind"]: event["t_s"] for event in map(json.loads, lines)}
    return float(told["healed"] - told["effective"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--timeout-s", type=float, default=5.0)
    chosen = parser.parse_args()
    noticed, back = [], []
    with tempfile.TemporaryDirectory(prefix="chaoslab-bench-") as directory:
        for _ in range(chosen.repeats):
            report = run(cut(chosen.timeout_s), options=Options(reports=Path(directory)))
            found = [report.measurement(name, 0).value for name in ("detect_all_s", "recovery_s")]
            if None in found:
                raise SystemExit(f"no figure: {report.explanation}")
            noticed.append(found[0])
            back.append(found[1] + faulted_s(report.directory))
    for name, values in (("noticed", noticed), ("back", back)):
        median_s, most_s = statistics.median(values), chosen.timeout_s + BEYOND_S
        print(
            f"T = {chosen.timeout_s:g} s, {name:7s} median {median_s:6.2f} s  "
            f"(least {min(values):.2f}, most {max(values):.2f}, n={len(values)})  "
            f"at most {most_s:.2f} s: {'held' if max(values) <= most_s else 'NOT HELD'}"
        )


if __name__ == "__main__":
    main()
