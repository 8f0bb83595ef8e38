"""Judging: what a restore gave of a state, and what it had to give."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping


class Verdict(enum.Enum):
    """On one state, or on all of a model: then the worst."""

    INTACT = "INTACT"
    UNKNOWN = "UNKNOWN"
    NO_RESTORE = "NO_RESTORE"
    LOST_ACKED = "LOST_ACKED"
    SILENT_CORRUPT = "SILENT_CORRUPT"


ORDER = list(Verdict)
"""From the best to the worst."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restored:
    """digest: of what the restore gave; None: it said that there is nothing. error: it raised.

    unknown: why it is not known what it would have given.
    """

    digest: str | None = None
    error: str | None = None
    unknown: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Demand:
    """What must be there: acknowledged or later, up to begun. None: nothing was by then."""

    acknowledged: int | None
    begun: int | None


def judge(restored: Restored, demand: Demand, references: Mapping[str, int]) -> tuple[Verdict, str]:
    """Judge one state; give the verdict and its reason.

    references: what a restore gives after each step's save, by digest. Before the first save is
    acknowledged a restore may fail, or say that there is nothing; it may not give anything wrong.
    """
    wanted = f"step {demand.acknowledged} was acknowledged"
    if restored.unknown is not None:
        return Verdict.UNKNOWN, restored.unknown
    if restored.digest is None:
        what = restored.error or "it found nothing"
        if demand.acknowledged is None:
            return Verdict.INTACT, f"nothing was acknowledged; {what}"
        return Verdict.NO_RESTORE, f"{wanted}; {what}"
    step = references.get(restored.digest)
    if step is None or demand.begun is None or step > demand.begun:
        return Verdict.SILENT_CORRUPT, "it gave what no save had been given"
    if demand.acknowledged is not None and step < demand.acknowledged:
        return Verdict.LOST_ACKED, f"{wanted}; it gave step {step}"
    return Verdict.INTACT, f"it gave step {step}"
