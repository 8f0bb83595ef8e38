"""Waiting until a fault is seen to bite: its own counters move, its own probe packets suffer.

Each wait is a generator that yields a `Pause`, so that leases, signals and other requests go on.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chaoslab.agent import interface, sockets
from chaoslab.agent.echo import LARGE_BYTES, SMALL_BYTES, Prober
from chaoslab.agent.netem_value import Netem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaoslab.agent import tc
    from chaoslab.agent.node import Injection, Json, Node
    from chaoslab.agent.tree import Steer

CHANCE: Final = 1e-9
"""A loss that is in force goes unseen with at most this chance before the wait gives up."""

_FIRST_PAUSE_S: Final = 0.0005
_LONGEST_PAUSE_S: Final = 0.02
_BURST_MAX: Final = 64
_OUTSTANDING_MAX: Final = 256
_RATE_BURST_S: Final = 0.02
_RATE_SEEN_S: Final = 0.004
_RATE_BURSTS: Final = 3
_PATIENCE_S: Final = 0.25
_SAMPLE_LEAST: Final = 50
_SIGMAS: Final = 5.0
_SNMP: Final = Path("/proc/net/snmp")
_CHECKSUM_COUNTERS: Final = (("Icmp", "InCsumErrors"), ("Udp", "InCsumErrors"),
                             ("Tcp", "InCsumErrors"), ("Ip", "InHdrErrors"))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Pause:
    """Go on at `until_s` (CLOCK_MONOTONIC), or as soon as one of `fds` can be read."""

    until_s: float
    fds: tuple[int, ...] = ()


Wait = Generator[Pause, None, "Json"]


def wait_effective(
    node: Node, injection: Injection, timeout_s: float, probe_to: Sequence[str]
) -> Wait:
    """Wait until the fault has been seen to bite in each of its directions.

    Returns:
        {"effective": true, "t_s", "effect", "counters"} or {"effective": false, "missing"}.
    """
    deadline_s = time.monotonic() + timeout_s
    kind = injection.fault.core.kind
    if kind == "reset":
        return _sockets_gone(injection, deadline_s)
    if kind == "link_down":
        return _link_is_down(node, injection, deadline_s, probe_to)
    return _traffic_suffers(node, injection, deadline_s, probe_to)


def _sockets_gone(injection: Injection, deadline_s: float) -> Wait:
    names = [str(item) for item in injection.victims]
    if not names:
        return {"effective": False, "missing": "no connection matched, so none was reset"}
    while left := sockets.remaining(injection.victims):
        if time.monotonic() >= deadline_s:
            return {"effective": False, "missing": f"still there: {', '.join(map(str, left))}"}
        yield _pause(_FIRST_PAUSE_S, deadline_s)
    effect: Json = {"kind": "reset", "destroyed": names}
    return {"effective": True, "t_s": time.monotonic(), "effect": effect, "counters": {}}


def _link_is_down(
    node: Node, injection: Injection, deadline_s: float, probe_to: Sequence[str]
) -> Wait:
    while True:
        link = interface.get(node.netlink, node.base.ifindex)
        refusal = None
        if probe_to and not link.up:
            with Prober(probe_to, ping=node.base.ping_allowed) as prober:
                refusal = prober.send(1)
        if not link.up and (refusal or not probe_to):
            effect: Json = {"kind": "link_down", "up": link.up, "operstate": link.operstate,
                            "send_errno": refusal}  # fmt: skip
            return {"effective": True, "t_s": time.monotonic(), "effect": effect, "counters": {}}
        if time.monotonic() >= deadline_s:
            seen = f"{link.name} is {'up' if link.up else 'down'}, a send gave errno {refusal}"
            return {"effective": False, "missing": f"interface down and a refused send: {seen}"}
        flip_s = injection.next_flip_s or deadline_s
        yield _pause(
            min(_LONGEST_PAUSE_S, max(flip_s - time.monotonic(), _FIRST_PAUSE_S)), deadline_s
        )


def _traffic_suffers(
    node: Node, injection: Injection, deadline_s: float, probe_to: Sequence[str]
) -> Wait:
    with contextlib.ExitStack() as stack:
        watches = [Watch(node, injection, steer, probe_to, stack) for steer in injection.steers]
        pause_s = _FIRST_PAUSE_S
        while True:
            for watch in watches:
                watch.step()
            missing = [line for watch in watches for line in watch.missing()]
            if not missing:
                effect: Json = {watch.steer.direction: watch.effect() for watch in watches}
                return {
                    "effective": True,
                    "t_s": time.monotonic(),
                    "effect": {"kind": injection.fault.core.kind, **effect},
                    "counters": node.counters_of(injection),
                }
            hopeless = [line for watch in watches for line in watch.hopeless()]
            if hopeless or time.monotonic() >= deadline_s:
                return {
                    "effective": False,
                    "missing": "; ".join(hopeless or missing),
                    "counters": node.counters_of(injection),
                }
            fds = tuple(fd for watch in watches for fd in watch.fds)
            yield _pause(pause_s, deadline_s, fds)
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)


def _pause(seconds: float, deadline_s: float, fds: tuple[int, ...] = ()) -> Pause:
    return Pause(until_s=min(time.monotonic() + seconds, deadline_s), fds=fds)


class Watch:
    """One direction of one fault: sends its probes and says what has not been seen yet."""

    def __init__(
        self,
        node: Node,
        injection: Injection,
        steer: Steer,
        probe_to: Sequence[str],
        stack: contextlib.ExitStack,
    ) -> None:
        self._node, self._injection, self.steer = node, injection, steer
        self._asked = injection.fault.core.netem or Netem(loss_ratio=1.0)
        match, ping = injection.fault.match, node.base.ping_allowed
        inward = steer.direction == "ingress"
        targets = tuple(peer for peer in match.peers if peer in probe_to) or match.peers or probe_to
        if match.ports and inward:
            targets = ()  # what a peer sends to or from a port, no probe of ours can call forth
        port = match.ports[0] if match.ports else None
        self._prober = stack.enter_context(Prober(targets, ping=ping, bypass=inward, port=port))
        # Where probes vanish and no counter says so, a control that goes past the fault must not.
        control = targets if self._asked.corrupt_ratio and not inward else ()
        self._control = stack.enter_context(Prober(control, ping=ping, bypass=True))
        self._checksum_errors = _checksum_errors()
        self._bursts, self._fastest_burst_s = 0, math.inf
        self._leaf: tc.Qdisc | None = None
        self._longest_s = (self._asked.delay_s + 4 * self._asked.jitter_s) * self._crossings
        self._prober.patience_s = self._control.patience_s = _PATIENCE_S + 2 * self._longest_s

    @property
    def fds(self) -> list[int]:
        """What to wait for."""
        return self._prober.fds

    @property
    def _crossings(self) -> int:
        # A probe on egress comes back through the same fault's ingress, where it has one.
        both = len(self._injection.steers) > 1
        return 2 if both and self.steer.direction == "egress" else 1

    @property
    def _packet_bytes(self) -> int:
        return LARGE_BYTES if self._asked.rate_bytes_per_s else SMALL_BYTES

    def step(self) -> None:
        """Collect answers, send the next probes, read the counters."""
        self._prober.collect()
        self._control.collect()
        if self._prober.outstanding < _OUTSTANDING_MAX or self._asked.drops_by_design:
            self._send_burst()
            self._control.send(self._burst() if self._crossings > 1 else 1)
        self._leaf = self._node.leaf(self._injection, self.steer)

    def _send_burst(self) -> None:
        count, begun_s = self._burst(), time.monotonic()
        self._prober.send(count, self._packet_bytes)
        if count:
            self._bursts += 1
            self._fastest_burst_s = min(self._fastest_burst_s, time.monotonic() - begun_s)

    def _burst(self) -> int:
        """Enough packets that what is asked is likely to be seen, without filling a slow link."""
        asked = self._asked
        if asked.rate_bytes_per_s:
            frame_bytes = self._prober.frame_bytes(LARGE_BYTES)
            wanted = math.ceil(_RATE_BURST_S * asked.rate_bytes_per_s / frame_bytes)
            return 0 if self._prober.outstanding > 1 else min(wanted, _BURST_MAX)
        if asked.expected_loss_ratio >= 1:
            return 1
        rare = [asked.expected_loss_ratio, asked.duplicate_ratio, asked.corrupt_ratio]
        rarest = min((ratio for ratio in rare if ratio), default=1.0)
        return max(
            4 if asked.reorder_ratio or asked.gap else 1, min(_BURST_MAX, math.ceil(3 / rarest))
        )

    def missing(self) -> list[str]:
        """Return what has not been seen yet, one line each; empty when all of it has."""
        if self._leaf is None:
            return ["nothing read yet"]
        asked = self._asked
        lines = []
        if asked.expected_loss_ratio and self._leaf.drops == 0:
            lines.append("no drop counted")
        if asked.expected_loss_ratio >= 1:
            return self._named(lines)  # nothing comes back that could show more
        if not self._prober.seen.sent:
            return self._named(lines + ([] if self._moved() else ["no packet went through it"]))
        checks = (self._delay_unseen, self._damage_unseen, self._order_unseen, self._pace_unseen)
        return self._named(lines + [line for check in checks for line in check()])

    def _delay_unseen(self) -> list[str]:
        wanted_s, longest_s = self._asked.delay_s * self._crossings, self._prober.seen.longest_s
        if not wanted_s or (longest_s >= wanted_s and self._peak()):
            return []
        return [f"no probe held for {wanted_s:g} s (longest {longest_s:g} s)"]

    def _damage_unseen(self) -> list[str]:
        lines = []
        if self._asked.duplicate_ratio and not self._prober.seen.duplicates:
            lines.append("no answer came twice")
        if self._asked.corrupt_ratio and not self._corrupted():
            lines.append("no packet arrived damaged")
        return lines

    def _order_unseen(self) -> list[str]:
        asked = self._asked.reorder_ratio or self._asked.gap
        unseen = asked and not self._prober.seen.overtaken
        return ["no answer overtook another"] if unseen else []

    def _pace_unseen(self) -> list[str]:
        lines, longest_s = [], self._prober.seen.longest_s
        shows_s = self._rate_shows_s()
        if shows_s and not (longest_s >= shows_s and self._peak()):
            lines.append(f"no burst took {shows_s:g} s (longest {longest_s:g} s)")
        if self._asked.rate_bytes_per_s and not shows_s and not self._moved():
            lines.append("no packet went through it")
        if self._asked.slot and not self._peak():
            lines.append("no packet held for a slot")
        return lines

    def _named(self, lines: list[str]) -> list[str]:
        seen = self._prober.seen
        tail = f"on {self.steer.direction} after {seen.sent} probes, {seen.answered} answered"
        return [f"{line} {tail}" for line in lines]

    def hopeless(self) -> list[str]:
        """Return why waiting longer cannot help: a loss that spared too many packets."""
        leaf, ratio = self._leaf, self._asked.loss_ratio
        if leaf is None or leaf.drops or not 0 < ratio < 1 or self._asked.loss_correlation_ratio:
            return []
        offered = leaf.packets + leaf.backlog_packets
        if offered * math.log1p(-ratio) > math.log(CHANCE):
            return []
        seen = f"loss of {ratio:g} dropped none of {offered} packets on {self.steer.direction}"
        return [f"{seen}, which has a chance below {CHANCE:g}"]

    def effect(self) -> Json:
        """Return what was seen."""
        seen, leaf = self._prober.seen, self._leaf
        found: Json = {"probes_sent": seen.sent, "probes_answered": seen.answered}
        found["drops"] = leaf.drops if leaf else 0
        found["peak_backlog_packets"] = self._peak()
        if seen.answered:
            found |= {"longest_round_trip_s": seen.longest_s, "duplicates": seen.duplicates,
                      "overtaken": seen.overtaken}  # fmt: skip
        if self._asked.rate_bytes_per_s and not self._rate_shows_s():
            found["rate"] = "too fast for probes to show: read back, and traffic goes through it"
        return found

    def _peak(self) -> int:
        return self._injection.peak_backlog.get(self.steer, 0)

    def _moved(self) -> bool:
        leaf = self._leaf
        return leaf is not None and bool(leaf.packets or leaf.drops or leaf.backlog_packets)

    def _rate_shows_s(self) -> float:
        if not self._asked.rate_bytes_per_s:
            return 0.0
        burst_s = self._prober.frame_bytes(LARGE_BYTES) / self._asked.rate_bytes_per_s
        burst_s *= min(_BURST_MAX, math.ceil(_RATE_BURST_S / burst_s))
        # A burst that takes longer to send than to carry never fills the link.
        slow = self._bursts >= _RATE_BURSTS and burst_s < 2 * self._fastest_burst_s
        return 0.0 if slow or burst_s < _RATE_SEEN_S else burst_s / 2

    def _corrupted(self) -> bool:
        if self.steer.direction == "ingress":
            return _checksum_errors() > self._checksum_errors
        drops = self._leaf.drops if self._leaf else 0
        unexplained = self._prober.lost - drops
        if self._control.lost == 0:
            return self._control.seen.answered > 0 and unexplained > 0
        # Answers come back through the same fault's ingress, so the control loses some as well:
        # the probes, which cross the fault twice, must lose significantly more.
        return _clearly_more(
            (unexplained, self._prober.seen.answered),
            (self._control.lost, self._control.seen.answered),
        )


def _clearly_more(probes: tuple[int, int], control: tuple[int, int]) -> bool:
    """Tell whether a share of (lost, answered) is larger, by _SIGMAS standard deviations.

    Source: the two-proportion z-test with a pooled estimate.
    """
    sizes = [sum(probes), sum(control)]
    if min(sizes) < _SAMPLE_LEAST:
        return False
    pooled = (probes[0] + control[0]) / sum(sizes)
    deviation = math.sqrt(pooled * (1 - pooled) * (1 / sizes[0] + 1 / sizes[1]))
    return probes[0] / sizes[0] - control[0] / sizes[1] > _SIGMAS * deviation > 0


def _checksum_errors() -> int:
    rows: dict[str, dict[str, str]] = {}
    lines = [line.split() for line in _SNMP.read_text().splitlines()]
    for names, values in zip(lines[::2], lines[1::2], strict=False):
        rows[names[0].rstrip(":")] = dict(zip(names, values, strict=False))
    return sum(int(rows.get(group, {}).get(name, 0)) for group, name in _CHECKSUM_COUNTERS)
