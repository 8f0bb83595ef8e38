"""netem in the kernel's own numbers: encoding, decoding, and comparing what was read back.

pyroute2 0.9.7 knows neither loss models, distributions, 64-bit delays and rates, ECN, slots nor the
seed, and drops attribute names it does not know without a word. Here every attribute is packed by
hand and read back from the kernel; a difference is an error.

Source: include/uapi/linux/pkt_sched.h (struct tc_netem_qopt and its attributes), sch_netem.c.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from dataclasses import dataclass
from typing import Final

from chaoslab.agent.netem_value import FourState, GilbertElliott, Netem, Slot
from chaoslab.agent.netlink import attribute, attributes

_CORR, _DELAY_DIST, _REORDER, _CORRUPT, _LOSS, _RATE, _ECN, _RATE64 = range(1, 9)
_LATENCY64, _JITTER64, _SLOT, _SLOT_DIST, _PRNG_SEED = range(10, 15)
_LOSS_GI: Final = 1
_LOSS_GE: Final = 2
_QOPT: Final = struct.Struct("=6I")
_RATE_STRUCT: Final = struct.Struct("=IiIi")
_SLOT_STRUCT: Final = struct.Struct("=qqiiqq")
_TICK_NS: Final = 64  # one psched tick; source: include/net/pkt_sched.h, PSCHED_SHIFT 6
_U32: Final = 0xFFFFFFFF

LIMIT_FLOOR_PACKETS: Final = 1000
LIMIT_CEILING_PACKETS: Final = 2_000_000
LIMIT_SAFETY: Final = 4
LINE_RATE_BYTES_PER_S: Final = 1_250_000_000
"""Taken as the rate where none is asked for: 10 Gbit/s, more than one CPU's veth carries."""

PACKET_BYTES: Final = 1500


@dataclass(frozen=True, kw_only=True)
class KernelNetem:
    """netem's state as the kernel holds it: ratios as 0..2**32-1, times in nanoseconds.

    `tables` (delay, slot) go into the kernel and never come back: no kernel dumps them.
    seed None: not asked for, or not honoured by this kernel.
    """

    latency_ns: int = 0
    jitter_ns: int = 0
    limit_packets: int = LIMIT_FLOOR_PACKETS
    loss: int = 0
    gap: int = 0
    duplicate: int = 0
    correlations: tuple[int, int, int] = (0, 0, 0)
    reorder: tuple[int, int] = (0, 0)
    corrupt: tuple[int, int] = (0, 0)
    loss_state4: tuple[int, ...] = ()
    loss_gemodel: tuple[int, ...] = ()
    rate_bytes_per_s: int = 0
    link: tuple[int, int, int] = (0, 0, 0)
    ecn: int = 0
    slot: tuple[int, ...] = ()
    seed: int | None = None
    delay_table: tuple[int, ...] = ()
    slot_table: tuple[int, ...] = ()


def limit_packets(netem: Netem) -> int:
    """Return the queue limit that keeps delay from turning into loss.

    rate x delay / packet x safety, at least netem's default of 1000, at most two million. The delay
    is the longest one likely: delay plus four times the jitter, or the longest slot.
    """
    if netem.limit_packets is not None:
        return netem.limit_packets
    longest_s = netem.delay_s + 4 * netem.jitter_s
    if netem.slot:
        slot = netem.slot
        longest_s += max(slot.max_delay_s, slot.delay_s + 4 * slot.jitter_s)
    rate = min(netem.rate_bytes_per_s or LINE_RATE_BYTES_PER_S, LINE_RATE_BYTES_PER_S)
    wanted = math.ceil(rate * longest_s / PACKET_BYTES * LIMIT_SAFETY)
    return max(LIMIT_FLOOR_PACKETS, min(LIMIT_CEILING_PACKETS, wanted))


def to_kernel(netem: Netem) -> KernelNetem:
    """Return the kernel's numbers for what was asked, limit included."""
    reorder_asked = netem.reorder_ratio or netem.gap
    return KernelNetem(
        latency_ns=_ns(netem.delay_s),
        jitter_ns=_ns(netem.jitter_s),
        limit_packets=limit_packets(netem),
        loss=_u32(netem.loss_ratio),
        # tc sets gap 1 where reorder is given alone; a gap alone means reorder always.
        gap=max(netem.gap, 1) if reorder_asked else 0,
        duplicate=_u32(netem.duplicate_ratio),
        correlations=(
            _u32(netem.delay_correlation_ratio),
            _u32(netem.loss_correlation_ratio),
            _u32(netem.duplicate_correlation_ratio),
        ),
        reorder=(
            _u32(netem.reorder_ratio or 1.0) if reorder_asked else 0,
            _u32(netem.reorder_correlation_ratio),
        ),
        corrupt=(_u32(netem.corrupt_ratio), _u32(netem.corrupt_correlation_ratio)),
        loss_state4=_state4_numbers(netem.state4),
        loss_gemodel=_gemodel_numbers(netem.gemodel),
        rate_bytes_per_s=netem.rate_bytes_per_s,
        link=(netem.packet_overhead_bytes, netem.cell_size_bytes, netem.cell_overhead_bytes),
        ecn=int(netem.ecn),
        slot=_slot_numbers(netem.slot),
        seed=netem.seed,
        delay_table=netem.distribution or (),
        slot_table=(netem.slot.distribution or ()) if netem.slot else (),
    )


def encode(state: KernelNetem) -> bytes:
    """Return the payload of TCA_OPTIONS that puts `state` into the kernel."""
    parts = [
        _QOPT.pack(
            min(state.latency_ns // _TICK_NS, _U32),
            state.limit_packets,
            state.loss,
            state.gap,
            state.duplicate,
            min(state.jitter_ns // _TICK_NS, _U32),
        ),
        attribute(_CORR, struct.pack("=3I", *state.correlations)),
    ]
    if state.latency_ns:
        parts.append(attribute(_LATENCY64, struct.pack("=q", state.latency_ns)))
    if state.jitter_ns:
        parts.append(attribute(_JITTER64, struct.pack("=q", state.jitter_ns)))
    if any(state.reorder):
        parts.append(attribute(_REORDER, struct.pack("=2I", *state.reorder)))
    if any(state.corrupt):
        parts.append(attribute(_CORRUPT, struct.pack("=2I", *state.corrupt)))
    if state.seed is not None:
        parts.append(attribute(_PRNG_SEED, struct.pack("=Q", state.seed)))
    return b"".join([*parts, *_encode_loss(state), *_encode_rate(state), *_encode_slot(state)])


def _encode_loss(state: KernelNetem) -> list[bytes]:
    parts = []
    if state.loss_state4:
        p13, p31, p32, p23, p14 = state.loss_state4
        # The kernel's struct has p14 before p23.
        parts.append(
            attribute(_LOSS, attribute(_LOSS_GI, struct.pack("=5I", p13, p31, p32, p14, p23)))
        )
    if state.loss_gemodel:
        parts.append(attribute(_LOSS, attribute(_LOSS_GE, struct.pack("=4I", *state.loss_gemodel))))
    if state.ecn:
        parts.append(attribute(_ECN, struct.pack("=I", state.ecn)))
    if state.delay_table:
        parts.append(attribute(_DELAY_DIST, _table(state.delay_table)))
    return parts


def _encode_rate(state: KernelNetem) -> list[bytes]:
    if not state.rate_bytes_per_s:
        return []
    rate = _RATE_STRUCT.pack(min(state.rate_bytes_per_s, _U32), *state.link)
    parts = [attribute(_RATE, rate)]
    if state.rate_bytes_per_s > _U32:
        parts.insert(0, attribute(_RATE64, struct.pack("=Q", state.rate_bytes_per_s)))
    return parts


def _encode_slot(state: KernelNetem) -> list[bytes]:
    if not state.slot:
        return []
    parts = [attribute(_SLOT, _SLOT_STRUCT.pack(*state.slot))]
    if state.slot_table:
        parts.append(attribute(_SLOT_DIST, _table(state.slot_table)))
    return parts


def decode(payload: bytes) -> KernelNetem:
    """Return the state in a TCA_OPTIONS payload, as the kernel dumps it or `encode` made it.

    Raises:
        ValueError: the payload is too short to be netem's.
    """
    if len(payload) < _QOPT.size:
        msg = f"netem options of {len(payload)} bytes: want at least {_QOPT.size}"
        raise ValueError(msg)
    latency, limit, loss, gap, duplicate, jitter = _QOPT.unpack_from(payload)
    found = dict(attributes(payload[_QOPT.size :]))
    rate, *link = _unpack(_RATE_STRUCT, found.get(_RATE)) or (0, 0, 0, 0)
    slot = _unpack(_SLOT_STRUCT, found.get(_SLOT))
    loss_models = dict(attributes(found.get(_LOSS, b"")))
    return KernelNetem(
        latency_ns=_integer(found.get(_LATENCY64), "=q", latency * _TICK_NS),
        jitter_ns=_integer(found.get(_JITTER64), "=q", jitter * _TICK_NS),
        limit_packets=limit,
        loss=loss,
        gap=gap,
        duplicate=duplicate,
        correlations=_three(_unpack(struct.Struct("=3I"), found.get(_CORR))),
        reorder=_two(found.get(_REORDER)),
        corrupt=_two(found.get(_CORRUPT)),
        loss_state4=_decode_state4(loss_models.get(_LOSS_GI)),
        loss_gemodel=_unpack(struct.Struct("=4I"), loss_models.get(_LOSS_GE)),
        rate_bytes_per_s=_integer(found.get(_RATE64), "=Q", rate),
        link=_three(tuple(link)),
        ecn=_integer(found.get(_ECN), "=I", 0),
        slot=slot if any(slot) else (),
        seed=_integer(found[_PRNG_SEED], "=Q", 0) if _PRNG_SEED in found else None,
        delay_table=_untable(found.get(_DELAY_DIST, b"")),
        slot_table=_untable(found.get(_SLOT_DIST, b"")),
    )


def differences(asked: KernelNetem, read_back: KernelNetem) -> list[str]:
    """Return what the kernel holds otherwise than asked, one sentence each; empty when all agree.

    Attributes that were not asked for must read back as nothing, too. The tables are left out (no
    kernel dumps them), and the seed where none was asked for (the kernel draws one).
    """
    found = []
    for field in dataclasses.fields(KernelNetem):
        want, got = getattr(asked, field.name), getattr(read_back, field.name)
        unreadable = field.name in {"delay_table", "slot_table"}
        if want != got and not unreadable and not (field.name == "seed" and want is None):
            found.append(f"netem {field.name}: asked for {want}, the kernel holds {got}")
    return found


def as_evidence(state: KernelNetem) -> dict[str, object]:
    """Return what was read back, less what is zero, for a report."""
    found = dataclasses.asdict(state)
    return {
        key: value for key, value in found.items() if value not in (0, (), (0, 0), (0, 0, 0), None)
    }


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _u32(ratio: float) -> int:
    return round(ratio * _U32)


def _gemodel_numbers(model: GilbertElliott | None) -> tuple[int, ...]:
    if model is None:
        return ()
    return _u32(model.p), _u32(model.r), _u32(model.h), _u32(1 - model.k)


def _state4_numbers(model: FourState | None) -> tuple[int, ...]:
    if model is None:
        return ()
    return tuple(_u32(ratio) for ratio in (model.p13, model.p31, model.p32, model.p23, model.p14))


def _slot_numbers(slot: Slot | None) -> tuple[int, ...]:
    if slot is None:
        return ()
    delays = _ns(slot.min_delay_s), _ns(slot.max_delay_s)
    return *delays, slot.packets, slot.bytes, _ns(slot.delay_s), _ns(slot.jitter_s)


def _decode_state4(payload: bytes | None) -> tuple[int, ...]:
    numbers = _unpack(struct.Struct("=5I"), payload)
    if not numbers:
        return ()
    p13, p31, p32, p14, p23 = numbers
    return p13, p31, p32, p23, p14


def _table(values: tuple[int, ...]) -> bytes:
    return struct.pack(f"={len(values)}h", *values)


def _untable(payload: bytes) -> tuple[int, ...]:
    return struct.unpack(f"={len(payload) // 2}h", payload[: len(payload) // 2 * 2])


def _unpack(layout: struct.Struct, payload: bytes | None) -> tuple[int, ...]:
    if payload is None or len(payload) < layout.size:
        return ()
    return layout.unpack_from(payload)


def _integer(payload: bytes | None, layout: str, default: int) -> int:
    found = _unpack(struct.Struct(layout), payload)
    return found[0] if found else default


def _two(payload: bytes | None) -> tuple[int, int]:
    first, second = _unpack(struct.Struct("=2I"), payload) or (0, 0)
    return first, second


def _three(numbers: tuple[int, ...]) -> tuple[int, int, int]:
    first, second, third = numbers or (0, 0, 0)
    return first, second, third
