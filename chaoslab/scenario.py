"""Scenario: a job, a schedule and bounds, as one frozen value. Checked before anything starts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaoslab import faults as fault_kinds, schedule as schedules
from chaoslab.bounds import Bound, contradictions
from chaoslab.errors import InvalidScenario
from chaoslab.history import HARNESS_KINDS, RANK_KINDS
from chaoslab.schedule import Injection

MAX_NODES = 250
"""A run's nodes share one /24 subnet, less the store's and the bridge's addresses."""

MIN_DISK_BYTES = 1 << 20
"""A smaller volume holds no checkpoint."""


def _is_seconds(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0  # type: ignore[arg-type,operator]


def _check_disk(size: object) -> None:
    whole = isinstance(size, int) and not isinstance(size, bool)
    if size is not None and not (whole and size >= MIN_DISK_BYTES):  # type: ignore[operator]
        raise InvalidScenario(
            f"Job(disk_bytes={size!r}): want a whole number >= {MIN_DISK_BYTES}, or None"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """What the scheduler, played by the harness, does when a rank's process fails.

    limit: restarts of one rank at most (0: never). delay_s: seconds from the exit to the new
    start. A rank that exits with status 0 or with the circuit-open status is not restarted.
    """

    limit: int = 0
    delay_s: float = 0.5

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: InvalidScenario."""
        if self.limit < 0:
            raise InvalidScenario(f"RestartPolicy(limit={self.limit}): want limit >= 0")
        if not _is_seconds(self.delay_s):
            raise InvalidScenario(
                f"RestartPolicy(delay_s={self.delay_s!r}): want delay_s >= 0, in seconds"
            )


NEVER = RestartPolicy(limit=0)
"""The scheduler restarts nothing."""


def on_failure(*, limit: int, delay_s: float = 0.5) -> RestartPolicy:
    """Restart a failed rank up to `limit` times, `delay_s` seconds after each exit."""
    return RestartPolicy(limit=limit, delay_s=delay_s)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """The training program under test: one script, one rank per process.

    script: path, relative to the directory that pytest runs in. nodes: how many nodes, each
    with ranks_per_node ranks. steps: how many steps the job does; given to the script as
    `--steps N`. args: further arguments. env: further environment. restart: what the
    scheduler does when a rank fails. warm: ranks are forked from a process that has imported
    torch (seconds saved; set False for a script that cannot be forked). limit_s: the run is
    given up after this long. disk_bytes: size of the volume that holds the checkpoints, which is
    then one in memory (None: a directory of the disk, without a limit).
    """

    script: str
    nodes: int
    steps: int
    ranks_per_node: int = 1
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    seed: int = 0
    restart: RestartPolicy = NEVER
    warm: bool = True
    limit_s: float = 300.0
    disk_bytes: int | None = None

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: InvalidScenario."""
        for field in ("nodes", "steps", "ranks_per_node"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidScenario(f"Job({field}={value!r}): want a whole number >= 1")
        if self.nodes > MAX_NODES:
            raise InvalidScenario(f"Job(nodes={self.nodes}): want nodes <= {MAX_NODES}")
        if not _is_seconds(self.limit_s) or self.limit_s == 0:
            raise InvalidScenario(f"Job(limit_s={self.limit_s!r}): want limit_s > 0, in seconds")
        _check_disk(self.disk_bytes)
        if not isinstance(self.restart, RestartPolicy):
            raise InvalidScenario(
                f"Job(restart={self.restart!r}): want NEVER or on_failure(limit=3)"
            )
        if not isinstance(self.script, str) or not isinstance(self.warm, bool):
            given = f"script={self.script!r}, warm={self.warm!r}"
            raise InvalidScenario(f"Job({given}): want a path as a string, and True or False")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InvalidScenario(f"Job(seed={self.seed!r}): want a whole number")
        if not isinstance(self.args, tuple) or not all(isinstance(a, str) for a in self.args):
            raise InvalidScenario(f"Job(args={self.args!r}): want a tuple of strings")
        pairs = self.env if isinstance(self.env, tuple) else ((),)
        if not all(len(p) == 2 and all(isinstance(x, str) for x in p) for p in pairs):  # noqa: PLR2004
            raise InvalidScenario(f"Job(env={self.env!r}): want a tuple of (name, value) strings")

    @property
    def world_size(self) -> int:
        """Give the number of ranks."""
        return self.nodes * self.ranks_per_node

    def node_of(self, rank: int) -> int:
        """Give the node that a rank lives on."""
        return rank // self.ranks_per_node

    def ranks_of(self, node: int) -> tuple[int, ...]:
        """Give the ranks that live on a node."""
        first = node * self.ranks_per_node
        return tuple(range(first, first + self.ranks_per_node))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenario:
    """A job, what goes wrong with it, and what must hold all the same."""

    job: Job
    schedule: Sequence[Injection]
    bounds: Sequence[Bound]
    name: str = ""

    def __post_init__(self) -> None:
        """Refuse whatever can be refused without a machine. Raises: InvalidScenario."""
        if not isinstance(self.job, Job):
            raise InvalidScenario(f"Scenario(job={self.job!r}): want a Job(...)")
        object.__setattr__(self, "schedule", _entries(self.schedule, "schedule", Injection))
        object.__setattr__(self, "bounds", _entries(self.bounds, "bounds", Bound))
        if not self.bounds:
            raise InvalidScenario("Scenario(bounds=[]): want at least one bound to judge by")
        for clash in contradictions(self.bounds):
            raise InvalidScenario(f"Scenario(bounds=...): {clash}")
        for bound in self.bounds:
            if bound.injection is not None and not 0 <= bound.injection < len(self.schedule):
                raise InvalidScenario(
                    f"{bound.code}: want injection in 0..{len(self.schedule) - 1}, a place in "
                    "the schedule"
                )
        _check_holds(self.schedule)
        _check_waits(self.schedule)
        for injection in self.schedule:
            _check_target(self.job, injection.on, injection.fault)
            _check_trigger(self.job, injection, len(self.schedule))
        _check_somebody_stays(self.job, self.schedule)

    @property
    def needs(self) -> frozenset[str]:
        """Names of the agent's capabilities that the schedule needs."""
        return frozenset(name for injection in self.schedule for name in injection.fault.needs)


def _entries(given: Any, field: str, kind: type) -> tuple[Any, ...]:
    """Give a field's entries as a tuple. Raises: InvalidScenario for one of another kind."""
    if isinstance(given, kind) or not isinstance(given, Sequence):
        raise InvalidScenario(f"Scenario({field}={given!r}): want a list of them: [...]")
    for entry in given:
        if not isinstance(entry, kind):
            call = "; it is to be called: add ()" if callable(entry) else ""
            raise InvalidScenario(
                f"Scenario({field}=[{entry!r}]): want {kind.__name__} values, such as "
                + ("bounds.recovers_within(12)" if kind is Bound else "Injection(...)")
                + call
            )
    return tuple(given)


def _check_holds(schedule: Sequence[Injection]) -> None:
    held = [(i.on, i.at.nth) for i in schedule if isinstance(i.at, schedules.DuringSave)]
    for place in held:
        if held.count(place) > 1:
            raise InvalidScenario(
                f"during_save(nth={place[1]}) on {schedules.describe(place[0])}: want one "
                "injection per rank and save"
            )


def _check_waits(schedule: Sequence[Injection]) -> None:
    """Refuse a when_healed that can never come: no such place, no heal there, or a circle."""
    waits = {
        nth: injection.at.injection
        for nth, injection in enumerate(schedule)
        if isinstance(injection.at, schedules.WhenHealed)
    }
    for nth, other in waits.items():
        where = f"when_healed({other!r})"
        if isinstance(other, bool) or not isinstance(other, int) or other == nth:
            raise InvalidScenario(f"{where}: want another place in the schedule")
        if not 0 <= other < len(schedule):
            raise InvalidScenario(f"{where}: want another place in 0..{len(schedule) - 1}")
        if not schedule[other].fault.is_window:
            fault = schedules.describe(schedule[other].fault)
            raise InvalidScenario(f"{where}: {fault} is never healed: want one with duration_s")
        seen = {nth}
        while other in waits:
            if other in seen:
                circle = sorted(seen)
                raise InvalidScenario(
                    f"{where}: injections {circle} wait for each other: want one that another "
                    "trigger starts"
                )
            seen.add(other)
            other = waits[other]  # noqa: PLW2901  walks on from here


def _check_somebody_stays(job: Job, schedule: Sequence[Injection]) -> None:
    lost: set[int] = set()
    for injection in schedule:
        if isinstance(injection.fault, fault_kinds.NodeLoss):
            if isinstance(injection.on, schedules.EverywhereTarget):
                lost |= set(range(job.nodes))
            if isinstance(injection.on, schedules.NodeTarget):
                lost.add(injection.on.node)
            if isinstance(injection.on, schedules.RankTarget):
                lost.add(injection.on.rank // job.ranks_per_node)
    if len(lost) >= job.nodes:
        raise InvalidScenario(
            f"NodeLoss on every one of Job(nodes={job.nodes}): want a node that stays, since of "
            "a lost one nothing is expected"
        )


def check_files(scenario: Scenario, directory: Path) -> Path:
    """Find the job's script below `directory`. Raises: InvalidScenario when there is none."""
    path = (directory / scenario.job.script).resolve()
    if not path.is_file():
        raise InvalidScenario(
            f"Job(script={scenario.job.script!r}): want a file, and there is none at {path}; "
            "the path is relative to the directory that pytest runs in"
        )
    return path


def _check_node(job: Job, index: Any, where: str) -> None:
    if not isinstance(index, int) or not 0 <= index < job.nodes:
        raise InvalidScenario(
            f"{where}: want a node in 0..{job.nodes - 1} (Job(nodes={job.nodes}))"
        )


def _check_target(job: Job, target: schedules.Target, fault: fault_kinds.Fault) -> None:
    for peer in getattr(fault, "to", ()):
        _check_node(job, peer, f"{type(fault).__name__}(to={peer!r})")
    match target:
        case schedules.RankTarget(rank=index):
            if not isinstance(index, int) or not 0 <= index < job.world_size:
                raise InvalidScenario(f"rank({index!r}): want a rank in 0..{job.world_size - 1}")
            _check_peers(fault, index // job.ranks_per_node)
        case (
            schedules.NodeTarget(node=index)
            | schedules.ContainerTarget(node=index)
            | schedules.AgentTarget(node=index)
        ):
            _check_node(job, index, schedules.describe(target))
            _check_peers(fault, index)
        case schedules.RanksTarget(count=count):
            if not 1 <= count <= job.world_size:
                raise InvalidScenario(f"ranks({count}): want 1..{job.world_size} ranks")
        case schedules.LinkTarget(first=first, second=second):
            _check_node(job, first, f"between({first!r}, ...)")
            _check_node(job, second, f"between(..., {second!r})")
            if first == second:
                raise InvalidScenario(f"between({first}, {second}): want two different nodes")
    _check_fits(job, target, fault)
    _check_pairs(job, target, fault)


def _check_peers(fault: fault_kinds.Fault, own: int) -> None:
    if own in getattr(fault, "to", ()):
        raise InvalidScenario(
            f"{schedules.describe(fault)} on node {own}: want other nodes in `to`, since a node's "
            "traffic with itself does not pass its link"
        )


def _check_fits(job: Job, target: schedules.Target, fault: fault_kinds.Fault) -> None:
    process = isinstance(fault, fault_kinds.ProcessFault)
    name = type(fault).__name__
    if isinstance(fault, fault_kinds.Partition):
        if not isinstance(target, schedules.EverywhereTarget):
            raise InvalidScenario(f"{name} on {target!r}: want on=everywhere()")
        for group in fault.groups:
            for index in group:
                _check_node(job, index, f"Partition(groups={fault.groups!r})")
    elif isinstance(target, schedules.LinkTarget) and not isinstance(
        fault, fault_kinds.NetworkFault | fault_kinds.ConnectionReset
    ):
        raise InvalidScenario(f"{name} on between(...): want a fault that can be kept to one peer")
    elif isinstance(target, schedules.AgentTarget) and not process:
        raise InvalidScenario(f"{name} on agent_of(...): want a process fault")
    elif isinstance(fault, fault_kinds.NodeLoss) and isinstance(target, schedules.StoreTarget):
        raise InvalidScenario("NodeLoss on store(): want Kill() or SilentDrop() on store()")


def _check_pairs(job: Job, target: schedules.Target, fault: fault_kinds.Fault) -> None:
    """Check the targets that go with few faults, and the fault that goes with one target."""
    name = type(fault).__name__
    if isinstance(target, schedules.ContainerTarget) and not isinstance(
        fault, fault_kinds.Kill | fault_kinds.Stop
    ):
        raise InvalidScenario(
            f"{name} on container_of(...): want Kill() or Stop(); for one process use rank(n), for "
            "its link node(n)"
        )
    is_disk = isinstance(fault, fault_kinds.DiskFull)
    if is_disk != isinstance(target, schedules.VolumeTarget):
        raise InvalidScenario(f"{name} on {schedules.describe(target)}: want DiskFull on volume()")
    if is_disk and job.disk_bytes is None:
        raise InvalidScenario(
            "DiskFull on volume(): want Job(disk_bytes=), since nothing of the machine's own disk "
            "is filled"
        )


def _check_trigger(  # noqa: C901  one case per trigger
    job: Job, injection: Injection, total: int
) -> None:
    match injection.at:
        case schedules.AtStep(step=step):
            if not isinstance(step, int) or not 1 <= step < job.steps:
                raise InvalidScenario(
                    f"at_step({step!r}): want a step in 1..{job.steps - 1}, before the last one "
                    f"(Job(steps={job.steps}))"
                )
        case schedules.After(delay_s=delay_s):
            if not 0 <= delay_s < job.limit_s:
                raise InvalidScenario(f"after({delay_s}): want 0 <= delay_s < Job(limit_s)")
        case schedules.DuringSave(nth=save, at=at):
            _check_during_save(injection, save, at)
        case schedules.OnEvent(kind=kind, nth=count):
            if kind not in RANK_KINDS | HARNESS_KINDS:
                raise InvalidScenario(f"on_event({kind!r}): want one of {sorted(RANK_KINDS)}")
            if count < 1:
                raise InvalidScenario(f"on_event(nth={count}): want nth >= 1")
        case schedules.WhileRecovering():
            if total == 1:
                raise InvalidScenario("while_recovering(): want an earlier fault in the schedule")


def _check_during_save(injection: Injection, nth: int, at: float) -> None:
    if not isinstance(injection.on, schedules.RankTarget):
        raise InvalidScenario("during_save(): want on=rank(n), the rank whose save is meant")
    if nth < 1:
        raise InvalidScenario(f"during_save(nth={nth}): want nth >= 1")
    if isinstance(at, int):
        if at < 1:
            raise InvalidScenario(f"during_save(at={at}): want the k-th write, k >= 1")
    elif not 0 < at < 1:
        raise InvalidScenario(f"during_save(at={at}): want a ratio 0 < at < 1, or the k-th write")
    elif nth < 2:  # noqa: PLR2004
        raise InvalidScenario(
            f"during_save(nth={nth}, at={at}): a ratio is of the previous save's bytes: "
            "want nth >= 2, or at=k for the k-th write"
        )
