"""Expectations and figures as values."""

from __future__ import annotations

import json

import pytest

from chaoslab.errors import InvalidScenario
from chaoslab.faults import Kill, NodeLoss, PacketLoss, Stop
from chaoslab.measure import NEVER, Expectation, ExpectedInjection, find, measure, number
from tests.measure import stories as told


def test_an_expectation_survives_json() -> None:
    """What was expected can be saved with the history, so that it is judged again offline."""
    expected = told.node_loss_expected()
    data = json.loads(json.dumps(expected.to_data()))
    assert Expectation.from_data(data) == expected


def test_data_that_is_no_expectation_is_refused() -> None:
    """A wrong or missing field is named."""
    data = told.kill_expected().to_data()
    with pytest.raises(InvalidScenario, match="wurld_size"):
        Expectation.from_data({**data, "wurld_size": 3})
    with pytest.raises(InvalidScenario, match="injections"):
        Expectation.from_data({"world_size": 3})


def test_injections_out_of_order_are_refused() -> None:
    """An injection's index is its place in the schedule."""
    with pytest.raises(InvalidScenario, match=r"indices \(1,\)"):
        Expectation(world_size=2, injections=(ExpectedInjection.of(1, Kill()),))
    with pytest.raises(InvalidScenario, match="world_size=0"):
        Expectation(world_size=0)


def test_who_is_a_victim_follows_from_the_fault() -> None:
    """A process fault takes its ranks; a network fault leaves them there to notice it."""
    assert ExpectedInjection.of(0, Kill(), ranks=(1,)).victims == {1}
    assert ExpectedInjection.of(0, Stop(duration_s=3), ranks=(1,)).victims == {1}
    assert ExpectedInjection.of(0, PacketLoss(ratio=0.2), ranks=(1,)).victims == set()
    lost = Expectation(world_size=3, injections=(ExpectedInjection.of(0, NodeLoss(), ranks=(1,)),))
    assert lost.ranks == (0, 2)


def test_a_figure_that_was_not_taken_is_an_error_of_the_caller() -> None:
    """Looking up an unknown measurement says which."""
    figures = measure(told.history(told.kill_story()), told.kill_expected())
    with pytest.raises(KeyError, match="mttr_s of injection 0"):
        find(figures, "mttr_s", 0)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3.2149, "s", "3.21 s"),
        (0.0512, "s", "0.051 s"),
        (12, "s", "12 s"),
        (100, "s", "100 s"),
        (0, "s", "0 s"),
        (NEVER, "s", "never"),
        (1, "steps", "1 step"),
        (3, "steps", "3 steps"),
        (0.5274, "ratio", "0.53"),
        (40, "count", "40"),
        (5.1, "rank_s", "5.1 rank s"),
    ],
)
def test_figures_are_written_with_their_unit(value: float, unit: str, text: str) -> None:
    """A figure is short, and never without its unit."""
    assert number(value, unit) == text  # type: ignore[arg-type]
