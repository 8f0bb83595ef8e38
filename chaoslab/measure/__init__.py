"""Measurements: figures taken from a history by pure functions.

`measure(history, expectation)` takes them all. Each says which events it was taken from, or
what is missing. How each is counted is told by the docstrings of `phases`,
`progress` and `storm`.
"""

from chaoslab.measure.progress import Resumption
from chaoslab.measure.storm import WINDOW_S, Bin
from chaoslab.measure.taking import (
    INJECTION_NAMES,
    RUN_NAMES,
    attempts_seen,
    doubts_of_faults,
    endings,
    find,
    measure,
    proven,
    recovered,
    restores,
)
from chaoslab.measure.timeline import Ending, status_text, tell
from chaoslab.measure.twin import COMPONENTS, TwinComparison, compare_with_twin
from chaoslab.measure.values import (
    CIRCUIT_OPEN_STATUS,
    NEVER,
    Expectation,
    ExpectedInjection,
    Measurement,
    Unit,
    number,
)

__all__ = [
    "CIRCUIT_OPEN_STATUS",
    "COMPONENTS",
    "INJECTION_NAMES",
    "NEVER",
    "RUN_NAMES",
    "WINDOW_S",
    "Bin",
    "Ending",
    "Expectation",
    "ExpectedInjection",
    "Measurement",
    "Resumption",
    "TwinComparison",
    "Unit",
    "attempts_seen",
    "compare_with_twin",
    "doubts_of_faults",
    "endings",
    "find",
    "measure",
    "number",
    "proven",
    "recovered",
    "restores",
    "status_text",
    "tell",
]
