"""A negative control for every bound of the scenarios.

The same scenario, with a trainer that has the defect which the bound is there to find, FAILS by
that bound and by no other. The scenarios themselves are the healthy twins.
"""

import dataclasses
import re

import pytest

from chaoslab import NEVER, BoundExceeded, Options, Verdict, run
from chaoslab.runner import SESSION
from scenarios.test_benign_faults import PAUSE
from scenarios.test_hard_disconnect import DISCONNECT
from scenarios.test_kill_during_save import KILL
from scenarios.test_node_gone import GONE
from scenarios.test_second_fault import CUT_FOR_GOOD
from scenarios.test_storm import STORM

pytestmark = pytest.mark.netem(needed=False)

CONTROLS = [
    ("noticed_within", DISCONNECT, "no_timeout", {}),
    ("retries_at_most", DISCONNECT, "no_backoff", {}),
    ("recovers_within", DISCONNECT, "fragile", {"restart": NEVER}),
    ("circuit_opens_within", GONE, "no_breaker", {"limit_s": 75.0}),
    pytest.param("spreads_retries", STORM, "no_jitter", {}, marks=pytest.mark.nightly),
    pytest.param("finishes", STORM, "ends_badly", {"restart": NEVER}, marks=pytest.mark.nightly),
    pytest.param("never_restarts", PAUSE, "impatient", {}, marks=pytest.mark.nightly),
    pytest.param(
        "leaves_nothing_behind", CUT_FOR_GOOD, "leaves_a_child", {}, marks=pytest.mark.nightly
    ),
    ("keeps_acknowledged", KILL, "in_place_save", {}),
    ("same_result_as_twin", KILL, "forgets_random_state", {}),
]


CONSEQUENCES = {
    "no_timeout": {"recovers_within"},
    "in_place_save": {"recovers_within"},
    "leaves_a_child": {"circuit_opens_within"},
}
"""What else a defect may break. A circuit is open only when all is gone. A job that no timeout
wakes goes on at TCP's next retransmission, whose pause has doubled during the cut (13 s after the
heal were seen, of 12). One that has lost its only checkpoint does all of its steps again, which
takes as long as the machine is slow (13 s).
"""


MISTAKE = re.compile(r"^(Type|Attribute|Name|Import|Index|Key)Error", re.MULTILINE)
"""What a trainer dies of that no longer fits the library: then its own defect is not tried."""


def defective(scenario, trainer, changes):
    job = dataclasses.replace(scenario.job, script=f"tests/trainers/{trainer}.py", **changes)
    return dataclasses.replace(scenario, job=job)


@pytest.mark.parametrize(
    ("bound", "scenario", "trainer", "changes"),
    CONTROLS,
    ids=[(c if isinstance(c, tuple) else c.values)[2] for c in CONTROLS],
)
def test_a_defect_breaks_its_bound_and_no_other(
    tmp_path, bound, scenario, trainer, changes
) -> None:
    """The defect is found, and named by the bound that is there for it."""
    options = Options(reports=tmp_path, kernel="host")
    with pytest.raises(BoundExceeded):
        run(defective(scenario, trainer, changes), options=options)
    report = SESSION.reports[-1]
    logs = {path: path.read_text() for path in report.directory.glob("logs/**/*.log")}
    assert logs
    assert not [p for p, told in logs.items() if MISTAKE.search(told)], "it has another defect"
    judgements = report.findings.judgements
    broken = {judgement.bound for judgement in judgements if judgement.verdict is Verdict.FAILED}
    names = [name.partition("(")[0] for name in broken]
    assert bound in names
    assert set(names) - {bound} <= CONSEQUENCES.get(trainer, set())
