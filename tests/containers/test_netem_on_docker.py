"""The proof: a DDP job on a real Docker engine, broken by real netem in a container's namespace.

Where this machine's kernel has no netem the test is moved into user-mode Linux like any other,
and its engine starts there.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from chaoslab import (
    Injection,
    Options,
    Scenario,
    Verdict,
    at_step,
    bounds,
    faults,
    node,
    rank,
    run,
)
from chaoslab.cluster.containers.engine import Engine
from chaoslab.history import History
from scenarios.jobs import CHARLM

LOSS = Scenario(
    job=dataclasses.replace(CHARLM, nodes=2, steps=40, limit_s=400.0),
    schedule=[
        Injection(fault=faults.PacketLoss(ratio=0.2, duration_s=15), on=rank(1), at=at_step(10)),
    ],
    bounds=[
        bounds.recovers_within(20, injection=0),
        bounds.keeps_acknowledged(),
        bounds.finishes(),
    ],
)
LOSS_THEN_CUT = Scenario(
    job=dataclasses.replace(LOSS.job, nodes=3, steps=90),
    schedule=[
        *LOSS.schedule,
        Injection(fault=faults.LinkDown(duration_s=12), on=node(0), at=at_step(50)),
    ],
    bounds=[
        *LOSS.bounds,
        bounds.noticed_within(15, injection=1),
        bounds.recovers_within(20, injection=1),
    ],
)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(LOSS, id="loss"), pytest.param(LOSS_THEN_CUT, id="loss_then_cut")],
)
def test_a_job_on_docker_survives(engine: Engine, scenario: Scenario, tmp_path: Path) -> None:  # noqa: ARG001
    """20 % of all packets lost for 15 s, then a link down for 12 s, by the agents' own netlink."""
    options = Options(backend="docker", image="host", reports=tmp_path)
    report = run(scenario, options=options)
    assert report.verdict is Verdict.PASSED
    history = History.load(report.directory / "history.jsonl")
    (loss,) = (e for e in history.of("injected") if e["injection"] == 0)
    assert loss["evidence"]["node_1"]["egress"]["qdisc"] == "netem"
