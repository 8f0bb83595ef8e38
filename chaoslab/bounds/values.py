"""Values of the bounds stage: verdict, judgement, bound, and the record a bound is judged by."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

from chaoslab.history import History
from chaoslab.measure import Expectation, Measurement, Unit


class Verdict(enum.StrEnum):
    """What is known of a bound, or of a run. UNKNOWN is never a pass."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """All that a bound may look at: a run's history, what was expected, and the figures."""

    history: History
    expectation: Expectation
    measurements: tuple[Measurement, ...]
    twin: History | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judgement:
    """What one bound says of a run.

    bound: the bound as code. verdict: its own. message: in plain words with numbers. missing:
    what an UNKNOWN lacks. measured and limit: in `unit` (infinity: it never came). injection:
    index of the fault that it speaks of (None: the whole run).
    """

    bound: str
    verdict: Verdict
    message: str
    missing: str = ""
    measured: float | None = None
    limit: float | None = None
    unit: Unit | None = None
    injection: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
    """A promise of the job under test; made by the functions of `chaoslab.bounds`.

    limit: in `unit` (None: the bound has no number). injection: judge this entry of the
    schedule only (None: each of them, or the whole run). needs_twin: it is judged against a
    run of the same job without faults. check: judges a record.
    """

    name: str
    limit: float | None = None
    unit: Unit | None = None
    injection: int | None = None
    needs_twin: bool = False
    check: Callable[[Bound, Record], tuple[Judgement, ...]] = dataclasses.field(
        repr=False, compare=False
    )

    @property
    def code(self) -> str:
        """Give the bound as it is written: `recovers_within(12)`."""
        limit = [] if self.limit is None else [repr(self.limit)]
        place = [] if self.injection is None else [f"injection={self.injection}"]
        return f"{self.name}({', '.join(limit + place)})"

    def to_data(self) -> dict[str, Any]:
        """Give the bound as JSON data, so that a saved run can be judged again."""
        return {"name": self.name, "limit": self.limit, "injection": self.injection}

    def judgement(
        self,
        verdict: Verdict,
        message: str,
        *,
        missing: str = "",
        measured: float | None = None,
        injection: int | None = None,
    ) -> Judgement:
        """Make a judgement of this bound."""
        return Judgement(
            bound=self.code,
            verdict=verdict,
            message=message,
            missing=missing,
            measured=measured,
            limit=self.limit,
            unit=self.unit,
            injection=injection,
        )

    def unknown(self, missing: str, *, injection: int | None = None) -> Judgement:
        """Judge it UNKNOWN for want of something."""
        message = missing if missing.startswith("not judged") else f"not known: lacks {missing}"
        return self.judgement(Verdict.UNKNOWN, message, missing=missing, injection=injection)
