"""Runs to report on, told by the stories of the measure stage."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from chaoslab import bounds, faults
from chaoslab.bounds import Bound, judge
from chaoslab.measure import Expectation
from chaoslab.report import Report, write_report
from chaoslab.scenario import Job, Scenario, on_failure
from chaoslab.schedule import Injection, at_step, rank
from tests.measure import stories as told

JOB = Job(script="train.py", nodes=3, steps=20, args=("--lr", "0.1"), restart=on_failure(limit=3))
BOUNDS = [
    bounds.noticed_within(15),
    bounds.recovers_within(12),
    bounds.keeps_acknowledged(),
    bounds.same_result_as_twin(),
]
TWIN = told.history(told.twin_story())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    name: str
    story: told.Story
    expected: Expectation
    fault: faults.Fault
    bounds: list[Bound] = dataclasses.field(default_factory=lambda: list(BOUNDS))

    def write(self, reports: Path, **changes: Any) -> Report:
        history = told.history(self.story)
        scenario = Scenario(
            job=JOB,
            schedule=[Injection(fault=self.fault, on=rank(2), at=at_step(8))],
            bounds=self.bounds,
            name=self.name,
        )
        given: dict[str, Any] = {
            "run_id": f"run-{self.name[:30]}",
            "name": self.name,
            "scenario": scenario,
            "findings": judge(history, self.expected, self.bounds, TWIN),
            "history": history,
            "logs": None,
            "seed": 7,
            "versions": {"python": "3.11.7", "torch": "2.13.0", "kernel": "6.1"},
            "replay": f"pytest scenarios/test_it.py::test_{self.name} --chaos-seed=7",
            "twin_source": "cached from run-1",
            "twin": TWIN,
            "wall_s": 61.25,
        }
        return write_report(reports, **(given | changes))


PASSED = Run(
    name="a_lossy_node_recovers_within_12_s",
    story=told.loss_story(),
    expected=told.loss_expected(),
    fault=faults.PacketLoss(ratio=0.2, duration_s=3),
    bounds=BOUNDS[1:],
)
FAILED = Run(
    name="a_rank_killed_inside_torch_save_costs_no_acknowledged_step",
    story=told.changed(told.kill_story(), "restored", step=3),
    expected=told.kill_expected(),
    fault=faults.Kill(),
)
OPENED = Run(
    name="a_node_cut_off_for_good_opens_the_circuit",
    story=told.circuit_story(),
    expected=told.circuit_expected(),
    fault=faults.SilentDrop(),
    bounds=[bounds.circuit_opens_within(30), bounds.leaves_nothing_behind()],
)
UNPROVEN = Run(
    name="nothing_bit",
    story=[
        *told.without(told.loss_story(), "effective"),
        told.event(2.0, "not_effective", injection=0, missing="no packet was dropped in 5 s"),
    ],
    expected=told.loss_expected(),
    fault=faults.PacketLoss(ratio=0.2, duration_s=3),
    bounds=BOUNDS[1:],
)
HUNG = Run(
    name="nobody_notices",
    story=told.hang_story(),
    expected=told.kill_expected(),
    fault=faults.Kill(),
)
ALL = (PASSED, FAILED, OPENED, UNPROVEN, HUNG)
