"""The same scenarios on containers: the same verdicts, and nothing left."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from chaoslab import (
    BoundExceeded,
    HarnessError,
    Injection,
    Options,
    Scenario,
    Verdict,
    agent_of,
    at_step,
    bounds,
    container_of,
    faults,
    node,
    on_event,
    rank,
    run,
    volume,
)
from chaoslab.cluster.containers.engine import Engine
from chaoslab.history import History
from scenarios.jobs import CHARLM
from scenarios.test_kill_during_save import KILL

pytestmark = pytest.mark.netem(needed=False)

SHORT = dataclasses.replace(CHARLM, steps=40)


def options(tmp_path: Path) -> Options:
    return Options(backend="docker", image="host", kernel="host", reports=tmp_path)


def test_a_kill_inside_a_save(engine: Engine, tmp_path: Path) -> None:  # noqa: ARG001
    """SIGKILL of a rank half way through a write of its third save, twin and all."""
    job = dataclasses.replace(KILL.job, steps=100)
    report = run(dataclasses.replace(KILL, job=job), options=options(tmp_path))
    assert report.verdict is Verdict.PASSED
    assert report.versions["backend"] == "docker"
    assert report.versions["engine_cgroup"][0] in "12"


@pytest.mark.nightly
def test_a_defective_trainer_fails_there_too(engine: Engine, tmp_path: Path) -> None:  # noqa: ARG001
    """The negative control: a save in place loses what was acknowledged."""
    job = dataclasses.replace(KILL.job, steps=70, script="tests/trainers/in_place_save.py")
    kept = dataclasses.replace(KILL, job=job, bounds=[bounds.keeps_acknowledged()])
    with pytest.raises(BoundExceeded, match="of an acknowledged save lost"):
        run(kept, options=options(tmp_path))


def test_a_silent_drop_and_a_stop(engine: Engine, tmp_path: Path) -> None:  # noqa: ARG001
    """A fault of a link by the agent, one of a process by the pod: both bite and are healed."""
    scenario = Scenario(
        job=SHORT,
        schedule=[
            Injection(fault=faults.SilentDrop(duration_s=2), on=rank(1), at=at_step(5)),
            Injection(fault=faults.Stop(duration_s=1), on=rank(2), at=at_step(20)),
        ],
        bounds=[bounds.finishes(), bounds.never_restarts(), bounds.leaves_nothing_behind()],
    )
    report = run(scenario, options=options(tmp_path))
    history = History.load(report.directory / "history.jsonl")
    assert [e["injection"] for e in history.of("effective")] == [0, 1]
    assert sorted(e["injection"] for e in history.of("healed")) == [0, 1]


@pytest.mark.nightly
def test_an_agent_that_is_killed(engine: Engine, tmp_path: Path) -> None:  # noqa: ARG001
    """The engine takes the node's network with it: for the job that is a node gone for good."""
    scenario = Scenario(
        job=dataclasses.replace(SHORT, steps=400, args=(*SHORT.args, "--patience-s", "6")),
        schedule=[Injection(fault=faults.Kill(), on=agent_of(1), at=at_step(5))],
        bounds=[bounds.circuit_opens_within(40)],
    )
    report = run(scenario, options=options(tmp_path))
    (ended,) = History.load(report.directory / "history.jsonl").of("effective")
    assert ended["effect"] == {"agent-1": {"exit_status": -9}}


def test_a_killed_container_comes_back_into_the_network_of_its_node(
    engine: Engine,  # noqa: ARG001
    tmp_path: Path,
) -> None:
    """The node's network and the fault on it outlive it; the job recovers once that is healed."""
    cut = faults.SilentDrop(duration_s=8)
    scenario = Scenario(
        job=dataclasses.replace(SHORT, steps=80),
        schedule=[
            Injection(fault=cut, on=node(1), at=at_step(25)),
            Injection(fault=faults.Kill(), on=container_of(1), at=on_event("effective")),
            Injection(fault=faults.Stop(duration_s=1), on=container_of(2), at=at_step(60)),
        ],
        bounds=[
            bounds.recovers_within(20),
            bounds.keeps_acknowledged(),
            bounds.leaves_nothing_behind(),
        ],
    )
    report = run(scenario, options=options(tmp_path))
    history = History.load(report.directory / "history.jsonl")
    assert history.of("effective")[1]["effect"] == {"container-1": {"exit_status": -9}}
    healed = {event["injection"]: event.t_s for event in history.of("healed")}
    (again,) = (e for e in history.of("process_started") if e.rank == 1 and e.incarnation == 1)
    assert again.t_s < healed[0], "it was up again while its node was cut off"
    (restored,) = (e for e in history.of("restored") if e.rank == 1 and e.incarnation == 1)
    assert restored.t_s > healed[0], "and was cut off, too"


def test_a_full_volume_and_a_killed_container_that_finds_it_again(
    engine: Engine,  # noqa: ARG001
    tmp_path: Path,
) -> None:
    """A limited volume outlives a training container; full, it fails a save and is freed again."""
    scenario = Scenario(
        job=dataclasses.replace(SHORT, nodes=1, steps=110, disk_bytes=128 << 20),
        schedule=[
            Injection(fault=faults.DiskFull(duration_s=1.6), on=volume(), at=at_step(25)),
            Injection(fault=faults.Kill(), on=container_of(0), at=at_step(90)),
        ],
        bounds=[bounds.finishes(), bounds.keeps_acknowledged(), bounds.leaves_nothing_behind()],
    )
    report = run(scenario, options=options(tmp_path))
    history = History.load(report.directory / "history.jsonl")
    assert history.of("effective")[0]["effect"] == {"volume": {"refused": "ENOSPC"}}
    assert [event["step"] for event in history.of("save_failed")] == [40]
    assert [event["step"] for event in history.of("restored")] == [0, 80]


def test_a_container_removed_by_hand_is_a_fault_of_the_harness(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither FAILED nor PASSED: an error that names the container; everything is removed."""
    scenario = Scenario(
        job=dataclasses.replace(SHORT, steps=400),
        schedule=[Injection(fault=faults.Stop(duration_s=1), on=rank(2), at=at_step(5))],
        bounds=[bounds.finishes()],
    )
    from chaoslab.inject.injector import Injector  # noqa: PLC0415

    healthy = Injector.heal

    async def heal(self, *, cut_short: bool) -> None:  # type: ignore[no-untyped-def]
        await healthy(self, cut_short=cut_short)
        for one in engine.api.containers(filters={"label": ["org.chaoslab=1"]}):
            if "-node-1-" in one["Names"][0]:
                engine.api.remove_container(one["Id"], force=True)

    monkeypatch.setattr(Injector, "heal", heal)
    with pytest.raises(HarnessError, match=r"container of node 1 is gone.*status -9"):
        run(scenario, options=options(tmp_path))
