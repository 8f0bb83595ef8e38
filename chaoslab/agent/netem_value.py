"""What a request asks of netem, in ratios and seconds, checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chaoslab.agent import wire
from chaoslab.agent.distributions import TABLE_NAMES, table
from chaoslab.agent.errors import bad_request

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_JITTER_S: Final = 2.147
"""The kernel caps jitter at INT_MAX nanoseconds. Source: net/sched/sch_netem.c, netem_change."""

_CORRELATED_RANGE_S: Final = 4.29
"""Source: sch_netem.c, tabledist: rnd % (2 * sigma), rnd of 32 bits, sigma in nanoseconds."""

_INT32_MAX: Final = 2**31 - 1
_UINT32_MAX: Final = 2**32 - 1
_UINT64_MAX: Final = 2**64 - 1
_DIST_MAX_ENTRIES: Final = 12288  # the kernel takes 16384, two tables must fit 65535 bytes
_INT16_MAX: Final = 32767

_KEYS: Final = frozenset(
    (
        "loss_ratio", "loss_correlation_ratio", "gemodel", "state4",
        "delay_s", "jitter_s", "delay_correlation_ratio", "distribution",
        "duplicate_ratio", "duplicate_correlation_ratio",
        "corrupt_ratio", "corrupt_correlation_ratio",
        "reorder_ratio", "reorder_correlation_ratio", "gap",
        "rate_bytes_per_s", "packet_overhead_bytes", "cell_size_bytes", "cell_overhead_bytes",
        "slot", "ecn", "seed", "limit_packets",
    )
)  # fmt: skip
_SLOT_RANGE_KEYS: Final = frozenset(("min_delay_s", "max_delay_s", "packets", "bytes"))
_SLOT_DIST_KEYS: Final = frozenset(("distribution", "delay_s", "jitter_s", "packets", "bytes"))

Table = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class GilbertElliott:
    """The Gilbert-Elliott loss model: a good and a bad state, each with its own loss.

    p: ratio good -> bad; r: ratio bad -> good, both drawn at each packet.
    h: ratio DELIVERED in the bad state (1 - h is lost; tc's command line takes 1-h, the kernel h).
    k: ratio DELIVERED in the good state (1 - k is lost; the kernel takes 1-k as k1).

    Source: man tc-netem, "loss gemodel p [ r [ 1-h [ 1-k ] ] ]"; sch_netem.c, loss_gilb_ell.
    """

    p: float
    r: float
    h: float = 0.0
    k: float = 1.0

    @property
    def loss_ratio(self) -> float:
        """The stationary ratio of packets lost."""
        bad = self.p / (self.p + self.r)
        return bad * (1 - self.h) + (1 - bad) * (1 - self.k)


@dataclass(frozen=True, kw_only=True)
class FourState:
    """The 4-state loss model; pIJ is the ratio of going from state I to state J at each packet.

    State 1: delivered in a gap; 2: delivered in a burst; 3: lost in a burst; 4: lost alone in a gap
    (always followed by state 1).

    Source: man tc-netem, "loss state p13 [ p31 [ p32 [ p23 [ p14 ]]]]"; sch_netem.c, loss_4state.
    """

    p13: float
    p31: float
    p32: float
    p23: float
    p14: float

    @property
    def loss_ratio(self) -> float:
        """The stationary ratio of packets lost (states 3 and 4)."""
        one, two, three, four = self.stationary
        return (three + four) / (one + two + three + four)

    @property
    def mean_burst_packets(self) -> float:
        """Mean number of consecutive packets lost: the lost share over the rate of entering it."""
        one, two, three, four = self.stationary
        return (three + four) / (one * (self.p13 + self.p14) + two * self.p23)

    @property
    def stationary(self) -> tuple[float, float, float, float]:
        """Weights of the states 1 to 4, up to a factor: the chain's balance equations."""
        three = self.p13 / self.p31 if self.p13 else 0.0
        two = three * self.p32 / self.p23 if self.p32 else 0.0
        return 1.0, two, three, self.p14


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Packets leave in bursts: every min..max seconds, or delay +- jitter by a distribution."""

    min_delay_s: float = 0.0
    max_delay_s: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    distribution: Table | None = None
    packets: int = 0
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Netem:
    """Everything that netem can do to a packet; the default of each is nothing.

    distribution None is uniform: delay +- jitter. limit_packets None: netem.limit_packets.
    """

    loss_ratio: float = 0.0
    loss_correlation_ratio: float = 0.0
    gemodel: GilbertElliott | None = None
    state4: FourState | None = None
    delay_s: float = 0.0
    jitter_s: float = 0.0
    delay_correlation_ratio: float = 0.0
    distribution: Table | None = None
    duplicate_ratio: float = 0.0
    duplicate_correlation_ratio: float = 0.0
    corrupt_ratio: float = 0.0
    corrupt_correlation_ratio: float = 0.0
    reorder_ratio: float = 0.0
    reorder_correlation_ratio: float = 0.0
    gap: int = 0
    rate_bytes_per_s: int = 0
    packet_overhead_bytes: int = 0
    cell_size_bytes: int = 0
    cell_overhead_bytes: int = 0
    slot: Slot | None = None
    ecn: bool = False
    seed: int | None = None
    limit_packets: int | None = None

    @property
    def expected_loss_ratio(self) -> float:
        """The ratio of packets lost in the long run, by whichever loss model is asked for."""
        model = self.gemodel or self.state4
        return model.loss_ratio if model else self.loss_ratio

    @property
    def drops_by_design(self) -> bool:
        """Whether netem drops packets other than by a full queue (corrupting may, too)."""
        return bool(self.loss_ratio or self.gemodel or self.state4 or self.corrupt_ratio)

    @property
    def caveats(self) -> list[str]:
        """What the kernel accepts and does otherwise than its name says, one sentence each."""
        found = []
        if self.delay_correlation_ratio and 2 * self.jitter_s < _CORRELATED_RANGE_S:
            found.append(
                "delay_correlation_ratio has no effect: the kernel takes its correlated number "
                "modulo the jitter's range (or the table's size), which scatters it again"
            )
        if self.loss_correlation_ratio:
            found.append(
                "loss_correlation_ratio lowers a loss below one half: netem's correlated numbers "
                "gather around the middle; for bursts use gemodel"
            )
        return found


def parse_netem(given: Mapping[str, object]) -> Netem:
    """Return the netem that a request asks for.

    Raises:
        AgentError: an unknown attribute, a value out of range, or attributes at odds.
    """
    wire.only(given, _KEYS, "netem")
    netem = Netem(
        **{key: wire.ratio(given, key) for key in sorted(_KEYS) if key.endswith("_ratio")},
        gemodel=_gemodel(given.get("gemodel")),
        state4=_state4(given.get("state4")),
        delay_s=wire.number(given, "delay_s"),
        jitter_s=wire.number(given, "jitter_s", high=MAX_JITTER_S),
        distribution=_distribution(given.get("distribution")),
        gap=wire.whole(given, "gap", high=_UINT32_MAX),
        rate_bytes_per_s=wire.whole(given, "rate_bytes_per_s", high=_UINT64_MAX),
        packet_overhead_bytes=wire.whole(
            given, "packet_overhead_bytes", low=-_INT32_MAX, high=_INT32_MAX
        ),
        cell_size_bytes=wire.whole(given, "cell_size_bytes", high=_INT32_MAX),
        cell_overhead_bytes=wire.whole(
            given, "cell_overhead_bytes", low=-_INT32_MAX, high=_INT32_MAX
        ),
        slot=_slot(given.get("slot")),
        ecn=given.get("ecn") is True,
        seed=None if given.get("seed") is None else wire.whole(given, "seed", high=_UINT64_MAX),
        limit_packets=None
        if given.get("limit_packets") is None
        else wire.whole(given, "limit_packets", low=1, high=_UINT32_MAX),
    )
    _check_together(netem)
    return netem


def _check_together(netem: Netem) -> None:
    losses = [bool(netem.loss_ratio), netem.gemodel is not None, netem.state4 is not None]
    if sum(losses) > 1:
        raise bad_request("netem with several loss models: want one of loss_ratio, gemodel, state4")
    if netem.jitter_s and not netem.delay_s:
        raise bad_request("jitter_s without delay_s: want both; a delay cannot go below zero")
    if (netem.distribution or netem.delay_correlation_ratio) and not netem.jitter_s:
        raise bad_request(
            "distribution or delay_correlation_ratio without jitter_s: want jitter_s > 0"
        )
    if (netem.reorder_ratio or netem.gap) and not netem.delay_s:
        raise bad_request(
            "reorder_ratio or gap without delay_s: want delay_s > 0; the packets that are not "
            "delayed overtake those that are"
        )
    if netem.ecn and not any(losses):
        raise bad_request(
            "ecn without a loss: want loss_ratio, gemodel or state4; ecn marks in its place"
        )
    link = netem.packet_overhead_bytes or netem.cell_size_bytes or netem.cell_overhead_bytes
    if link and not netem.rate_bytes_per_s:
        raise bad_request("packet or cell sizes without rate_bytes_per_s: want a rate")
    for what in ("loss", "duplicate", "corrupt", "reorder"):
        if getattr(netem, f"{what}_correlation_ratio") and not getattr(netem, f"{what}_ratio"):
            raise bad_request(f"{what}_correlation_ratio without {what}_ratio: want both")
    if netem == Netem(seed=netem.seed, limit_packets=netem.limit_packets):
        raise bad_request("netem that does nothing: want at least one attribute above zero")


def _gemodel(given: object) -> GilbertElliott | None:
    if given is None:
        return None
    model = wire.mapping(given, "gemodel")
    wire.only(model, frozenset("prhk"), "gemodel")
    found = GilbertElliott(
        p=wire.ratio(model, "p", None),
        r=wire.ratio(model, "r", 1.0),
        h=wire.ratio(model, "h", 0.0),
        k=wire.ratio(model, "k", 1.0),
    )
    if found.p + found.r == 0 or found.loss_ratio == 0:
        raise bad_request(
            f"gemodel={model!r}: want p > 0, and h < 1 or k < 1; this one loses nothing"
        )
    return found


def _state4(given: object) -> FourState | None:
    if given is None:
        return None
    model = wire.mapping(given, "state4")
    names = ("p13", "p31", "p32", "p23", "p14")
    wire.only(model, frozenset(names), "state4")
    p13, p31, p32, p23, p14 = (wire.ratio(model, name, 0.0) for name in names)
    if p13 + p14 > 1 or p31 + p32 > 1:
        raise bad_request(f"state4={model!r}: want p13 + p14 <= 1 and p31 + p32 <= 1")
    if (p13 and not p31) or (p32 and not p23) or not (p13 or p14):
        raise bad_request(f"state4={model!r}: want p31 > 0 with p13, p23 > 0 with p32, "
                          "and p13 or p14 above zero")  # fmt: skip
    return FourState(p13=p13, p31=p31, p32=p32, p23=p23, p14=p14)


def _slot(given: object) -> Slot | None:
    if given is None:
        return None
    slot = wire.mapping(given, "slot")
    packets = wire.whole(slot, "packets", high=_INT32_MAX)
    size_bytes = wire.whole(slot, "bytes", high=_INT32_MAX)
    if "distribution" not in slot:
        wire.only(slot, _SLOT_RANGE_KEYS, "slot")
        low = wire.number(slot, "min_delay_s", None)
        high = wire.number(slot, "max_delay_s", low)
        if not 0 < high >= low:
            raise bad_request(f"slot={slot!r}: want max_delay_s >= min_delay_s, and above zero")
        return Slot(min_delay_s=low, max_delay_s=high, packets=packets, bytes=size_bytes)
    wire.only(slot, _SLOT_DIST_KEYS, "slot")
    delay = wire.number(slot, "delay_s", None)
    # Without jitter the kernel keeps no slots: netem_dump and get_slot look at dist_jitter.
    jitter = wire.number(slot, "jitter_s", None, low=1e-9, high=MAX_JITTER_S)
    values = _distribution(slot["distribution"]) or table("normal")
    if slot["distribution"] == "uniform":
        raise bad_request(
            "slot distribution uniform: want min_delay_s and max_delay_s in its place"
        )
    return Slot(
        delay_s=delay,
        jitter_s=jitter,
        distribution=values,
        packets=packets,
        bytes=size_bytes,
    )


def _distribution(given: object) -> Table | None:
    if given is None:
        return None
    if isinstance(given, str) and given in TABLE_NAMES:
        return table(given)
    if not isinstance(given, list) or not 0 < len(given) <= _DIST_MAX_ENTRIES:
        raise bad_request(f"distribution={given!r:.80}: want one of {', '.join(TABLE_NAMES)}, "
                          f"or 1 to {_DIST_MAX_ENTRIES} int16 values")  # fmt: skip
    if any(isinstance(v, bool) or not isinstance(v, int) or abs(v) > _INT16_MAX for v in given):
        raise bad_request(f"distribution={given!r:.80}: want values from -32767 to 32767")
    return tuple(given)
