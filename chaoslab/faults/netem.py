"""Faults that one netem qdisc makes: loss, delay, damage, order, rate."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, Literal

from chaoslab.faults.base import NetworkFault, check_ratio, check_seconds, refuse

Distribution = Literal["uniform", "normal", "pareto", "paretonormal"]


MAX_DELAY_S: Final = 4_294.0
"""Longest delay accepted. Source: facts of sch_netem: 64-bit nanoseconds since Linux 4.15,
but a queue that holds packets for over an hour is a silent drop, not a delay."""


WIDE_RATE_BYTES_PER_S: Final = 1 << 32
"""From here on netem takes a rate as a 64-bit number. Source: TCA_NETEM_RATE64."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetemFault(NetworkFault):
    """A fault that one netem qdisc makes.

    seed: netem's own generator (Linux 6.6 on). limit_packets: how many it holds at most, beyond
    which it loses what comes (None: so many that a delay or a rate loses none).
    """

    seed: int | None = None
    limit_packets: int | None = None

    def netem(self) -> dict[str, Any]:
        """Give netem's attributes, SI units, by the names of the agent's protocol."""
        given = {"seed": self.seed, "limit_packets": self.limit_packets}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        seed = ("netem_seed",) if self.seed is not None else ()
        return ("netem", *super().needs, *seed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossFault(NetemFault):
    """A loss, by whichever model.

    ecn: packets of connections that have negotiated ECN are marked in place of being lost; all
    others are lost as ever.
    """

    ecn: bool = False

    def netem(self) -> dict[str, Any]:
        """Give netem's attributes."""
        return super().netem() | ({"ecn": True} if self.ecn else {})

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        return (*super().needs, *(("netem_ecn",) if self.ecn else ()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PacketLoss(LossFault):
    """Each packet is lost with probability `ratio`, independently or with a correlation."""

    ratio: float
    correlation_ratio: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: InvalidScenario."""
        super().__post_init__()
        check_ratio(self, "ratio", zero=False)
        check_ratio(self, "correlation_ratio", zero=True)

    def netem(self) -> dict[str, Any]:
        """Give netem's attributes."""
        return super().netem() | {
            "loss_ratio": self.ratio,
            "loss_correlation_ratio": self.correlation_ratio,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class BurstLoss(LossFault):
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
            check_ratio(self, field, zero=False)
        check_ratio(self, "loss_good_ratio", zero=True)

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
class FourStateLoss(LossFault):
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
        check_ratio(self, "p13", zero=False)
        for field in ("p31", "p32", "p23", "p14"):
            check_ratio(self, field, zero=True)

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
        check_seconds(self, "delay_s", zero=False, most=MAX_DELAY_S)
        check_seconds(self, "jitter_s", zero=True, most=MAX_DELAY_S)
        check_ratio(self, "correlation_ratio", zero=True)
        if isinstance(self.distribution, str):
            if self.distribution not in ("uniform", "normal", "pareto", "paretonormal"):
                raise refuse(self, "distribution", "uniform, normal, pareto or paretonormal")
        elif not self.distribution or any(abs(v) > 32767 for v in self.distribution):  # noqa: PLR2004
            raise refuse(self, "distribution", "a table of 16-bit integers")

    def netem(self) -> dict[str, Any]:
        """Give netem's attributes."""
        shape = self.distribution
        return super().netem() | {
            "delay_s": self.delay_s,
            "jitter_s": self.jitter_s,
            "delay_correlation_ratio": self.correlation_ratio,
            "distribution": shape if isinstance(shape, str) else list(shape),
        }

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        return (*super().needs, "netem_delay")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Duplication(NetemFault):
    """Each packet is sent twice with probability `ratio`."""

    ratio: float
    correlation_ratio: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: InvalidScenario."""
        super().__post_init__()
        check_ratio(self, "ratio", zero=False)
        check_ratio(self, "correlation_ratio", zero=True)

    def netem(self) -> dict[str, Any]:
        """Give netem's attributes."""
        return super().netem() | {
            "duplicate_ratio": self.ratio,
            "duplicate_correlation_ratio": self.correlation_ratio,
        }

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        return (*super().needs, "netem_duplicate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corruption(NetemFault):
    """One bit of a packet is flipped with probability `ratio` (TCP's checksum drops it)."""

    ratio: float
    correlation_ratio: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: InvalidScenario."""
        super().__post_init__()
        check_ratio(self, "ratio", zero=False)
        check_ratio(self, "correlation_ratio", zero=True)

    def netem(self) -> dict[str, Any]:
        """Give netem's attributes."""
        return super().netem() | {
            "corrupt_ratio": self.ratio,
            "corrupt_correlation_ratio": self.correlation_ratio,
        }

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        return (*super().needs, "netem_corrupt")


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
        check_ratio(self, "ratio", zero=False)
        check_ratio(self, "correlation_ratio", zero=True)
        check_seconds(self, "delay_s", zero=False, most=MAX_DELAY_S)
        if self.gap < 1:
            raise refuse(self, "gap", "gap >= 1")

    def netem(self) -> dict[str, Any]:
        """Give netem's attributes."""
        return super().netem() | {
            "reorder_ratio": self.ratio,
            "reorder_correlation_ratio": self.correlation_ratio,
            "gap": self.gap,
            "delay_s": self.delay_s,
        }

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        return (*super().needs, "netem_reorder")


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
            raise refuse(self, "rate_bytes_per_s", "rate_bytes_per_s >= 1")

    def netem(self) -> dict[str, Any]:
        """Give netem's attributes."""
        return super().netem() | {
            "rate_bytes_per_s": self.rate_bytes_per_s,
            "packet_overhead_bytes": self.packet_overhead_bytes,
            "cell_size_bytes": self.cell_size_bytes,
            "cell_overhead_bytes": self.cell_overhead_bytes,
        }

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the agent's capabilities that this fault needs."""
        wide = ("netem_rate64",) if self.rate_bytes_per_s >= WIDE_RATE_BYTES_PER_S else ()
        return (*super().needs, "rate", *wide)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slots(NetemFault):
    """Packets leave in bunches, once per slot, as on a radio link or behind a busy host.

    Either min_delay_s..max_delay_s (uniform), or distribution (by name or as a table of 16-bit
    integers) with delay_s and jitter_s. At most `packets` packets or `size_bytes` bytes a slot (0:
    no limit).
    """

    min_delay_s: float = 0.0
    max_delay_s: float = 0.0
    distribution: Distribution | tuple[int, ...] | None = None
    delay_s: float = 0.0
    jitter_s: float = 0.0
    packets: int = 0
    size_bytes: int = 0

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: InvalidScenario."""
        super().__post_init__()
        for field in ("min_delay_s", "max_delay_s", "delay_s", "jitter_s"):
            check_seconds(self, field, zero=True, most=MAX_DELAY_S)
        if self.distribution is None and not 0 < self.min_delay_s <= self.max_delay_s:
            raise refuse(self, "max_delay_s", "0 < min_delay_s <= max_delay_s")
        if self.distribution is not None and self.delay_s <= 0:
            raise refuse(self, "delay_s", "0 < delay_s with a distribution")

    def netem(self) -> dict[str, Any]:
        """Give netem's attributes."""
        limits: dict[str, Any] = {"packets": self.packets, "bytes": self.size_bytes}
        if self.distribution is None:
            window = {"min_delay_s": self.min_delay_s, "max_delay_s": self.max_delay_s}
        else:
            window = {"delay_s": self.delay_s, "jitter_s": self.jitter_s}
            shape = self.distribution
            limits["distribution"] = shape if isinstance(shape, str) else list(shape)
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
            raise refuse(self, "parts", "at least two netem faults")
        plain = NetemFault()
        for part in self.parts:
            for field in ("duration_s", "direction", "to", "ports", "seed", "limit_packets"):
                if getattr(part, field) != getattr(plain, field):
                    want = f"{field} on Combined, not on a part: the parts share one qdisc"
                    raise refuse(self, "parts", want)
        names = [name for part in self.parts for name in part.netem()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise refuse(self, "parts", f"each attribute once ({', '.join(twice)} is set twice)")

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
