"""Schedules: which fault hits which target, and when. Frozen values, no effect.

An injection is one fault on one target at one trigger; a schedule is a list of them.
"""

from __future__ import annotations

import dataclasses
import random

from chaoslab.errors import InvalidScenario
from chaoslab.faults import Fault, NetworkFault, ProcessFault

# --- targets ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankTarget:
    """One rank: its process for a process fault, its node's link for a network fault."""

    rank: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeTarget:
    """One node: its link, or every rank on it."""

    node: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContainerTarget:
    """The training container of one node: all that runs on the node, but not its network."""

    node: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreTarget:
    """The rendezvous store: its process, or its host's link."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentTarget:
    """The agent of one node."""

    node: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class RanksTarget:
    """`count` ranks, drawn from the run's seed."""

    count: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkTarget:
    """The traffic between two nodes: the fault acts at the first, on packets of the second."""

    first: int
    second: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class EverywhereTarget:
    """Every node of the cluster (for a partition)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class VolumeTarget:
    """The volume that holds the checkpoints, which all nodes share."""


Target = (
    RankTarget
    | NodeTarget
    | ContainerTarget
    | StoreTarget
    | AgentTarget
    | RanksTarget
    | LinkTarget
    | EverywhereTarget
    | VolumeTarget
)


def rank(index: int) -> RankTarget:
    """Target one rank, 0-based."""
    return RankTarget(rank=index)


def node(index: int) -> NodeTarget:
    """Target one node, 0-based."""
    return NodeTarget(node=index)


def container_of(index: int) -> ContainerTarget:
    """Target the training container of one node, 0-based: every process of it at once.

    Its network, and the faults on it, stay. Where a node is no container, its processes are meant.
    """
    return ContainerTarget(node=index)


def store() -> StoreTarget:
    """Target the rendezvous store."""
    return StoreTarget()


def agent_of(index: int) -> AgentTarget:
    """Target the agent of one node."""
    return AgentTarget(node=index)


def ranks(count: int) -> RanksTarget:
    """Target `count` ranks, drawn from the run's seed."""
    return RanksTarget(count=count)


def one_rank() -> RanksTarget:
    """Target one rank, drawn from the run's seed."""
    return RanksTarget(count=1)


def between(first: int, second: int) -> LinkTarget:
    """Target the traffic between two nodes."""
    return LinkTarget(first=first, second=second)


def everywhere() -> EverywhereTarget:
    """Target every node."""
    return EverywhereTarget()


def volume() -> VolumeTarget:
    """Target the volume that holds the checkpoints."""
    return VolumeTarget()


def drawn_ranks(target: RanksTarget, *, world_size: int, seed: int, nth: int) -> tuple[int, ...]:
    """Draw the ranks of a target: the same seed and injection give the same ranks, always."""
    generator = random.Random(f"{seed}/{nth}")  # noqa: S311  reproducible, not secret
    return tuple(sorted(generator.sample(range(world_size), target.count)))


# --- triggers --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class AtStep:
    """As soon as any rank has completed this step (steps count from 1)."""

    step: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class After:
    """This long after the job's first completed step, in seconds."""

    delay_s: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class DuringSave:
    """In the middle of the target rank's nth save: the rank is held inside that write.

    at: the k-th write call (int, 1-based), or a ratio of the previous save's bytes (float),
    for which nth must be 2 or more.
    """

    nth: int
    at: int | float


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnEvent:
    """When the nth event of this kind arrives, from any rank."""

    kind: str
    nth: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class WhenHealed:
    """When another injection of the schedule, by its place in it, has been healed."""

    injection: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class WhileRecovering:
    """At the first failure_seen that follows an earlier fault."""


Trigger = AtStep | After | DuringSave | OnEvent | WhenHealed | WhileRecovering


def at_step(step: int) -> AtStep:
    """Trigger as soon as any rank has completed this step."""
    return AtStep(step=step)


def after(delay_s: float) -> After:
    """Trigger this many seconds after the first completed step."""
    return After(delay_s=delay_s)


def during_save(*, nth: int, at: float = 0.5) -> DuringSave:
    """Trigger in the middle of the nth save: `at` a ratio of its bytes, or its k-th write."""
    return DuringSave(nth=nth, at=at)


def on_event(kind: str, *, nth: int = 1) -> OnEvent:
    """Trigger at the nth event of a kind."""
    return OnEvent(kind=kind, nth=nth)


def when_healed(injection: int) -> WhenHealed:
    """Trigger when the injection at this place of the schedule has been healed."""
    return WhenHealed(injection=injection)


def while_recovering() -> WhileRecovering:
    """Trigger at the first failure that a rank notices."""
    return WhileRecovering()


# --- injections ------------------------------------------------------------------------------


_TARGETS = (
    "rank(n), ranks(k), one_rank(), node(n), container_of(n), store(), agent_of(n), between(a, b), "
    "everywhere(), volume()"
)
_TRIGGERS = (
    "at_step(n), after(s), during_save(nth=n), on_event(kind), when_healed(i), while_recovering()"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Injection:
    """One fault on one target at one trigger."""

    fault: Fault
    on: Target
    at: Trigger

    def __post_init__(self) -> None:
        """Refuse what is not a fault, a target or a trigger. Raises: InvalidScenario."""
        for field, value, types, fix in (
            ("fault", self.fault, Fault, "chaoslab.faults, such as faults.Kill()"),
            (
                "on",
                self.on,
                Target,
                _TARGETS,
            ),
            (
                "at",
                self.at,
                Trigger,
                _TRIGGERS,
            ),
        ):
            if not isinstance(value, types):
                raise InvalidScenario(f"Injection({field}={value!r}): want one of {fix}")
        if type(self.fault) in (Fault, NetworkFault, ProcessFault):
            name = type(self.fault).__name__
            raise InvalidScenario(
                f"Injection(fault={name}(...)): a family, and no fault: want one of it, such as "
                "faults.Kill() or faults.SilentDrop(duration_s=20)"
            )


def describe(value: object) -> str:
    """Give a fault, target or trigger as code to paste: only what differs from the defaults."""
    return _target(value) or _trigger(value) or _as_call(value)


def _target(value: object) -> str:  # noqa: PLR0911  one case per kind
    match value:
        case RankTarget(rank=index):
            return f"rank({index})"
        case NodeTarget(node=index):
            return f"node({index})"
        case ContainerTarget(node=index):
            return f"container_of({index})"
        case AgentTarget(node=index):
            return f"agent_of({index})"
        case RanksTarget(count=count):
            return "one_rank()" if count == 1 else f"ranks({count})"
        case LinkTarget(first=first, second=second):
            return f"between({first}, {second})"
    plain = {StoreTarget: "store()", EverywhereTarget: "everywhere()", VolumeTarget: "volume()"}
    return plain.get(type(value), "")


def _trigger(value: object) -> str:
    match value:
        case AtStep(step=step):
            return f"at_step({step})"
        case After(delay_s=delay_s):
            return f"after({delay_s:g})"
        case WhenHealed(injection=injection):
            return f"when_healed({injection})"
        case WhileRecovering():
            return "while_recovering()"
    return ""


def _as_call(value: object) -> str:
    """Give a dataclass as the call that makes it; tuples of them too."""
    if isinstance(value, tuple):
        inner = ", ".join(describe(entry) for entry in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return repr(value)
    shown = []
    for field in dataclasses.fields(value):
        given = getattr(value, field.name)
        if given != _default(field):
            shown.append(f"{field.name}={describe(given)}")
    return f"{_NAMES.get(type(value).__name__, _name(value))}({', '.join(shown)})"


_NAMES = {"DuringSave": "during_save", "OnEvent": "on_event"}


def _name(value: object) -> str:
    return f"faults.{type(value).__name__}" if isinstance(value, Fault) else type(value).__name__


def _default(field: dataclasses.Field[object]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
