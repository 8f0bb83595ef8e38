"""Bad input is refused before anything starts, in the form: what was given: what is wanted."""

import dataclasses
import math
import re
import signal
from pathlib import Path

import pytest

from chaoslab import (
    Injection,
    InvalidScenario,
    Job,
    Options,
    Scenario,
    after,
    agent_of,
    at_step,
    between,
    bounds,
    container_of,
    during_save,
    everywhere,
    faults,
    node,
    on_event,
    on_failure,
    rank,
    ranks,
    store,
    volume,
    when_healed,
    while_recovering,
)
from chaoslab.options import from_environment
from chaoslab.runner import expectation
from chaoslab.scenario import check_files

JOB = Job(script="examples/charlm.py", nodes=4, steps=100)
SMALL = dataclasses.replace(JOB, disk_bytes=64 << 20)
KILL = Injection(fault=faults.Kill(), on=rank(1), at=at_step(10))
STOP = Injection(fault=faults.Stop(duration_s=2), on=rank(2), at=at_step(10))
FORM = re.compile(r"^\S.*: .*want .+", re.DOTALL)


def scenario(*injections, job=JOB, promises=None):
    return Scenario(job=job, schedule=injections, bounds=promises or [bounds.recovers_within(12)])


BAD_FAULTS = [
    lambda: faults.PacketLoss(ratio=20),
    lambda: faults.PacketLoss(ratio=0),
    lambda: faults.PacketLoss(ratio=-0.1),
    lambda: faults.PacketLoss(ratio=math.nan),
    lambda: faults.PacketLoss(ratio=True),
    lambda: faults.PacketLoss(ratio="0.2"),
    lambda: faults.PacketLoss(ratio=0.2, correlation_ratio=1.5),
    lambda: faults.PacketLoss(ratio=0.2, duration_s=0),
    lambda: faults.PacketLoss(ratio=0.2, duration_s=-3),
    lambda: faults.PacketLoss(ratio=0.2, duration_s=math.inf),
    lambda: faults.PacketLoss(ratio=0.2, direction="sideways"),
    lambda: faults.PacketLoss(ratio=0.2, ports=(0,)),
    lambda: faults.PacketLoss(ratio=0.2, ports=(65536,)),
    lambda: faults.PacketLoss(ratio=0.2, to=(-1,)),
    lambda: faults.BurstLoss(enter_ratio=0, leave_ratio=0.5),
    lambda: faults.FourStateLoss(p13=2),
    lambda: faults.Delay(delay_s=0),
    lambda: faults.Delay(delay_s=1, jitter_s=-1),
    lambda: faults.Delay(delay_s=1e6),
    lambda: faults.Delay(delay_s=1, distribution="bell"),
    lambda: faults.Delay(delay_s=1, distribution=()),
    lambda: faults.Delay(delay_s=1, distribution=(40000,)),
    lambda: faults.Reordering(ratio=0.5, delay_s=0.1, gap=0),
    lambda: faults.RateLimit(rate_bytes_per_s=0),
    faults.Slots,
    lambda: faults.Slots(min_delay_s=0.2, max_delay_s=0.1),
    lambda: faults.Slots(distribution="normal"),
    lambda: faults.Combined(parts=(faults.PacketLoss(ratio=0.1),)),
    lambda: faults.Combined(parts=(faults.PacketLoss(ratio=0.1), faults.PacketLoss(ratio=0.2))),
    lambda: faults.Flapping(down_s=0, up_s=1),
    lambda: faults.Partition(groups=((0, 1),)),
    lambda: faults.Partition(groups=((0, 1), (1, 2))),
    lambda: faults.Kill(duration_s=3),
    lambda: faults.ConnectionReset(duration_s=3),
    lambda: faults.NodeLoss(duration_s=3),
    lambda: faults.Signal(signal=900),
    lambda: faults.Signal(signal=signal.SIGSTOP),
    lambda: faults.Flapping(of=faults.LinkDown(duration_s=3), down_s=1, up_s=1),
    lambda: faults.Combined(
        parts=(faults.PacketLoss(ratio=0.1, duration_s=3), faults.Delay(delay_s=0.1))
    ),
    lambda: faults.Combined(
        parts=(faults.PacketLoss(ratio=0.1, direction="egress"), faults.Delay(delay_s=0.1))
    ),
]

BAD_SCENARIOS = [
    lambda: Scenario(job=JOB, schedule=[], bounds=[]),
    lambda: scenario(Injection(fault=faults.Kill(), on=rank(4), at=at_step(10))),
    lambda: scenario(Injection(fault=faults.Kill(), on=rank(-1), at=at_step(10))),
    lambda: scenario(Injection(fault=faults.LinkDown(), on=node(4), at=at_step(10))),
    lambda: scenario(Injection(fault=faults.Kill(), on=ranks(5), at=at_step(10))),
    lambda: scenario(Injection(fault=faults.Kill(), on=ranks(0), at=at_step(10))),
    lambda: scenario(Injection(fault=faults.SilentDrop(to=(7,)), on=node(1), at=at_step(10))),
    lambda: scenario(Injection(fault=faults.SilentDrop(), on=between(1, 1), at=at_step(10))),
    lambda: scenario(Injection(fault=faults.LinkDown(), on=between(1, 2), at=at_step(10))),
    lambda: scenario(Injection(fault=faults.LinkDown(), on=agent_of(1), at=at_step(10))),
    lambda: scenario(Injection(fault=faults.NodeLoss(), on=store(), at=at_step(10))),
    lambda: scenario(Injection(fault=faults.Kill(), on=container_of(4), at=at_step(10))),
    lambda: scenario(Injection(fault=faults.DiskFull(), on=volume(), at=at_step(10))),
    lambda: scenario(Injection(fault=faults.DiskFull(), on=node(1), at=at_step(10)), job=SMALL),
    lambda: scenario(Injection(fault=faults.Kill(), on=volume(), at=at_step(10)), job=SMALL),
    lambda: dataclasses.replace(JOB, disk_bytes=100),
    lambda: dataclasses.replace(JOB, disk_bytes=True),
    lambda: dataclasses.replace(JOB, disk_bytes=1e9),
    lambda: scenario(Injection(fault=faults.LinkDown(), on=container_of(1), at=at_step(10))),
    lambda: scenario(Injection(fault=faults.Signal(signal=15), on=container_of(1), at=at_step(9))),
    lambda: scenario(
        Injection(fault=faults.Partition(groups=((0,), (1,))), on=node(0), at=at_step(10))
    ),
    lambda: scenario(
        Injection(fault=faults.Partition(groups=((0,), (9,))), on=everywhere(), at=at_step(10))
    ),
    lambda: scenario(Injection(fault=faults.Kill(), on=rank(1), at=at_step(100))),
    lambda: scenario(Injection(fault=faults.Kill(), on=rank(1), at=at_step(0))),
    lambda: scenario(Injection(fault=faults.Kill(), on=rank(1), at=after(-1))),
    lambda: scenario(Injection(fault=faults.Kill(), on=rank(1), at=after(1e9))),
    lambda: scenario(Injection(fault=faults.Kill(), on=rank(1), at=during_save(nth=1))),
    lambda: scenario(Injection(fault=faults.Kill(), on=rank(1), at=during_save(nth=0, at=3))),
    lambda: scenario(Injection(fault=faults.Kill(), on=rank(1), at=during_save(nth=2, at=0))),
    lambda: scenario(Injection(fault=faults.Kill(), on=rank(1), at=during_save(nth=2, at=1.5))),
    lambda: scenario(Injection(fault=faults.Kill(), on=node(1), at=during_save(nth=2))),
    lambda: scenario(Injection(fault=faults.Kill(), on=rank(1), at=on_event("explosion"))),
    lambda: scenario(Injection(fault=faults.Kill(), on=rank(1), at=on_event("step", nth=0))),
    lambda: scenario(Injection(fault=faults.Kill(), on=rank(1), at=when_healed(0))),
    lambda: scenario(Injection(fault=faults.Kill(), on=rank(1), at=while_recovering())),
    lambda: Injection(fault="kill", on=rank(1), at=at_step(1)),
    lambda: Injection(fault=faults.Kill(), on=1, at=at_step(1)),
    lambda: Injection(fault=faults.Kill(), on=rank(1), at=50),
    lambda: Injection(fault=faults.Fault(), on=rank(1), at=at_step(1)),
    lambda: Injection(fault=faults.NetworkFault(), on=rank(1), at=at_step(1)),
    lambda: Injection(fault=faults.ProcessFault(), on=rank(1), at=at_step(1)),
    lambda: scenario(Injection(fault=faults.SilentDrop(to=(1,)), on=node(1), at=at_step(1))),
    lambda: scenario(Injection(fault=faults.SilentDrop(to=(0, 3)), on=rank(3), at=at_step(1))),
    lambda: scenario(STOP, Injection(fault=faults.Kill(), on=rank(1), at=when_healed(7))),
    lambda: scenario(STOP, Injection(fault=faults.Kill(), on=rank(1), at=when_healed(-1))),
    lambda: scenario(STOP, Injection(fault=faults.Kill(), on=rank(1), at=when_healed("0"))),
    lambda: scenario(KILL, Injection(fault=faults.Stop(), on=rank(2), at=when_healed(0))),
    lambda: scenario(*[dataclasses.replace(STOP, at=when_healed(n)) for n in (1, 0)]),
    lambda: scenario(*[dataclasses.replace(STOP, at=when_healed(n)) for n in (1, 2, 1)]),
    lambda: scenario(
        *[Injection(fault=faults.NodeLoss(), on=node(n), at=at_step(5)) for n in range(4)]
    ),
    lambda: scenario(
        Injection(fault=faults.NodeLoss(), on=rank(1), at=at_step(5)),
        job=Job(script="x.py", nodes=1, ranks_per_node=2, steps=9),
    ),
    lambda: Job(script="x.py", nodes=2, steps=1, restart=3),
    lambda: Job(script=7, nodes=2, steps=1),
    lambda: Job(script="x.py", nodes=2, steps=1, warm="no"),
    lambda: Job(script="x.py", nodes=2, steps=1, seed="7"),
    lambda: Scenario(job="x.py", schedule=[KILL], bounds=[bounds.finishes()]),
    lambda: scenario(KILL, promises=[bounds.finishes]),
    lambda: scenario(KILL, promises=[12]),
    lambda: scenario(KILL, promises=bounds.finishes()),
    lambda: Scenario(job=JOB, schedule=KILL, bounds=[bounds.finishes()]),
    lambda: scenario(faults.Kill()),
    lambda: Job(script="x.py", nodes=0, steps=1),
    lambda: Job(script="x.py", nodes=4, steps=-1),
    lambda: Job(script="x.py", nodes=9999, steps=1),
    lambda: Job(script="x.py", nodes=1, steps=1, limit_s=0),
    lambda: Job(script="x.py", nodes=1, steps=1, limit_s=math.inf),
    lambda: Job(script="x.py", nodes=1, steps=1, limit_s="300"),
    lambda: Job(script="x.py", nodes=1, steps=1, args="--save-every 5"),
    lambda: Job(script="x.py", nodes=1, steps=1, env=(("A", 1),)),
    lambda: on_failure(limit=1, delay_s=math.nan),
    lambda: scenario(KILL, promises=[bounds.recovers_within(12, injection=7)]),
    lambda: scenario(
        *[Injection(fault=faults.Kill(), on=rank(1), at=during_save(nth=2, at=a)) for a in (1, 2)]
    ),
    lambda: scenario(Injection(fault=faults.Kill(), on=rank(1), at=on_event("steady"))),
    lambda: on_failure(limit=-1),
    lambda: on_failure(limit=1, delay_s=-1),
    lambda: bounds.recovers_within(0),
    lambda: bounds.recovers_within(-1),
    lambda: scenario(KILL, promises=[bounds.recovers_within(12), bounds.recovers_within(15)]),
    lambda: scenario(KILL, promises=[bounds.recovers_within(12), bounds.circuit_opens_within(30)]),
    lambda: Options(backend="cloud"),
    lambda: Options(kernel="windows"),
    lambda: Options(repeat=0),
    lambda: from_environment({"CHAOS_SEED": "seven"}),
    lambda: check_files(scenario(job=Job(script="absent.py", nodes=1, steps=9)), Path.cwd()),
]


@pytest.mark.parametrize("make", BAD_FAULTS)
def test_a_fault_out_of_range_is_refused_in_the_house_form(make) -> None:
    """A fault that cannot be is refused where it is written, saying what is wanted."""
    with pytest.raises(InvalidScenario, match=FORM):
        make()


@pytest.mark.parametrize("make", BAD_SCENARIOS)
def test_a_scenario_that_cannot_be_is_refused_in_the_house_form(make) -> None:
    """A scenario that cannot be is refused where it is written, saying what is wanted."""
    with pytest.raises(InvalidScenario, match=FORM):
        make()


def test_a_percentage_is_answered_with_the_ratio_to_write() -> None:
    """The commonest slip is answered with its mend."""
    with pytest.raises(InvalidScenario, match=r"for 20 % write ratio=0\.20"):
        faults.PacketLoss(ratio=20)


BAD_ON_A_LINK = [
    faults.FourStateLoss(p13=0.2, p32=0.1),
    faults.FourStateLoss(p13=0.7, p14=0.6),
    faults.FourStateLoss(p13=0.2, p31=0.0),
    faults.Delay(delay_s=5, jitter_s=2.2),
    faults.Delay(delay_s=0.1, distribution="normal"),
    faults.Delay(delay_s=0.1, correlation_ratio=0.5),
    faults.Delay(delay_s=0.1, jitter_s=0.01, distribution=(0.5, 1)),
    faults.Delay(delay_s=0.1, jitter_s=0.01, distribution=(0,) * 12289),
    faults.Slots(distribution="uniform", delay_s=0.1, jitter_s=0.01),
    faults.Slots(distribution="normal", delay_s=0.1),
    faults.Slots(min_delay_s=0.01, max_delay_s=0.02, packets=-1),
    faults.Combined(
        parts=(faults.PacketLoss(ratio=0.1), faults.BurstLoss(enter_ratio=0.1, leave_ratio=0.5))
    ),
    faults.PacketLoss(ratio=0.1, seed=-1),
    faults.PacketLoss(ratio=0.1, limit_packets=0),
    faults.RateLimit(rate_bytes_per_s=1.5),
    faults.RateLimit(rate_bytes_per_s=1000, cell_size_bytes=-1),
    faults.Flapping(down_s=0.0005, up_s=1),
    faults.ConnectionReset(ports=(0,)),
    faults.SilentDrop(ports=tuple(range(1, 1026))),
]
"""Each is sound by itself, or so it seems; the agent would refuse it in the middle of a run."""


@pytest.mark.parametrize("fault", BAD_ON_A_LINK, ids=lambda fault: type(fault).__name__)
def test_what_an_agent_would_refuse_is_refused_before_anything_starts(fault) -> None:
    """The message names the fault as it was written, and what is wanted."""
    injection = Injection(fault=fault, on=node(1), at=at_step(5))
    with pytest.raises(InvalidScenario, match=FORM) as caught:
        expectation(scenario(injection), Options())
    assert type(fault).__name__ in str(caught.value)


@pytest.mark.parametrize("target", [everywhere(), ranks(4), between(1, 2)])
def test_a_nodes_traffic_with_itself_is_refused_on_every_target(target) -> None:
    """It passes no link. The healthy twin names another node."""
    own, other = (
        Injection(fault=faults.SilentDrop(to=(to,)), on=target, at=at_step(5)) for to in (1, 9)
    )
    with pytest.raises(InvalidScenario, match="traffic with itself"):
        expectation(scenario(own), Options())
    wide = dataclasses.replace(JOB, nodes=10)
    if target == between(1, 2):
        expectation(scenario(other, job=wide), Options())


GOOD = [
    Injection(fault=faults.PacketLoss(ratio=1), on=rank(3), at=at_step(99)),
    Injection(fault=faults.SilentDrop(to=(0,)), on=node(1), at=after(0)),
    Injection(fault=faults.LinkDown(duration_s=1), on=store(), at=at_step(1)),
    Injection(fault=faults.Kill(), on=ranks(4), at=on_event("save_begun", nth=2)),
    Injection(fault=faults.Kill(), on=rank(0), at=during_save(nth=1, at=1)),
    Injection(fault=faults.Stop(), on=store(), at=when_healed(2)),
    Injection(fault=faults.Kill(), on=agent_of(0), at=while_recovering()),
    Injection(fault=faults.Kill(), on=container_of(3), at=at_step(5)),
    Injection(fault=faults.Stop(duration_s=1), on=container_of(0), at=at_step(5)),
    Injection(fault=faults.Partition(groups=((0,), (1, 2))), on=everywhere(), at=at_step(5)),
    Injection(fault=faults.Delay(delay_s=0.05), on=between(0, 3), at=at_step(5)),
]


def test_a_full_disk_of_a_limited_volume_is_taken() -> None:
    """The healthy twin of the three that are refused."""
    full = Injection(fault=faults.DiskFull(duration_s=2), on=volume(), at=at_step(10))
    assert scenario(full, job=SMALL).job.disk_bytes == 64 << 20


def test_a_chain_of_heals_and_a_node_that_stays_are_taken() -> None:
    """The healthy twins of the circle, and of the loss of every node."""
    chain = [STOP, *[dataclasses.replace(STOP, at=when_healed(n)) for n in (0, 1)]]
    losses = [Injection(fault=faults.NodeLoss(), on=node(n), at=at_step(5)) for n in range(3)]
    assert len(scenario(*chain, *losses).schedule) == 6


def test_the_healthy_twins_are_taken() -> None:
    """The same kinds of values, in range, make a scenario."""
    made = scenario(*GOOD)
    assert made.schedule == tuple(GOOD)
    assert {"netem", "silent_drop", "link_down"} <= made.needs
