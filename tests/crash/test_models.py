"""Models of a crash: each protocol is safe exactly under those that its calls suffice for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings, strategies as st
from recordings import faults, in_place, plain, pruned_first, replaced

from chaoslab.crash.crashes import crashes
from chaoslab.crash.disk import Disk, Impossible
from chaoslab.crash.models import JOURNAL, KILL, MODELS, POSIX, XFS, Crash, Loss, Model
from chaoslab.crash.operations import Operation
from chaoslab.crash.states import Replay

Saver = Callable[[int], list[Operation]]


def recording(saver: Saver, steps: int = 2) -> list[Operation]:
    return [operation for step in range(1, steps + 1) for operation in saver(step)]


def no_file_sync(step: int) -> list[Operation]:
    return replaced(step, file_sync=False)


def no_directory_sync(step: int) -> list[Operation]:
    return replaced(step, directory_sync=False)


def no_sync(step: int) -> list[Operation]:
    return replaced(step, file_sync=False, directory_sync=False)


def early_rename(step: int) -> list[Operation]:
    return replaced(step, early=True)


SAFE = [
    (replaced, {"kill", "journal", "xfs", "posix"}),
    (no_directory_sync, {"kill"}),
    (no_file_sync, {"kill"}),
    (no_sync, {"kill"}),
    (early_rename, set()),
    (in_place, set()),
    (plain, set()),
    (pruned_first, set()),
]


@pytest.mark.parametrize(("saver", "safe"), SAFE, ids=[saver.__name__ for saver, _ in SAFE])
def test_a_protocol_is_safe_under_these_models_and_no_other(saver: Saver, safe: set[str]) -> None:
    """A planted omission is found by each model that shows it; the whole protocol by none."""
    found = {name for name, model in MODELS.items() if not faults(recording(saver), model)}
    assert found == safe


def test_what_is_wrong_is_told_apart() -> None:
    """Lost and whole, missing altogether, damaged: each saver shows its own."""
    assert faults(recording(no_directory_sync), JOURNAL) >= {"lost"}
    assert faults(recording(pruned_first), KILL) == {"missing"}
    assert "damaged" in faults(recording(no_file_sync), XFS)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("saver", [saver for saver, _ in SAFE])
def test_every_crash_that_is_tried_is_one_that_the_model_allows(saver: Saver, model: Model) -> None:
    """The generator and the judge of legality are two programs: they agree."""
    operations = recording(saver)
    tried = list(crashes(operations, model))
    assert tried
    wrong = [crash for crash in tried if not model.allows(operations, crash)]
    assert wrong == []


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_stronger_file_system_allows_nothing_that_a_weaker_one_does_not(data) -> None:
    """What journal allows xfs allows, and what xfs allows posix allows."""
    saver = data.draw(st.sampled_from([saver for saver, _ in SAFE]))
    operations = recording(saver)
    crash = data.draw(st.sampled_from(list(crashes(operations, JOURNAL))))
    assert XFS.allows(operations, crash)
    crash = data.draw(st.sampled_from(list(crashes(operations, XFS))))
    assert _is_impossible(operations, crash) or POSIX.allows(operations, crash)


def _is_impossible(operations: list[Operation], crash: Crash) -> bool:
    try:
        Replay(operations, Disk()).state(crash)
    except Impossible:
        return True
    return False


def test_nothing_that_was_synced_may_be_lost() -> None:
    """The loss of a synced write, or of a committed name, is refused by every model."""
    operations = recording(replaced, 1)
    for index in range(1, len(operations) - 1):
        crash = Crash(after=len(operations), losses=(Loss(index=index),))
        assert not any(model.allows(operations, crash) for model in MODELS.values())
