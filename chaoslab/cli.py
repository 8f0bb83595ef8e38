"""The `chaoslab` command."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

import chaoslab
from chaoslab import verify
from chaoslab.cluster.scratch import sweep
from chaoslab.crash import command as crash_command
from chaoslab.errors import NotAvailable
from chaoslab.resilience import store_command

_WHAT = "Break a distributed PyTorch job on purpose, measure how it recovers, judge it by bounds."


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="chaoslab", description=_WHAT)
    parser.add_argument("--version", action="version", version=chaoslab.__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    cleanup = commands.add_parser("cleanup", help="remove what killed runs have left behind")
    where = "where half-written reports are looked for (reports/)"
    cleanup.add_argument("--reports", type=Path, default=Path("reports"), metavar="DIR", help=where)
    store = commands.add_parser("store", help="run a rendezvous store for a job")
    store_command.add_arguments(store)
    check = commands.add_parser("verify", help="check that checkpoints are what was saved")
    check.epilog = (
        "exit status: 0 all proven, 1 damage, 2 nothing recognised, 3 not all can be proven"
    )
    check.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="file or directory")
    crash_command.add_arguments(commands.add_parser("crashtest", help=crash_command.HELP))
    given = sys.argv[1:] if arguments is None else arguments
    behind: list[str] = []
    if given[:1] == ["crashtest"] and "--" in given:
        place = given.index("--")
        given, behind = given[:place], given[place + 1 :]
    chosen = parser.parse_args(given)
    if chosen.command == "store":
        return store_command.run(chosen.listen, events=chosen.events)
    if chosen.command == "crashtest":
        return crash_command.run(chosen, behind)
    if chosen.command == "verify":
        return _verify(chosen.paths)
    return _cleanup(chosen.reports)


def _verify(paths: list[Path]) -> int:
    found: list[verify.Checked] = []
    for path in paths:
        try:
            found += verify.check(path)
        except OSError as error:
            sys.stderr.write(f"chaoslab verify: {error}\n")
            return 2
    for one in found:
        words = "".join(letter if letter.isprintable() else " " for letter in one.words)
        sys.stdout.write(f"{one.proof.value:9s} {one.path} ({one.format}): {words}\n")
    if not found:
        sys.stderr.write("chaoslab verify: no checkpoint of a format that it knows\n")
        return 2
    proofs = {one.proof for one in found}
    if verify.Proof.DAMAGED in proofs:
        return 1
    return 3 if verify.Proof.UNPROVEN in proofs else 0


def _cleanup(reports: Path) -> int:
    removed = [str(path) for path in sweep(reports)] + _cleanup_engine()
    for what in removed:
        sys.stdout.write(f"removed {what}\n")
    sys.stdout.write(f"{len(removed)} removed\n" if removed else "nothing was left behind\n")
    return 0


def _cleanup_engine() -> list[str]:
    """Remove what is left on a Docker engine, where there is one."""
    from chaoslab.cluster.containers import leftovers  # noqa: PLC0415  the SDK takes its time
    from chaoslab.cluster.containers.engine import Engine  # noqa: PLC0415  as above

    try:
        engine = Engine()
    except NotAvailable as problem:
        if os.environ.get("DOCKER_HOST"):
            sys.stderr.write(f"{problem}\n")
        return []
    with contextlib.closing(engine):
        return leftovers.sweep(engine)
