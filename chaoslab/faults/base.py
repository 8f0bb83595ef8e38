"""What all faults share: a window, a direction, filters, and the checks of their fields."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from chaoslab.errors import InvalidScenario

Direction = Literal["egress", "ingress", "both"]


def refuse(fault: object, field: str, want: str, fix: str = "") -> InvalidScenario:
    """Make the error for a field: what was given, what is wanted, the likely fix."""
    given = f"{type(fault).__name__}({field}={getattr(fault, field)!r})"
    return InvalidScenario(f"{given}: want {want}" + (f"; {fix}" if fix else ""))


def is_number(value: object) -> bool:
    """Tell whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_ratio(fault: object, field: str, *, zero: bool) -> None:
    """Refuse a field that is no ratio; zero: 0 is one. Raises: InvalidScenario."""
    value = getattr(fault, field)
    want = f"{'0 <=' if zero else '0 <'} {field} <= 1"
    if not is_number(value):
        raise refuse(fault, field, want)
    if (0 <= value <= 1) if zero else (0 < value <= 1):
        return
    percent = f"for {value:g} % write {field}={value / 100:.2f}" if 1 < value <= 100 else ""  # noqa: PLR2004
    raise refuse(fault, field, want, percent)


def check_seconds(fault: object, field: str, *, zero: bool, most: float = math.inf) -> None:
    """Refuse a field that is no duration. Raises: InvalidScenario."""
    value = getattr(fault, field)
    low = value is not None and is_number(value) and (value >= 0 if zero else value > 0)
    if not low or value > most:
        upper = "" if math.isinf(most) else f" <= {most:g}"
        raise refuse(fault, field, f"{'0 <=' if zero else '0 <'} {field}{upper}, in seconds")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong; `duration_s` is its window (None: until the run ends)."""

    duration_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: InvalidScenario."""
        if self.duration_s is not None:
            check_seconds(self, "duration_s", zero=False)

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        return ()

    @property
    def is_window(self) -> bool:
        """True when the fault is healed during the run."""
        return self.duration_s is not None


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkFault(Fault):
    """A fault of one node's link.

    direction: as seen from the target node. to: only traffic to and from these nodes (empty:
    all). ports: only TCP or UDP traffic from or to these ports (empty: all).
    """

    direction: Direction = "both"
    to: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: InvalidScenario."""
        super().__post_init__()
        if self.direction not in ("egress", "ingress", "both"):
            raise refuse(self, "direction", "egress, ingress or both")
        if any(not isinstance(node, int) or node < 0 for node in self.to):
            raise refuse(self, "to", "node numbers from 0 on")
        if any(not isinstance(port, int) or not 0 < port < 65536 for port in self.ports):  # noqa: PLR2004
            raise refuse(self, "ports", "port numbers 1..65535")

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        return ("ifb",) if self.direction != "egress" else ()
