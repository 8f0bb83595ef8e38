"""Bounds that cannot hold together, found before anything starts."""

from __future__ import annotations

from collections.abc import Sequence

from chaoslab.bounds.values import Bound

_NEEDS_RECOVERY = ("recovers_within", "same_result_as_twin", "finishes")


def contradictions(bounds: Sequence[Bound]) -> list[str]:
    """Say which bounds contradict each other, one message a pair (empty: none do)."""
    found = []
    seen: dict[tuple[str, int | None], Bound] = {}
    for bound in bounds:
        first = seen.setdefault((bound.name, bound.injection), bound)
        if first.limit != bound.limit:
            found.append(f"{first.code} and {bound.code}: want one limit; keep the one you mean")
    for opens in (b for b in bounds if b.name == "circuit_opens_within"):
        found += [
            f"{opens.code} and {other.code}: want one of them: a job that gives up for good "
            "does not recover and finish"
            for other in bounds
            if other.name in _NEEDS_RECOVERY
            and (other.injection is None or other.injection == opens.injection)
        ]
    return found
