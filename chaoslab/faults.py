"""Faults: frozen values that say what goes wrong. They do nothing by themselves.

A fault is made real by `chaoslab.inject`, on the target and at the trigger that an
`Injection` names. Durations are seconds, ratios lie in 0..1. A network fault acts on one
node's link, in the stated direction as seen from that node; a delay is one way, so
`direction="both"` adds it twice to a round trip.
"""

from __future__ import annotations

import dataclasses
import math
import signal as signals
from typing import Any, Final, Literal

from chaoslab.errors import InvalidScenario

Direction = Literal["egress", "ingress", "both"]
Distribution = Literal["uniform", "normal", "pareto", "paretonormal"]

MAX_DELAY_S: Final = 4_294.0
"""Longest delay accepted. Source: facts of sch_netem: 64-bit nanoseconds since Linux 4.15,
but a queue that holds packets for over an hour is a silent drop, not a delay."""


def _refuse(fault: object, field: str, want: str, fix: str = "") -> InvalidScenario:
    given = f"{type(fault).__name__}({field}={getattr(fault, field)!r})"
    return InvalidScenario(f"{given}: want {want}" + (f"; {fix}" if fix else ""))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_ratio(fault: object, field: str, *, zero: bool) -> None:
    value = getattr(fault, field)
    want = f"{'0 <=' if zero else '0 <'} {field} <= 1"
    if not _is_number(value):
        raise _refuse(fault, field, want)
    if (0 <= value <= 1) if zero else (0 < value <= 1):
        return
    percent = f"for {value:g} % write {field}={value / 100:.2f}" if 1 < value <= 100 else ""  # noqa: PLR2004
    raise _refuse(fault, field, want, percent)


def _check_seconds(fault: object, field: str, *, zero: bool, most: float = math.inf) -> None:
    value = getattr(fault, field)
    low = value is not None and _is_number(value) and (value >= 0 if zero else value > 0)
    if not low or value > most:
        upper = "" if math.isinf(most) else f" <= {most:g}"
        raise _refuse(fault, field, f"{'0 <=' if zero else '0 <'} {field}{upper}, in seconds")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong; `duration_s` is its window (None: until the run ends)."""

    duration_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: InvalidScenario."""
        if self.duration_s is not None:
            _check_seconds(self, "duration_s", zero=False)

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        return ()

    @property
    def is_window(self) -> bool:
        """True when the fault is healed during the run."""
        return self.duration_s is not None


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkFault(Fault):
    """A fault of one node's link.

    direction: as seen from the target node. to: only traffic to and from these nodes (empty:
    all). ports: only TCP or UDP traffic from or to these ports (empty: all).
    """

    direction: Direction = "both"
    to: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: InvalidScenario."""
        super().__post_init__()
        if self.direction not in ("egress", "ingress", "both"):
            raise _refuse(self, "direction", "egress, ingress or both")
        if any(not isinstance(node, int) or node < 0 for node in self.to):
            raise _refuse(self, "to", "node numbers from 0 on")
        if any(not isinstance(port, int) or not 0 < port < 65536 for port in self.ports):  # noqa: PLR2004
            raise _refuse(self, "ports", "port numbers 1..65535")

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        return ("ifb",) if self.direction != "egress" else ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetemFault(NetworkFault):
    """A fault that one netem qdisc makes. seed: netem's own generator (Linux 6.6 on)."""

    seed: int | None = None

    def netem(self) -> dict[str, Any]:
        """Give netem's attributes, SI units, by the names of the agent's protocol."""
        return {} if self.seed is None else {"seed": self.seed}

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        seed = ("netem_seed",) if self.seed is not None else ()
        return ("netem", *super().needs, *seed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PacketLoss(NetemFault):
    """Each packet is lost with probability `ratio`, independently or with a correlation."""

    ratio: float
    correlation_ratio: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: InvalidScenario."""
        super().__post_init__()
        _check_ratio(self, "ratio", zero=False)
        _check_ratio(self, "correlation_ratio", zero=True)

    def netem(self) -> dict[str, Any]:
        """Give netem's attributes."""
        return super().netem() | {
            "loss_ratio": self.ratio,
            "loss_correlation_ratio": self.correlation_ratio,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class BurstLoss(NetemFault):
    """Loss in bursts: the Gilbert-Elliott model.

    enter_ratio: probability per packet to go from good to bad (p); leave_ratio: from bad to
    good (r); loss_bad_ratio: loss while bad (1-h); loss_good_ratio: loss while good (1-k).
    Mean loss: (enter x loss_bad + leave x loss_good) / (enter + leave).
    Source: tc-netem(8), loss gemodel.
    """

    enter_ratio: float
    leave_ratio: float
    loss_bad_ratio: float = 1.0
    loss_good_ratio: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: InvalidScenario."""
        super().__post_init__()
        for field in ("enter_ratio", "leave_ratio", "loss_bad_ratio"):
            _check_ratio(self, field, zero=False)
        _check_ratio(self, "loss_good_ratio", zero=True)

    def netem(self) -> dict[str, Any]:
        """Give netem's attributes."""
        model = {
            "p": self.enter_ratio,
            "r": self.leave_ratio,
            "h": 1 - self.loss_bad_ratio,
            "k": 1 - self.loss_good_ratio,
        }
        return super().netem() | {"gemodel": model}

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        return (*super().needs, "netem_loss_gemodel")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FourStateLoss(NetemFault):
    """Loss by the 4-state Markov model (p13, p31, p32, p23, p14: transition probabilities).

    State 1: received, 2: received within a burst, 3: lost within a burst, 4: lost alone.
    Source: tc-netem(8), loss state.
    """

    p13: float
    p31: float = 1.0
    p32: float = 0.0
    p23: float = 1.0
    p14: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: InvalidScenario."""
        super().__post_init__()
        _check_ratio(self, "p13", zero=False)
        for field in ("p31", "p32", "p23", "p14"):
            _check_ratio(self, field, zero=True)

    def netem(self) -> dict[str, Any]:
        """Give netem's attributes."""
        names = ("p13", "p31", "p32", "p23", "p14")
        return super().netem() | {"state4": {name: getattr(self, name) for name in names}}

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        return (*super().needs, "netem_loss_state4")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Delay(NetemFault):
    """Each packet is held for `delay_s`, one way, give or take `jitter_s`.

    distribution: shape of the jitter, by name or as a table of 16-bit integers.
    """

    delay_s: float
    jitter_s: float = 0.0
    correlation_ratio: float = 0.0
    distribution: Distribution | tuple[int, ...] = "uniform"

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: InvalidScenario."""
        super().__post_init__()
        _check_seconds(self, "delay_s", zero=False, most=MAX_DELAY_S)
        _check_seconds(self, "jitter_s", zero=True, most=MAX_DELAY_S)
        _check_ratio(self, "correlation_ratio", zero=True)
        if isinstance(self.distribution, str):
            if self.distribution not in ("uniform", "normal", "pareto", "paretonormal"):
                raise _refuse(self, "distribution", "uniform, normal, pareto or paretonormal")
        elif not self.distribution or any(abs(v) > 32767 for v in self.distribution):  # noqa: PLR2004
            raise _refuse(self, "distribution", "a table of 16-bit integers")

    def netem(self) -> dict[str, Any]:
        """Give netem's attributes."""
        shape = self.distribution
        return super().netem() | {
            "delay_s": self.delay_s,
            "jitter_s": self.jitter_s,
            "delay_correlation_ratio": self.correlation_ratio,
            "distribution": shape if isinstance(shape, str) else list(shape),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Duplication(NetemFault):
    """Each packet is sent twice with probability `ratio`."""

    ratio: float
    correlation_ratio: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: InvalidScenario."""
        super().__post_init__()
        _check_ratio(self, "ratio", zero=False)
        _check_ratio(self, "correlation_ratio", zero=True)

    def netem(self) -> dict[str, Any]:
        """Give netem's attributes."""
        return super().netem() | {
            "duplicate_ratio": self.ratio,
            "duplicate_correlation_ratio": self.correlation_ratio,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corruption(NetemFault):
    """One bit of a packet is flipped with probability `ratio` (TCP's checksum drops it)."""

    ratio: float
    correlation_ratio: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: InvalidScenario."""
        super().__post_init__()
        _check_ratio(self, "ratio", zero=False)
        _check_ratio(self, "correlation_ratio", zero=True)

    def netem(self) -> dict[str, Any]:
        """Give netem's attributes."""
        return super().netem() | {
            "corrupt_ratio": self.ratio,
            "corrupt_correlation_ratio": self.correlation_ratio,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reordering(NetemFault):
    """A packet overtakes the others, which are held for `delay_s`, with probability `ratio`.

    gap: only every gap-th packet may overtake (0 or 1: any).
    """

    ratio: float
    delay_s: float
    correlation_ratio: float = 0.0
    gap: int = 1

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: InvalidScenario."""
        super().__post_init__()
        _check_ratio(self, "ratio", zero=False)
        _check_ratio(self, "correlation_ratio", zero=True)
        _check_seconds(self, "delay_s", zero=False, most=MAX_DELAY_S)
        if self.gap < 1:
            raise _refuse(self, "gap", "gap >= 1")

    def netem(self) -> dict[str, Any]:
        """Give netem's attributes."""
        return super().netem() | {
            "reorder_ratio": self.ratio,
            "reorder_correlation_ratio": self.correlation_ratio,
            "gap": self.gap,
            "delay_s": self.delay_s,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class RateLimit(NetemFault):
    """The link carries at most `rate_bytes_per_s`; cell_* model a link of fixed cells."""

    rate_bytes_per_s: int
    packet_overhead_bytes: int = 0
    cell_size_bytes: int = 0
    cell_overhead_bytes: int = 0

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: InvalidScenario."""
        super().__post_init__()
        if self.rate_bytes_per_s < 1:
            raise _refuse(self, "rate_bytes_per_s", "rate_bytes_per_s >= 1")

    def netem(self) -> dict[str, Any]:
        """Give netem's attributes."""
        return super().netem() | {
            "rate_bytes_per_s": self.rate_bytes_per_s,
            "packet_overhead_bytes": self.packet_overhead_bytes,
            "cell_size_bytes": self.cell_size_bytes,
            "cell_overhead_bytes": self.cell_overhead_bytes,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slots(NetemFault):
    """Packets leave in bunches, once per slot, as on a radio link or behind a busy host.

    Either min_delay_s..max_delay_s (uniform), or distribution with delay_s and jitter_s. At
    most `packets` packets or `size_bytes` bytes a slot (0: no limit).
    """

    min_delay_s: float = 0.0
    max_delay_s: float = 0.0
    distribution: Distribution | None = None
    delay_s: float = 0.0
    jitter_s: float = 0.0
    packets: int = 0
    size_bytes: int = 0

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: InvalidScenario."""
        super().__post_init__()
        for field in ("min_delay_s", "max_delay_s", "delay_s", "jitter_s"):
            _check_seconds(self, field, zero=True, most=MAX_DELAY_S)
        if self.distribution is None and not 0 < self.min_delay_s <= self.max_delay_s:
            raise _refuse(self, "max_delay_s", "0 < min_delay_s <= max_delay_s")
        if self.distribution is not None and self.delay_s <= 0:
            raise _refuse(self, "delay_s", "0 < delay_s with a distribution")

    def netem(self) -> dict[str, Any]:
        """Give netem's attributes."""
        limits = {"packets": self.packets, "bytes": self.size_bytes}
        if self.distribution is None:
            window = {"min_delay_s": self.min_delay_s, "max_delay_s": self.max_delay_s}
        else:
            window = {"delay_s": self.delay_s, "jitter_s": self.jitter_s}
            limits["distribution"] = self.distribution  # type: ignore[assignment]
        return super().netem() | {"slot": window | limits}

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        return (*super().needs, "netem_slot")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Combined(NetemFault):
    """Several netem faults on one link at once, in one qdisc: 20 % loss and 50 ms delay."""

    parts: tuple[NetemFault, ...]

    def __post_init__(self) -> None:
        """Refuse parts that set the same attribute. Raises: InvalidScenario."""
        super().__post_init__()
        if len(self.parts) < 2:  # noqa: PLR2004
            raise _refuse(self, "parts", "at least two netem faults")
        plain = NetemFault()
        for part in self.parts:
            for field in ("duration_s", "direction", "to", "ports", "seed"):
                if getattr(part, field) != getattr(plain, field):
                    want = f"{field} on Combined, not on a part: the parts share one qdisc"
                    raise _refuse(self, "parts", want)
        names = [name for part in self.parts for name in part.netem()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise _refuse(self, "parts", f"each attribute once ({', '.join(twice)} is set twice)")

    def netem(self) -> dict[str, Any]:
        """Give netem's attributes."""
        merged = super().netem()
        for part in self.parts:
            merged |= part.netem()
        return merged

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        parts = {name for part in self.parts for name in part.needs}
        return tuple(sorted(parts | set(super().needs)))


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
            raise _refuse(self, "duration_s", "no duration_s: a reset is a moment")

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
        _check_seconds(self, "down_s", zero=False)
        _check_seconds(self, "up_s", zero=False)
        if self.of.duration_s is not None:
            raise _refuse(self, "of", "duration_s on Flapping, not on what it repeats")

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
            raise _refuse(self, "groups", "at least two groups, none empty")
        if len(set(members)) != len(members):
            raise _refuse(self, "groups", "each node in one group")

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        return ("silent_drop", "ifb") if self.cut_store else ("silent_drop",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessFault(Fault):
    """A fault of a process: a rank, or the store."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signal(ProcessFault):
    """A signal is sent, once. Evidence: the process is gone with this status, or stopped."""

    signal: int

    def __post_init__(self) -> None:
        """Refuse a signal that does not exist. Raises: InvalidScenario."""
        super().__post_init__()
        if self.duration_s is not None:
            raise _refuse(self, "duration_s", "no duration_s; for a stop with a window use Stop")
        if self.signal not in signals.valid_signals():
            raise _refuse(self, "signal", "a signal of this system, such as signal.SIGTERM")
        if self.signal in (signals.SIGSTOP, signals.SIGTSTP, signals.SIGTTIN, signals.SIGTTOU):
            raise _refuse(self, "signal", "a signal that does not stop a process: that is Stop()")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kill(ProcessFault):
    """SIGKILL: the process is gone at once and can clean up nothing."""

    def __post_init__(self) -> None:
        """Refuse a window. Raises: InvalidScenario."""
        super().__post_init__()
        if self.duration_s is not None:
            raise _refuse(self, "duration_s", "no duration_s: a kill is a moment")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stop(ProcessFault):
    """SIGSTOP, and SIGCONT after duration_s (None: it stays stopped)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeLoss(Fault):
    """The node is gone for good: its processes are killed, its link is down, nothing restarts."""

    def __post_init__(self) -> None:
        """Refuse a window. Raises: InvalidScenario."""
        super().__post_init__()
        if self.duration_s is not None:
            raise _refuse(self, "duration_s", "no duration_s: the node is gone for good")

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        return ("link_down",)
