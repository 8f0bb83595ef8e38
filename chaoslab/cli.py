"""The `chaoslab` command."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import chaoslab
from chaoslab.cluster.scratch import sweep

_WHAT = "Break a distributed PyTorch job on purpose, measure how it recovers, judge it by bounds."


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="chaoslab", description=_WHAT)
    parser.add_argument("--version", action="version", version=chaoslab.__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    cleanup = commands.add_parser("cleanup", help="remove what killed runs have left behind")
    cleanup.add_argument("--reports", type=Path, default=Path("reports"), metavar="DIR",
                         help="where half-written reports are looked for (reports/)")  # fmt: skip
    chosen = parser.parse_args(arguments)
    return _cleanup(chosen.reports)


def _cleanup(reports: Path) -> int:
    removed = sweep(reports)
    for path in removed:
        sys.stdout.write(f"removed {path}\n")
    sys.stdout.write(f"{len(removed)} removed\n" if removed else "nothing was left behind\n")
    return 0
