"""Every fault, written as a user writes it, on real nodes: seen to bite, and seen to be healed."""

import dataclasses
import signal

import pytest

from chaoslab import (
    NEVER,
    BoundExceeded,
    Injection,
    InvalidScenario,
    Job,
    NotProven,
    Options,
    Scenario,
    after,
    agent_of,
    at_step,
    between,
    bounds,
    container_of,
    everywhere,
    faults,
    node,
    on_event,
    on_failure,
    rank,
    ranks,
    run,
    store,
    volume,
    when_healed,
)
from chaoslab.cluster.namespaces import NamespacesCluster
from chaoslab.history import History

JOB = Job(
    script="tests/trainers/counter.py",
    nodes=3,
    steps=400,
    limit_s=90,
    restart=on_failure(limit=2, delay_s=0.1),
)
WINDOW_S = 1.0

ON_ANY_KERNEL = [
    (faults.LinkDown(duration_s=WINDOW_S), node(1)),
    (faults.LinkDown(duration_s=WINDOW_S), store()),
    (faults.SilentDrop(duration_s=WINDOW_S), rank(2)),
    (faults.SilentDrop(duration_s=WINDOW_S, direction="egress"), node(1)),
    (faults.SilentDrop(duration_s=WINDOW_S, direction="ingress"), node(1)),
    (faults.SilentDrop(duration_s=WINDOW_S), between(0, 2)),
    (faults.Flapping(down_s=0.2, up_s=0.2, duration_s=WINDOW_S), node(1)),
    (faults.Partition(groups=((0,), (1, 2)), duration_s=WINDOW_S), everywhere()),
    (faults.Partition(groups=((0,), (1, 2)), one_way=True, duration_s=WINDOW_S), everywhere()),
    (faults.Partition(groups=((0, 1), (2,)), cut_store=True, duration_s=WINDOW_S), everywhere()),
    (faults.Stop(duration_s=WINDOW_S), rank(1)),
    (faults.Stop(duration_s=WINDOW_S), ranks(2)),
    (faults.Stop(duration_s=WINDOW_S), store()),
    (faults.Stop(duration_s=WINDOW_S), container_of(1)),
]
MOMENTS = [
    (faults.Kill(), rank(1)),
    (faults.Kill(), ranks(2)),
    (faults.Kill(), store()),
    (faults.Kill(), agent_of(1)),
    (faults.Kill(), container_of(1)),
    (faults.Signal(signal=signal.SIGTERM), rank(0)),
    (faults.Signal(signal=signal.SIGSEGV), rank(0)),
    (faults.NodeLoss(), node(2)),
]
WITH_NETEM = [
    faults.PacketLoss(ratio=0.2, duration_s=WINDOW_S),
    faults.PacketLoss(ratio=0.01, direction="egress", duration_s=WINDOW_S),
    faults.PacketLoss(ratio=0.2, to=(0,), duration_s=WINDOW_S),
    faults.BurstLoss(enter_ratio=0.1, leave_ratio=0.4, duration_s=WINDOW_S),
    faults.FourStateLoss(p13=0.2, p31=0.8, p32=0.1, duration_s=WINDOW_S),
    faults.Delay(delay_s=0.05, jitter_s=0.01, distribution="normal", duration_s=WINDOW_S),
    faults.Delay(delay_s=2.0, duration_s=6.0),
    faults.Duplication(ratio=0.5, duration_s=WINDOW_S),
    faults.Corruption(ratio=0.5, duration_s=WINDOW_S),
    faults.Reordering(ratio=0.5, delay_s=0.02, duration_s=WINDOW_S),
    faults.RateLimit(rate_bytes_per_s=20_000, duration_s=WINDOW_S),
    faults.Slots(min_delay_s=0.02, max_delay_s=0.03, duration_s=WINDOW_S),
    faults.Combined(
        parts=(faults.PacketLoss(ratio=0.3), faults.Delay(delay_s=0.02)), duration_s=WINDOW_S
    ),
]


def name(value):
    return type(value).__name__


def story(tmp_path, *injections, promises, job=JOB, kernel="host"):
    scenario = Scenario(job=job, schedule=injections, bounds=promises)
    report = run(scenario, options=Options(reports=tmp_path, kernel=kernel))
    return History.load(report.directory / "history.jsonl")


@pytest.mark.netem(needed=False)
@pytest.mark.parametrize(("fault", "target"), ON_ANY_KERNEL, ids=name)
def test_a_fault_with_a_window_bites_and_is_healed(tmp_path, fault, target) -> None:
    """Evidence and effect are in the record, then the heal; the nodes are pristine again."""
    injection = Injection(fault=fault, on=target, at=at_step(20))
    history = story(tmp_path, injection, promises=[bounds.recovers_within(20)])
    assert len(history.of("effective")) == len(history.of("healed")) == 1
    window_s = history.of("healed")[0].t_s - history.of("injected")[0].t_s
    assert WINDOW_S * 0.9 <= window_s <= WINDOW_S + 5
    assert not history.of("not_pristine")
    assert history.of("injected")[0]["evidence"]
    assert history.of("effective")[0]["effect"]


@pytest.mark.netem(needed=False)
@pytest.mark.parametrize(("fault", "target"), MOMENTS, ids=name)
def test_a_fault_of_a_moment_bites(tmp_path, fault, target) -> None:
    """A process that is gone is seen to be gone, with its status."""
    injection = Injection(fault=fault, on=target, at=at_step(20))
    history = story(tmp_path, injection, promises=[bounds.leaves_nothing_behind()])
    (effective,) = history.of("effective")
    assert effective["effect"]
    assert not history.of("healed", "not_healed", "not_effective")


@pytest.mark.netem
@pytest.mark.parametrize("fault", WITH_NETEM, ids=name)
def test_a_netem_fault_bites_and_is_healed(tmp_path, fault) -> None:
    """Each attribute of netem, as a scenario uses it: seen to bite, healed, pristine."""
    injection = Injection(fault=fault, on=node(1), at=at_step(20))
    job = dataclasses.replace(JOB, steps=350 if fault.duration_s == WINDOW_S else 900)
    history = story(
        tmp_path, injection, promises=[bounds.recovers_within(20)], job=job, kernel="auto"
    )
    assert len(history.of("effective")) == len(history.of("healed")) == 1
    assert not history.of("not_pristine")


@pytest.mark.netem(needed=False)
def test_connections_are_reset_and_the_job_survives(tmp_path) -> None:
    """A reset tears the job's own connections; the ranks notice, and go on."""
    job = Job(
        script="examples/charlm.py",
        nodes=2,
        steps=60,
        args=("--save-every", "10", "--step-floor-s", "0.03"),
        restart=on_failure(limit=2),
    )
    injection = Injection(fault=faults.ConnectionReset(), on=node(1), at=at_step(20))
    promises = [bounds.noticed_within(15), bounds.recovers_within(12), bounds.finishes()]
    history = story(tmp_path, injection, promises=promises, job=job)
    assert history.of("effective")
    assert history.of("failure_seen")


@pytest.mark.netem(needed=False)
def test_triggers_follow_each_other(tmp_path) -> None:
    """One fault after the heal of another, and one after a time, in the order asked for."""
    stop = faults.Stop(duration_s=0.3)
    injections = [
        Injection(fault=stop, on=rank(0), at=at_step(10)),
        Injection(fault=stop, on=rank(1), at=when_healed(0)),
        Injection(fault=stop, on=rank(2), at=after(2)),
    ]
    history = story(tmp_path, *injections, promises=[bounds.recovers_within(20)])
    begun = {event["injection"]: event.t_s for event in history.of("injected")}
    healed = {event["injection"]: event.t_s for event in history.of("healed")}
    assert begun[1] >= healed[0]
    assert begun[2] - history.of("step")[0].t_s >= 2


@pytest.mark.netem(needed=False)
def test_a_window_that_the_jobs_end_cuts_short_is_unknown(tmp_path) -> None:
    """A job that is over before the heal has not shown that it recovers."""
    job = dataclasses.replace(JOB, steps=200)
    injection = Injection(fault=faults.LinkDown(duration_s=30), on=node(1), at=at_step(20))
    with pytest.raises(NotProven, match="ended inside the window"):
        story(tmp_path, injection, promises=[bounds.finishes()], job=job)


@pytest.mark.netem(needed=False)
def test_a_kill_that_ends_the_job_is_proven(tmp_path) -> None:
    """The end of the last rank is the end of the run, and the fault's effect all the same."""
    job = dataclasses.replace(JOB, nodes=1, restart=NEVER)
    injection = Injection(fault=faults.Kill(), on=rank(0), at=at_step(20))
    history = story(tmp_path, injection, promises=[bounds.leaves_nothing_behind()], job=job)
    assert history.of("effective")


@pytest.mark.netem(needed=False)
def test_a_lost_node_loses_its_ranks_children_too(tmp_path) -> None:
    """What a rank has forked is on the node that is gone: it is no leak of the job's."""
    job = dataclasses.replace(JOB, nodes=2, args=("--child-of", "1"))
    injection = Injection(fault=faults.NodeLoss(), on=node(1), at=at_step(20))
    history = story(tmp_path, injection, promises=[bounds.leaves_nothing_behind()], job=job)
    assert history.of("effective")


@pytest.mark.netem(needed=False)
def test_a_killed_container_loses_what_ranks_have_started_and_is_begun_anew(tmp_path) -> None:
    """A child that has left its rank's session goes, too; a rank is started there again."""
    job = dataclasses.replace(JOB, nodes=2, ranks_per_node=2, args=("--child-of", "2"))
    injection = Injection(fault=faults.Kill(), on=container_of(1), at=at_step(20))
    promises = [bounds.leaves_nothing_behind(), bounds.recovers_within(20)]
    history = story(tmp_path, injection, promises=promises, job=job)
    assert history.of("effective")[0]["effect"] == {"container-1": {"exit_status": -9}}
    killed = [
        e.rank for e in history.of("process_exited") if e["status"] == -9 and "rank" in e["key"]
    ]
    assert sorted(killed) == [2, 3]
    assert sorted(e.rank for e in history.of("process_started") if e.incarnation == 1) == [2, 3]


@pytest.mark.netem(needed=False)
def test_a_kill_of_a_nodes_ranks_leaves_what_they_have_started(tmp_path) -> None:
    """The twin: the same child is seen to live on where only the ranks are killed."""
    job = dataclasses.replace(JOB, nodes=2, ranks_per_node=2, args=("--child-of", "2"))
    injection = Injection(fault=faults.Kill(), on=node(1), at=at_step(20))
    with pytest.raises(BoundExceeded, match="left behind: process"):
        story(tmp_path, injection, promises=[bounds.leaves_nothing_behind()], job=job)


@pytest.mark.netem(needed=False)
def test_a_full_disk_fails_saves_and_no_more(tmp_path) -> None:
    """While the volume is full a save fails and the job runs on; then it saves again."""
    job = Job(
        script="examples/charlm.py",
        nodes=2,
        steps=140,
        args=("--save-every", "20", "--step-floor-s", "0.05"),
        disk_bytes=128 << 20,
    )
    full = Injection(fault=faults.DiskFull(duration_s=1.6), on=volume(), at=at_step(45))
    promises = [bounds.finishes(), bounds.never_restarts(), bounds.leaves_nothing_behind()]
    history = story(tmp_path, full, promises=promises, job=job)
    assert history.of("effective")[0]["effect"] == {"volume": {"refused": "ENOSPC"}}
    assert history.of("healed")
    failed = {event["step"] for event in history.of("save_failed")}
    saved = {event["step"] for event in history.of("save_committed")}
    assert failed <= {60, 80}
    assert 60 in failed
    assert {20, 40, 120, 140} <= saved
    assert not failed & saved


@pytest.mark.netem(needed=False)
@pytest.mark.parametrize(
    ("full", "words"),
    [
        pytest.param(False, "the volume took a byte", id="never_full"),
        pytest.param(True, "the volume refuses a byte still", id="never_freed"),
    ],
)
def test_a_volume_that_is_not_as_it_should_be_is_seen(tmp_path, monkeypatch, full, words) -> None:
    """Planted: a fault that fills nothing is not proven, and one that stays is not healed."""
    healthy = NamespacesCluster.fill

    async def fill(self, **_):
        return await healthy(self, full=full)

    monkeypatch.setattr(NamespacesCluster, "fill", fill)
    job = dataclasses.replace(JOB, disk_bytes=1 << 20)
    injection = Injection(fault=faults.DiskFull(duration_s=WINDOW_S), on=volume(), at=at_step(20))
    with pytest.raises(NotProven, match=words):
        story(tmp_path, injection, promises=[bounds.finishes()], job=job)


@pytest.mark.netem(needed=False)
def test_an_end_by_another_signal_does_not_prove_a_kill(tmp_path) -> None:
    """A Stop of a process that has been killed meanwhile is a miss, and said."""
    kill = Injection(fault=faults.Kill(), on=rank(1), at=at_step(20))
    stop = Injection(fault=faults.Stop(duration_s=0.2), on=rank(1), at=on_event("effective"))
    job = dataclasses.replace(JOB, restart=NEVER)
    with pytest.raises(NotProven, match=r"no running process|ended before"):
        story(tmp_path, kill, stop, promises=[bounds.leaves_nothing_behind()], job=job)


@pytest.mark.netem(needed=False)
def test_a_stop_reaches_what_a_rank_has_started(tmp_path) -> None:
    """A launcher's trainer, in a session of its own, stands still too; and goes on after it."""
    job = dataclasses.replace(JOB, script="tests/trainers/launcher.py")
    stop = Injection(fault=faults.Stop(duration_s=WINDOW_S), on=rank(1), at=at_step(20))
    history = story(tmp_path, stop, promises=[bounds.recovers_within(20)], job=job)
    proven_s, healed_s = history.of("effective")[0].t_s, history.of("healed")[0].t_s
    steps = [event.t_s for event in history.of("step") if event.rank == 1]
    assert not [t_s for t_s in steps if proven_s < t_s < proven_s + 0.8 * WINDOW_S]
    assert max(steps) > healed_s


@pytest.mark.netem(needed=False)
def test_a_heal_is_seen_although_another_node_is_cut_off(tmp_path) -> None:
    """The probe goes to those nodes only that no other fault cuts off at that moment."""
    job = dataclasses.replace(JOB, steps=1200)
    injections = [
        Injection(fault=faults.SilentDrop(duration_s=9), on=node(2), at=at_step(20)),
        Injection(fault=faults.LinkDown(duration_s=WINDOW_S), on=node(1), at=at_step(20)),
    ]
    history = story(tmp_path, *injections, promises=[bounds.finishes()], job=job)
    healed = {event["injection"]: event.t_s for event in history.of("healed")}
    assert healed[0] - healed[1] > 5, "healed before a probe of the cut node would be given up"


@pytest.mark.netem
def test_what_a_fault_still_holds_at_the_end_is_nobodys(tmp_path) -> None:
    """The last packets of the ranks are on their way for 0.4 s when the job is over."""
    args = ("--timeout-s", "10", "--step-floor-s", "0.1")
    job = Job(script="examples/charlm.py", nodes=2, steps=25, args=args)
    delay = Injection(fault=faults.Delay(delay_s=0.4), on=node(1), at=at_step(15))
    history = story(tmp_path, delay, promises=[bounds.finishes()], job=job, kernel="auto")
    assert history.of("effective")
    assert not history.of("not_pristine")


@pytest.mark.netem(needed=False)
def test_a_loss_of_every_node_by_the_seeds_draw_is_refused(tmp_path) -> None:
    """Nothing would be expected of anybody, and that is no pass."""
    job = dataclasses.replace(JOB, nodes=2)
    loss = Injection(fault=faults.NodeLoss(), on=ranks(2), at=at_step(20))
    with pytest.raises(InvalidScenario, match="want a node that stays"):
        story(tmp_path, loss, promises=[bounds.finishes()], job=job)
