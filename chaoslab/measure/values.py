"""Values of the measure stage: what a run was expected to do, and one figure taken from it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from chaoslab.errors import InvalidScenario
from chaoslab.faults import ConnectionReset, Fault, Kill, NodeLoss, ProcessFault, Signal

CIRCUIT_OPEN_STATUS: Final = 75
"""Exit status of a rank whose job gave up for good. Source: sysexits.h, EX_TEMPFAIL."""

NEVER: Final = math.inf
"""Value of a duration whose end is known never to have come: neither a gap nor a number."""

Unit = Literal["s", "steps", "rank_s", "ratio", "count"]
Acknowledgement = Literal["any", "all"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpectedInjection:
    """One entry of the schedule, resolved to the ranks that it hits.

    index: place in the schedule, 0-based. fault: the kind's name. code, on, at: fault, target
    and trigger as short code. is_window: the harness heals it during the run. lasts: it stays
    until the run's end, neither healed nor over in a moment. takes_process: it acts on
    processes, so its ranks cannot be asked to notice it. for_good: its ranks never come back.
    ranks: the ranks of its target (empty: the store, or an agent).
    """

    index: int
    fault: str
    is_window: bool
    lasts: bool = False
    takes_process: bool = False
    for_good: bool = False
    ranks: tuple[int, ...] = ()
    code: str = ""
    on: str = ""
    at: str = ""

    @classmethod
    def of(
        cls,
        index: int,
        fault: Fault,
        *,
        ranks: Iterable[int] = (),
        code: str = "",
        on: str = "",
        at: str = "",
    ) -> ExpectedInjection:
        """Resolve one entry of a schedule; `ranks` are those that the target stands for."""
        hit = tuple(ranks)
        # A rank that a signal has ended is started again; a store is not.
        is_moment = isinstance(fault, ConnectionReset) or (
            isinstance(fault, Kill | Signal) and bool(hit)
        )
        return cls(
            index=index,
            fault=type(fault).__name__,
            is_window=fault.is_window,
            lasts=not fault.is_window and not is_moment,
            takes_process=isinstance(fault, ProcessFault | NodeLoss),
            for_good=isinstance(fault, NodeLoss),
            ranks=hit,
            code=code,
            on=on,
            at=at,
        )

    @property
    def victims(self) -> frozenset[int]:
        """Give the ranks whose own process the fault acts on."""
        return frozenset(self.ranks if self.takes_process else ())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expectation:
    """What the harness knows of a run apart from its history: who was to do what.

    world_size: ranks of the job, numbered from 0. steps: steps that a finished rank has done
    (None: not known). injections: the schedule, in its order. acknowledged_by: a save counts
    as acknowledged when any rank, or every rank, has written save_committed for its step.
    steady_tolerance_ratio: a step may take this much longer than in the warm-up and the job
    is steady all the same.
    """

    world_size: int
    steps: int | None = None
    injections: tuple[ExpectedInjection, ...] = ()
    acknowledged_by: Acknowledgement = "any"
    steady_tolerance_ratio: float = 0.5

    def __post_init__(self) -> None:
        """Refuse what cannot be. Raises: InvalidScenario."""
        if self.world_size < 1:
            raise InvalidScenario(f"Expectation(world_size={self.world_size}): want at least 1")
        places = tuple(injection.index for injection in self.injections)
        if places != tuple(range(len(places))):
            raise InvalidScenario(
                f"Expectation(injections=...): indices {places}: want 0, 1, 2, ... in this order"
            )

    @property
    def ranks_lost_for_good(self) -> frozenset[int]:
        """Give the ranks that a NodeLoss takes: nothing is expected of them."""
        lost = [set(i.ranks) for i in self.injections if i.for_good]
        return frozenset(set().union(*lost))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Give the ranks that must be there in the end."""
        return tuple(r for r in range(self.world_size) if r not in self.ranks_lost_for_good)

    def to_data(self) -> dict[str, Any]:
        """Give the expectation as JSON data, so that a saved run can be judged again."""
        return dataclasses.asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Expectation:
        """Read what `to_data` gave. Raises: InvalidScenario."""
        try:
            injections = tuple(
                ExpectedInjection(**{**entry, "ranks": tuple(entry["ranks"])})
                for entry in data["injections"]
            )
            return cls(**{**data, "injections": injections})
        except (KeyError, TypeError) as problem:
            raise InvalidScenario(
                f"expectation data: {problem}: want what Expectation.to_data gave"
            ) from problem


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """One figure of a run.

    value: in `unit`; NEVER (infinity) when its end is known not to have come, with the reason
    in `how`; None when it cannot be told, with what is missing in `missing`. how: which events
    it was taken from, one sentence. injection: index of the fault it belongs to (None: the
    whole run). by_rank: the figure of each rank, where it has one.
    """

    name: str
    value: float | None
    unit: Unit
    missing: str = ""
    how: str = ""
    injection: int | None = None
    by_rank: tuple[tuple[int, float], ...] = ()

    @property
    def never(self) -> bool:
        """True when the end of what was to be measured is known never to have come."""
        return self.value == NEVER


def number(value: float, unit: Unit | None) -> str:
    """Give a figure with its unit: `3.21 s`, `1 step`, `never`."""
    if math.isinf(value):
        return "never"
    if unit in ("s", "rank_s"):
        digits = 3 if abs(value) < 1 else 2
        return f"{value:.{digits}f}".rstrip("0").rstrip(".") + (" s" if unit == "s" else " rank s")
    if unit == "steps":
        return f"{value:g} step" + ("" if value == 1 else "s")
    return f"{value:.2f}" if unit == "ratio" else f"{value:g}"
