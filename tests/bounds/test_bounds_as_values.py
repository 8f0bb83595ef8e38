"""Bounds as values: written, compared, refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

import pytest

from chaoslab import bounds
from chaoslab.bounds import Bound, contradictions
from chaoslab.errors import InvalidScenario


@pytest.mark.parametrize(
    "make",
    [
        bounds.noticed_within,
        bounds.recovers_within,
        bounds.circuit_opens_within,
        bounds.stalls_at_most,
    ],
)
@pytest.mark.parametrize("limit", [0, -1, math.inf, math.nan, "12", True, None])
def test_a_limit_that_is_no_time_is_refused(make: Callable[..., Bound], limit: object) -> None:
    """A limit in seconds is more than 0 and finite."""
    with pytest.raises(InvalidScenario, match="want 0 < limit_s, in seconds"):
        make(limit)


@pytest.mark.parametrize("make", [bounds.loses_at_most, bounds.retries_at_most])
@pytest.mark.parametrize("limit", [-1, 0.5, "3", True, None])
def test_a_limit_that_is_no_count_is_refused(make: Callable[..., Bound], limit: object) -> None:
    """A count is a whole number, 0 or more."""
    with pytest.raises(InvalidScenario, match="want a whole number"):
        make(limit)


@pytest.mark.parametrize("limit", [0, -1, 0.5, "3", True, None, math.inf])
def test_a_peak_that_forbids_to_connect_at_all_is_refused(limit: object) -> None:
    """Whoever comes back connects once: the least peak is 1."""
    with pytest.raises(InvalidScenario, match="want a whole number of attempts, 1 or more"):
        bounds.spreads_retries(limit)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bound", "code"),
    [
        (bounds.recovers_within(12), "recovers_within(12)"),
        (bounds.recovers_within(0.25, injection=1), "recovers_within(0.25, injection=1)"),
        (bounds.loses_at_most(0), "loses_at_most(0)"),
        (bounds.spreads_retries(8), "spreads_retries(8)"),
        (bounds.spreads_retries(peak_per_100_ms=8, injection=1), "spreads_retries(8, injection=1)"),
        (bounds.finishes(), "finishes()"),
        (bounds.stalls_at_most(1234567.5), "stalls_at_most(1234567.5)"),
    ],
)
def test_a_bound_is_written_as_it_was_made(bound: Bound, code: str) -> None:
    """What is printed can be pasted into a scenario."""
    assert bound.code == code
    assert bounds.from_data(json.loads(json.dumps(bound.to_data()))) == bound
    assert eval(code, {"__builtins__": {}}, vars(bounds)) == bound


def test_bounds_that_agree_are_no_contradiction() -> None:
    """Different bounds, or the same one of different faults, stand side by side."""
    assert (
        contradictions(
            [
                bounds.recovers_within(5, injection=0),
                bounds.recovers_within(9, injection=1),
                bounds.loses_at_most(0),
                bounds.same_result_as_twin(),
                bounds.finishes(),
            ]
        )
        == []
    )
    opens = bounds.circuit_opens_within(9, injection=1)
    assert contradictions([bounds.recovers_within(5, injection=0), opens]) == []


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (
            [bounds.recovers_within(5), bounds.recovers_within(9)],
            "recovers_within(5) and recovers_within(9): want one limit",
        ),
        (
            [bounds.spreads_retries(4), bounds.spreads_retries(8)],
            "spreads_retries(4) and spreads_retries(8): want one limit",
        ),
        (
            [bounds.circuit_opens_within(5), bounds.recovers_within(5)],
            "circuit_opens_within(5) and recovers_within(5): want one of them",
        ),
        ([bounds.finishes(), bounds.circuit_opens_within(5)], "and finishes()"),
        ([bounds.same_result_as_twin(), bounds.circuit_opens_within(5)], "same_result_as_twin()"),
        (
            [bounds.circuit_opens_within(5, injection=0), bounds.recovers_within(5, injection=0)],
            "want one of them",
        ),
    ],
)
def test_bounds_that_cannot_hold_together_are_named(pair: list[Bound], words: str) -> None:
    """Each contradiction is one message that names both bounds."""
    found = contradictions(pair)
    assert len(found) == 1
    assert words in found[0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"name": "recovers_soon"}, "bound 'recovers_soon': want one of noticed_within"),
        ({"name": "recovers_within"}, "missing 1 required positional argument"),
        ({"name": "finishes", "injection": 1}, "unexpected keyword argument 'injection'"),
        ({"name": "recovers_within", "limit": -3}, "want 0 < limit_s"),
    ],
)
def test_data_that_is_no_bound_is_refused(data: dict[str, object], words: str) -> None:
    """What was not made by a bound's own to_data is refused, with the reason."""
    with pytest.raises(InvalidScenario, match=re.escape(words)):
        bounds.from_data(data)
