"""A failing state is told by the fewest losses, in words."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st
from recordings import in_place, replaced

from chaoslab.crash.disk import Disk
from chaoslab.crash.judging import Demand, Restored, Verdict, judge
from chaoslab.crash.models import JOURNAL, KILL, POSIX, XFS, Crash, Loss
from chaoslab.crash.operations import SyncAll
from chaoslab.crash.reduction import reduced
from chaoslab.crash.words import Words

TWO = [*replaced(1, file_sync=False), *replaced(2, file_sync=False)]
REFERENCES = {"one": 1, "two": 2}


def test_the_loss_that_matters_is_all_that_is_left() -> None:
    """Of five losses the one without which the state does not fail; nothing else."""
    writes = [index for index, operation in enumerate(TWO) if "Write" in type(operation).__name__]
    crash = Crash(after=len(TWO), losses=tuple(Loss(index=index) for index in writes))

    def fails(candidate: Crash) -> bool:
        return writes[4] in {loss.index for loss in candidate.losses}

    small = reduced(crash, TWO, POSIX, fails)
    assert small.losses == (Loss(index=writes[4]),)
    assert reduced(crash, TWO, POSIX, lambda _: True).losses == ()


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(0, 5), min_size=1), st.data())
def test_no_single_loss_can_be_spared_from_what_is_left(needed: set[int], data) -> None:
    """Whatever set of losses is needed: that set is found, no larger one."""
    writes = [index for index, operation in enumerate(TWO) if "Write" in type(operation).__name__]
    extra = data.draw(st.sets(st.integers(0, 5)))
    losses = tuple(Loss(index=writes[n]) for n in sorted(needed | extra))
    wanted = {writes[n] for n in needed}

    def fails(candidate: Crash) -> bool:
        return wanted <= {loss.index for loss in candidate.losses}

    small = reduced(Crash(after=len(TWO), losses=losses), TWO, POSIX, fails)
    assert {loss.index for loss in small.losses} == wanted


def test_what_is_left_is_allowed_by_the_model() -> None:
    """Under journal the second write cannot be lost without the third, which stays lost then."""
    first, second, rename = 3, 4, 5
    crash = Crash(after=len(TWO), losses=tuple(Loss(index=i) for i in (first, second, rename)))
    assert not JOURNAL.allows(TWO, Crash(after=len(TWO), losses=(Loss(index=first),)))

    def fails(candidate: Crash) -> bool:
        return first in {loss.index for loss in candidate.losses}

    small = reduced(crash, TWO, JOURNAL, fails)
    assert small.losses == (Loss(index=first), Loss(index=second))
    assert reduced(crash, TWO, XFS, fails).losses == (Loss(index=first),)


def test_a_crash_in_words() -> None:
    """Paths as they were then, writes by their place in the file, and which name survived."""
    words = Words(TWO, Disk())
    crash = Crash(after=len(TWO), losses=(Loss(index=4), Loss(index=3, kind="zeros", end=512)))
    said = words.of_crash(crash)
    assert said.startswith("after the return of the save of step 2: the 3rd write of draft did not")
    assert "bytes 0 to 512 of the 2nd write of draft read as zeros" in said
    assert said.endswith("the rename of draft to last survived")
    assert words.of_crash(Crash(after=0)) == "at the beginning: nothing was lost"
    assert Words([SyncAll()], Disk()).of_operation(0) == "the sync of everything"
    assert "the change of last to 0 bytes" in [
        Words([*in_place(1), *in_place(2)], Disk()).of_operation(index) for index in range(12)
    ]


def test_a_recording_that_cannot_have_happened_is_refused() -> None:
    """A rename of a name that is not there: the recorder has missed something."""
    with pytest.raises(ValueError, match="cannot have happened"):
        Words(TWO[2:], Disk())


@pytest.mark.parametrize(
    ("restored", "acknowledged", "begun", "verdict"),
    [
        (Restored(digest="two"), 2, 2, Verdict.INTACT),
        (Restored(digest="two"), 1, 2, Verdict.INTACT),
        (Restored(digest="one"), 2, 2, Verdict.LOST_ACKED),
        (Restored(digest="two"), 1, 1, Verdict.SILENT_CORRUPT),
        (Restored(digest="other"), 1, 2, Verdict.SILENT_CORRUPT),
        (Restored(digest="other"), None, None, Verdict.SILENT_CORRUPT),
        (Restored(), 1, 1, Verdict.NO_RESTORE),
        (Restored(error="EOFError"), 1, 1, Verdict.NO_RESTORE),
        (Restored(error="EOFError"), None, 1, Verdict.INTACT),
        (Restored(), None, None, Verdict.INTACT),
        (Restored(unknown="it hung"), None, None, Verdict.UNKNOWN),
    ],
)
def test_a_verdict(
    restored: Restored, acknowledged: int | None, begun: int | None, verdict: Verdict
) -> None:
    """What was acknowledged must be there, what was begun may be, nothing else."""
    demand = Demand(acknowledged=acknowledged, begun=begun)
    assert judge(restored, demand, REFERENCES)[0] is verdict


def test_a_process_that_is_killed_loses_nothing_that_was_synced_or_not() -> None:
    """The kill model has no losses but a torn last write, at a page."""
    page = Crash(after=5, losses=(Loss(index=4, kind="torn", begin=4096, end=8192),))
    assert KILL.allows(TWO, page)
    odd = Crash(after=5, losses=(Loss(index=4, kind="torn", begin=4097, end=8192),))
    assert not KILL.allows(TWO, odd)
    assert not KILL.allows(TWO, Crash(after=6, losses=page.losses))
