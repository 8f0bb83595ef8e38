"""Crash: every state that a crash can leave of a save, built and checked. Usable alone."""

from chaoslab.crash.exploration import (
    Exploration,
    ExplorationFailed,
    Failure,
    Result,
    explore,
    explore_recording,
)
from chaoslab.crash.interference import Fail, Kill, Lie, Tear
from chaoslab.crash.judging import Verdict
from chaoslab.crash.models import MODELS
from chaoslab.crash.recording import Recording, RecordingFailed, marked, record
from chaoslab.crash.telling import table, write_report

__all__ = [
    "MODELS",
    "Exploration",
    "ExplorationFailed",
    "Fail",
    "Failure",
    "Kill",
    "Lie",
    "Recording",
    "RecordingFailed",
    "Result",
    "Tear",
    "Verdict",
    "explore",
    "explore_recording",
    "marked",
    "record",
    "table",
    "write_report",
]
