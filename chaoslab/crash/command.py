"""`chaoslab crashtest`: any code that saves and restores, judged after every crash."""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from chaoslab.crash.exploration import (
    MOST_STATES,
    Exploration,
    ExplorationFailed,
    explore,
    explore_recording,
)
from chaoslab.crash.judging import Verdict
from chaoslab.crash.models import MODELS
from chaoslab.crash.recording import RecordingFailed, record_command
from chaoslab.crash.telling import table, write_report

HELP: Final = "judge how checkpoint code survives a kill or a power cut at any point of a save"
_FAILED, _NOT_JUDGED, _UNKNOWN = 1, 2, 3
EPILOG: Final = (
    "exit status: 0 INTACT under every model, 1 some state fails, 2 nothing could be judged, "
    "3 UNKNOWN"
)
USAGE: Final = (
    "chaoslab crashtest [options] MODULE:SAVE MODULE:RESTORE\n"
    "       chaoslab crashtest [options] --acknowledged PATTERN MODULE:RESTORE -- COMMAND ... {dir}"
)
_FUNCTIONS: Final = (
    "SAVE is called with a directory and a step, RESTORE with a directory, and gives what was "
    "saved there last"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.epilog = EPILOG
    parser.usage = USAGE
    parser.add_argument("functions", nargs="+", metavar="MODULE:FUNCTION", help=_FUNCTIONS)
    parser.add_argument(
        "--acknowledged",
        metavar="PATTERN",
        help=r"of a command: what a line of its output has when a step is saved, as 'saved (\d+)'",
    )
    parser.add_argument("--steps", type=int, default=3, help="how many saves (3)")
    parser.add_argument(
        "--models", default=",".join(MODELS), help=f"some of {','.join(MODELS)} (all)"
    )
    parser.add_argument(
        "--states", type=int, default=MOST_STATES, help=f"the most of a model ({MOST_STATES})"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the mixtures of losses (0)")
    parser.add_argument("--report", type=Path, metavar="DIR", help="where a report is written")


def run(chosen: argparse.Namespace, command: list[str]) -> int:
    """Explore, print the table, write the report. Returns the exit status.

    command: what was given behind "--"; empty for none.
    """
    sys.path.insert(0, "")
    try:
        explored = _explored(chosen, command)
    except (ValueError, ExplorationFailed, RecordingFailed, OSError) as error:
        sys.stderr.write(f"chaoslab crashtest: {error}\n")
        return _NOT_JUDGED
    sys.stdout.write(table(explored))
    if chosen.report is not None:
        for path in write_report(chosen.report, explored, chosen.functions[-1]):
            sys.stdout.write(f"{path}\n")
    if explored.verdict is Verdict.INTACT:
        return 0
    return _UNKNOWN if explored.verdict is Verdict.UNKNOWN else _FAILED


def _explored(chosen: argparse.Namespace, command: list[str]) -> Exploration:
    if chosen.steps < 1 or chosen.states < 1:
        given = f"--steps={chosen.steps} --states={chosen.states}"
        raise ValueError(f"{given}: want at least 1 of each")
    options = {
        "models": chosen.models.split(","),
        "most_states": chosen.states,
        "seed": chosen.seed,
    }
    if not command:
        if len(chosen.functions) != 2 or chosen.acknowledged is not None:  # noqa: PLR2004
            raise ValueError("want MODULE:SAVE and MODULE:RESTORE, or a command behind --")
        save, restore = map(imported, chosen.functions)
        return explore(save, restore, steps=range(1, chosen.steps + 1), **options)
    if len(chosen.functions) != 1 or chosen.acknowledged is None:
        raise ValueError("of a command: want one MODULE:RESTORE, and --acknowledged PATTERN")
    restore = imported(chosen.functions[0])
    with tempfile.TemporaryDirectory(prefix="chaoslab-crash-") as place:
        recording = record_command(Path(place), command, pattern=chosen.acknowledged)
    return explore_recording(recording, restore, **options)


def imported(name: str) -> Callable[..., Any]:
    """Import a function by MODULE:FUNCTION. Raises: ValueError with what is wanted."""
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{name}: {error}: want MODULE:FUNCTION, to be found from this directory"
        ) from None
    if not callable(found):
        raise ValueError(f"{name}: {type(found).__name__}: want a function")  # noqa: TRY004
    return found  # type: ignore[no-any-return]
