"""The oracle: the final state against the twin's, on hand-written histories."""

from __future__ import annotations

import pytest

from chaoslab.measure import COMPONENTS, TwinComparison, compare_with_twin
from tests.measure import stories as told

TWIN = told.twin_story()


def compared(story: told.Story, twin: told.Story | None = TWIN) -> TwinComparison:
    other = told.history(twin) if twin is not None else None
    return compare_with_twin(told.history(story), other, told.kill_expected())


def test_equal_digests_are_equal() -> None:
    """A run that ends in the twin's state is equal to it."""
    assert compared(told.kill_story()).equal is True


@pytest.mark.parametrize("component", [*COMPONENTS, "step"])
def test_one_component_of_one_rank_that_differs_is_named(component: str) -> None:
    """Which component of which rank differs first is said, with both digests."""
    story = told.changed(told.kill_story(), "result", 1, **{component: "f" * 64})
    found = compared(story)
    assert found.equal is False
    assert found.message.startswith(f"rank 1's {component} is ffffffffffff..., the twin's ")


def test_further_differences_are_counted() -> None:
    """After the first difference the others are listed, and the rest counted."""
    story = told.changed(told.kill_story(), "result", parameters="x", optimizer="y")
    found = compared(story)
    assert found.message.startswith("rank 0's parameters is x")
    assert "so differ optimizer of rank 0" in found.message
    assert found.message.endswith("and 1 more")


@pytest.mark.parametrize(
    ("story", "twin", "missing"),
    [
        (told.kill_story(), None, "a twin"),
        (told.without(told.kill_story(), "result", 2), TWIN, "result of rank 2 in this run"),
        (told.kill_story(), told.without(TWIN, "result", 0), "result of rank 0 in the twin"),
        (
            told.changed(told.kill_story(), "result", 0, optimizer=None),
            TWIN,
            "optimizer in result of rank 0 in this run",
        ),
        (
            told.kill_story(),
            told.changed(TWIN, "result", 1, sample_order=None),
            "sample_order in result of rank 1 in the twin",
        ),
        (
            told.circuit_story(),
            TWIN,
            "not judged: the job never finished: ranks 0, 1, 2: exited with",
        ),
        (told.hang_story(), TWIN, "not judged: the job never finished: ranks 0, 1: still there"),
        (told.kill_story(), told.kill_story(), "a twin without faults"),
    ],
)
def test_what_cannot_be_compared_is_not_known(
    story: told.Story, twin: told.Story | None, missing: str
) -> None:
    """A missing digest, run or end leaves the comparison open, and is named."""
    found = compared(story, twin)
    assert found.equal is None
    assert missing in found.missing


def test_the_last_result_of_a_rank_counts() -> None:
    """A rank that wrote two results is compared by its last one."""
    story = [*told.kill_story(), told.event(4.0, "result", 0, step=3, parameters="early")]
    assert compared(story).equal is True
