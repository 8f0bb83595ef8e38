"""`chaoslab crashtest`: any two functions that save and restore, judged after every crash."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from chaoslab.crash.exploration import MOST_STATES, ExplorationFailed, explore
from chaoslab.crash.judging import Verdict
from chaoslab.crash.models import MODELS
from chaoslab.crash.recording import RecordingFailed
from chaoslab.crash.telling import table, write_report

HELP: Final = "judge how checkpoint code survives a kill or a power cut at any point of a save"
_FAILED, _NOT_JUDGED, _UNKNOWN = 1, 2, 3
EPILOG: Final = (
    "exit status: 0 INTACT under every model, 1 some state fails, 2 nothing could be judged, "
    "3 UNKNOWN"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.epilog = EPILOG
    parser.add_argument("save", metavar="MODULE:SAVE", help="called with a directory and a step")
    parser.add_argument(
        "restore",
        metavar="MODULE:RESTORE",
        help="called with a directory; gives what was saved there last",
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


def run(chosen: argparse.Namespace) -> int:
    """Explore, print the table, write the report. Returns the exit status."""
    sys.path.insert(0, "")
    if chosen.steps < 1 or chosen.states < 1:
        given = f"--steps={chosen.steps} --states={chosen.states}"
        sys.stderr.write(f"chaoslab crashtest: {given}: want at least 1 of each\n")
        return _NOT_JUDGED
    try:
        explored = explore(
            imported(chosen.save),
            imported(chosen.restore),
            steps=range(1, chosen.steps + 1),
            models=chosen.models.split(","),
            most_states=chosen.states,
            seed=chosen.seed,
        )
    except (ValueError, ExplorationFailed, RecordingFailed, OSError) as error:
        sys.stderr.write(f"chaoslab crashtest: {error}\n")
        return _NOT_JUDGED
    sys.stdout.write(table(explored))
    if chosen.report is not None:
        for path in write_report(chosen.report, explored, chosen.restore):
            sys.stdout.write(f"{path}\n")
    if explored.verdict is Verdict.INTACT:
        return 0
    return _UNKNOWN if explored.verdict is Verdict.UNKNOWN else _FAILED


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
