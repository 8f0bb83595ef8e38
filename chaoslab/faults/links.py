"""Faults of a link or a node that need no netem: cuts, drops, resets, partitions."""

from __future__ import annotations

import dataclasses

from chaoslab.faults.base import Fault, NetworkFault, check_seconds, refuse


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkDown(Fault):
    """The node's interface goes down: local programs see an error at once."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        return ("link_down",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SilentDrop(NetworkFault):
    """Every packet vanishes and nobody is told: a switch died, a cable was pulled far away."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        return ("silent_drop", *super().needs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectionReset(Fault):
    """The node's established TCP connections are reset, once (both ends see an error)."""

    to: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a window: a reset is a moment. Raises: InvalidScenario."""
        super().__post_init__()
        if self.duration_s is not None:
            raise refuse(self, "duration_s", "no duration_s: a reset is a moment")

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        return ("reset",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flapping(Fault):
    """The link goes down for down_s and up for up_s, again and again."""

    of: LinkDown | SilentDrop = dataclasses.field(default_factory=LinkDown)
    down_s: float
    up_s: float

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: InvalidScenario."""
        super().__post_init__()
        check_seconds(self, "down_s", zero=False)
        check_seconds(self, "up_s", zero=False)
        if self.of.duration_s is not None:
            raise refuse(self, "of", "duration_s on Flapping, not on what it repeats")

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        return self.of.needs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Partition(Fault):
    """Groups of nodes cannot reach each other; within a group all is well.

    groups: node numbers, disjoint. one_way: only packets from the first group to the others
    vanish. cut_store: the groups after the first lose the store's host as well. Goes on the
    whole cluster: use it with target `everywhere()`.
    """

    groups: tuple[tuple[int, ...], ...]
    one_way: bool = False
    cut_store: bool = False

    def __post_init__(self) -> None:
        """Refuse groups that overlap. Raises: InvalidScenario."""
        super().__post_init__()
        members = [node for group in self.groups for node in group]
        if len(self.groups) < 2 or not all(self.groups):  # noqa: PLR2004
            raise refuse(self, "groups", "at least two groups, none empty")
        if len(set(members)) != len(members):
            raise refuse(self, "groups", "each node in one group")

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        return ("silent_drop", "ifb") if self.cut_store else ("silent_drop",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeLoss(Fault):
    """The node is gone for good: its processes are killed, its link is down, nothing restarts."""

    def __post_init__(self) -> None:
        """Refuse a window. Raises: InvalidScenario."""
        super().__post_init__()
        if self.duration_s is not None:
            raise refuse(self, "duration_s", "no duration_s: the node is gone for good")

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        return ("link_down",)
