"""Bounds: what must hold all the same. Made by plain functions, judged by `judge`."""

from chaoslab.bounds.clashes import contradictions
from chaoslab.bounds.judging import Findings, find_doubts, judge, verdict
from chaoslab.bounds.kinds import (
    circuit_opens_within,
    finishes,
    from_data,
    keeps_acknowledged,
    leaves_nothing_behind,
    loses_at_most,
    never_restarts,
    noticed_within,
    recovers_within,
    retries_at_most,
    same_result_as_twin,
    spreads_retries,
    stalls_at_most,
)
from chaoslab.bounds.values import Bound, Judgement, Record, Verdict

__all__ = [
    "Bound",
    "Findings",
    "Judgement",
    "Record",
    "Verdict",
    "circuit_opens_within",
    "contradictions",
    "find_doubts",
    "finishes",
    "from_data",
    "judge",
    "keeps_acknowledged",
    "leaves_nothing_behind",
    "loses_at_most",
    "never_restarts",
    "noticed_within",
    "recovers_within",
    "retries_at_most",
    "same_result_as_twin",
    "spreads_retries",
    "stalls_at_most",
    "verdict",
]
