"""Real power cuts on ext4 and xfs: what the models call safe is safe there, and the rest is not."""

from __future__ import annotations

import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import savers

from chaoslab.cluster import linux
from chaoslab.crash.judging import Verdict
from chaoslab.crash.power import Volume, cut_everywhere, why_not

Saver = Callable[[Path, int], None]
Cuts = list[tuple[Verdict, str]]

pytestmark = pytest.mark.netem(needed=False)


def cuts(kind: str, saver: Saver, *, flush_journal: bool) -> Cuts:
    """Cut the power at each call, in a process with mounts of its own."""
    if reason := why_not(kind):
        pytest.skip(f"NotAvailable: {reason}")
    with tempfile.TemporaryFile() as told:
        pid = os.fork()
        if pid == 0:
            try:
                linux.unshare(linux.CLONE_NEWNS)
                linux.mount("none", "/", "none", linux.MS_REC | linux.MS_PRIVATE)
                with tempfile.TemporaryDirectory() as place, Volume(kind, Path(place)) as volume:
                    found: object = cut_everywhere(
                        volume, saver, savers.careful, flush_journal=flush_journal
                    )
            except BaseException:  # noqa: BLE001  told to the test
                found = traceback.format_exc()
            os.pwrite(told.fileno(), pickle.dumps(found), 0)
            os._exit(0)
        os.waitpid(pid, 0)
        answer = pickle.loads(told.read())
    assert isinstance(answer, list), answer
    return answer


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
@pytest.mark.parametrize("flush_journal", [False, True], ids=["all lost", "journal kept"])
def test_the_correct_saver_survives_every_cut(kind: str, *, flush_journal: bool) -> None:
    """At each of its calls, and after the last; both kinds of cut."""
    found = cuts(kind, savers.correct, flush_journal=flush_journal)
    assert len(found) > 10
    assert {verdict for verdict, _ in found} == {Verdict.INTACT}, found


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
@pytest.mark.parametrize(
    ("saver", "flush_journal", "verdict"),
    [
        (savers.no_directory_sync, False, Verdict.LOST_ACKED),
        (savers.pruned_first, True, Verdict.NO_RESTORE),
        (savers.no_file_sync, True, Verdict.NO_RESTORE),
    ],
)
def test_a_defect_shows_in_a_real_cut_as_the_models_say(
    kind: str, saver: Saver, *, flush_journal: bool, verdict: Verdict
) -> None:
    """The witness of the models: that failure happens, on this file system."""
    found = cuts(kind, saver, flush_journal=flush_journal)
    assert verdict in {one for one, _ in found}, found
