"""The faults in force in this node: injecting, healing, leases, flapping, draining."""

from __future__ import annotations

import contextlib
import errno
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from chaoslab.agent import interface, netem, sockets
from chaoslab.agent.errors import AgentError, bad_request, failed, not_available
from chaoslab.agent.leaf import make_leaf
from chaoslab.agent.netlink import NetlinkError
from chaoslab.agent.setup import Base, pristine_differences, set_up

if TYPE_CHECKING:
    from pyroute2 import IPRoute

    from chaoslab.agent import tc
    from chaoslab.agent.faults import Direction, Fault
    from chaoslab.agent.interface import Record
    from chaoslab.agent.netlink import Netlink
    from chaoslab.agent.tree import Steer

Json = dict[str, object]

DRAIN_LIMIT_S: Final = 30.0
"""A healed fault's queue that has not drained after this, plus its delay, is dropped."""

_DRAIN_POLL_S: Final = 0.02
_RETRY_S: Final = 1.0


@dataclass(kw_only=True)
class Injection:
    """A fault in force, with everything that undoes it. Internal, so it changes in place."""

    fault_id: str
    fault: Fault
    lease_until_s: float
    injected_s: float = 0.0
    steers: list[Steer] = field(default_factory=list)
    victims: list[sockets.TcpSocket] = field(default_factory=list)
    down: bool = False
    flips: int = 0
    next_flip_s: float | None = None
    peak_backlog: dict[Steer, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Draining:
    steer: Steer
    until_s: float


class Node:
    """One node's network: what `setup` built, and the faults in force."""

    def __init__(self, netlink: Netlink, iproute: IPRoute) -> None:
        self.netlink = netlink
        self._iproute = iproute
        self.injections: dict[str, Injection] = {}
        self._base: Base | None = None
        self._down_by: set[str] = set()
        self._before_down: Record | None = None
        self._draining: list[_Draining] = []
        self._drain_at_s = 0.0

    @property
    def base(self) -> Base:
        """What `setup` built.

        Raises:
            AgentError: setup has not been asked for yet.
        """
        if self._base is None:
            raise bad_request("no setup yet: want op setup first")
        return self._base

    @property
    def ready(self) -> bool:
        """Whether setup is done."""
        return self._base is not None

    def set_up(self, name: str, address: str, prefix_length: int) -> Json:
        """Make the node ready; with faults in force only the same address is accepted again."""
        if self.injections and self._base is not None:
            if self._base.address != address:
                raise bad_request("setup with faults in force: want heal_all first")
            return self._setup_answer(self._base)
        self._base = set_up(self.netlink, self._iproute, name, address, prefix_length)
        return self._setup_answer(self._base)

    @staticmethod
    def _setup_answer(base: Base) -> Json:
        ingress = "ingress" in base.tree.devices
        return {
            "ifindex": base.ifindex,
            "ingress": ingress or base.ifb_missing,
            "ping": base.ping_allowed,
        }

    def inject(self, fault_id: str, lease_s: float, fault: Fault) -> Json:
        """Put a fault in force and return the evidence: state read back from the kernel.

        Raises:
            AgentError: the id is in use, the kernel lacks something, or what was read back differs.
        """
        if fault_id in self.injections:
            raise bad_request(
                f"fault_id={fault_id!r}: already in force; heal it first, or renew it"
            )
        base = self.base
        for direction in fault.match.directions:
            if fault.core.kind in {"netem", "silent_drop"} and direction not in base.tree.devices:
                raise not_available(str(base.ifb_missing))
        injection = Injection(
            fault_id=fault_id, fault=fault, lease_until_s=time.monotonic() + lease_s
        )
        self.injections[fault_id] = injection
        try:
            evidence = self._begin(injection)
        except (AgentError, OSError) as error:
            self.heal(fault_id)
            if isinstance(error, AgentError):
                raise
            raise failed(f"injecting {fault.kind}: {error}") from error
        injection.injected_s = time.monotonic()
        if fault.kind == "flap":
            injection.next_flip_s = injection.injected_s + fault.down_s
        return {"t_s": injection.injected_s, "evidence": evidence}

    def _begin(self, injection: Injection) -> Json:
        core = injection.fault.core
        if core.kind == "link_down":
            return self._link_down(injection)
        if core.kind == "reset":
            return self._reset(injection)
        evidence: Json = {}
        for direction in core.match.directions:
            evidence[direction] = self._add_leaf(injection, direction)
        for steer in injection.steers:
            self.base.tree.add_filters(steer, core.match)
        injection.down = True
        return evidence

    def _add_leaf(self, injection: Injection, direction: Direction) -> Json:
        fault, tree = injection.fault.core, self.base.tree
        steer = tree.plan(fault, direction, self._free_slot(direction))
        injection.steers.append(steer)
        return make_leaf(tree, steer, fault)

    def _free_slot(self, direction: Direction) -> int:
        steers = [steer for item in self.injections.values() for steer in item.steers]
        steers += [item.steer for item in self._draining]
        used = {steer.slot for steer in steers if steer.direction == direction}
        return next(slot for slot in range(1, len(used) + 2) if slot not in used)

    def _link_down(self, injection: Injection) -> Json:
        ifindex = self.base.ifindex
        if not self._down_by:
            self._before_down = interface.record(self.netlink, ifindex)
        self._down_by.add(injection.fault_id)
        interface.set_up(self.netlink, ifindex, up=False)
        link = interface.get(self.netlink, ifindex)
        if link.up:
            raise failed(f"interface {link.name} was set down and is still up")
        injection.down = True
        return {"link": link.name, "up": link.up, "operstate": link.operstate}

    def _link_up(self, injection: Injection) -> None:
        injection.down = False
        if injection.fault_id not in self._down_by:
            return
        self._down_by.discard(injection.fault_id)
        if self._down_by or self._before_down is None:
            return
        try:
            interface.restore(self.netlink, self.base.ifindex, self._before_down)
        except NetlinkError as error:
            if error.errno != errno.ENODEV:  # an interface that is gone needs no healing
                self._down_by.add(injection.fault_id)
                raise

    def _reset(self, injection: Injection) -> Json:
        victims = sockets.connected(injection.fault.match, (self.base.address,))
        sockets.destroy(victims)
        injection.victims = victims
        left = sockets.remaining(victims)
        return {"destroyed": [str(item) for item in victims], "left": [str(item) for item in left]}

    def heal(self, fault_id: str) -> Json:
        """Undo a fault; one that is not in force is healed already."""
        injection = self.injections.get(fault_id)
        if injection is None:
            return {"t_s": time.monotonic(), "was_in_force": False}
        for steer in injection.steers:
            self.base.tree.remove_filters(steer)
        if injection.fault.core.kind == "link_down":
            self._link_up(injection)
        t_s = time.monotonic()
        counters: Json = {}
        # A fault whose injection failed half way may have no leaf, and is healed all the same.
        with contextlib.suppress(AgentError):
            counters = self.counters_of(injection)
        asked = injection.fault.core.netem
        longest_s = DRAIN_LIMIT_S + (asked.delay_s + 4 * asked.jitter_s if asked else 0)
        self._draining += [_Draining(steer=s, until_s=t_s + longest_s) for s in injection.steers]
        del self.injections[fault_id]
        self.drain(t_s)
        return {"t_s": t_s, "was_in_force": True, "counters": counters}

    def heal_all(self) -> list[str]:
        """Undo every fault and return their ids; one that fails does not keep the others."""
        healed, first_error = [], None
        for fault_id in list(self.injections):
            try:
                self.heal(fault_id)
                healed.append(fault_id)
            except (AgentError, OSError) as error:
                first_error = first_error or error
        if first_error is not None:
            raise failed(f"healing all: {first_error}")
        return healed

    def drain(self, now_s: float) -> None:
        """Remove the leaf of every healed fault whose queue is empty, or overdue."""
        self._drain_at_s = now_s + _DRAIN_POLL_S
        kept = []
        for item in self._draining:
            leaf = self.base.tree.leaf(item.steer)
            if leaf is not None and leaf.backlog_packets and now_s < item.until_s:
                kept.append(item)
            else:
                self.base.tree.remove_leaf(item.steer)
        self._draining = kept

    @property
    def draining_packets(self) -> int:
        """Packets still queued in the leaves of healed faults."""
        leaves = [self.base.tree.leaf(item.steer) for item in self._draining]
        return sum(leaf.backlog_packets for leaf in leaves if leaf is not None)

    def renew(self, fault_id: str, lease_s: float) -> Json:
        """Extend a fault's lease to `lease_s` from now.

        Raises:
            AgentError: it is not in force.
        """
        injection = self.injection(fault_id)
        injection.lease_until_s = time.monotonic() + lease_s
        return {"lease_until_s": injection.lease_until_s}

    def injection(self, fault_id: str) -> Injection:
        """Return a fault in force.

        Raises:
            AgentError: it is not in force.
        """
        found = self.injections.get(fault_id)
        if found is None:
            raise bad_request(
                f"fault_id={fault_id!r}: want one in force: {sorted(self.injections)}"
            )
        return found

    def tick(self, now_s: float) -> list[Json]:
        """Do what is due: leases that run out, flapping, draining; return the events."""
        events: list[Json] = []
        for injection in list(self.injections.values()):
            try:
                if now_s >= injection.lease_until_s:
                    self.heal(injection.fault_id)
                    events.append({"event": "lease_expired", "fault_id": injection.fault_id})
                elif injection.next_flip_s is not None and now_s >= injection.next_flip_s:
                    events.append(self._flip(injection))
            except (AgentError, OSError) as error:
                injection.lease_until_s = injection.next_flip_s = now_s + _RETRY_S
                said = f"{injection.fault_id}: {error}; trying again every {_RETRY_S:g} s"
                events.append({"event": "failed", "message": said})
        if self._draining and now_s >= self._drain_at_s:
            self.drain(now_s)
        return events

    def _flip(self, injection: Injection) -> Json:
        fault = injection.fault
        if injection.down and fault.core.kind == "link_down":
            self._link_up(injection)
        elif injection.down:
            for steer in injection.steers:
                self.base.tree.remove_filters(steer)
            injection.down = False
        elif fault.core.kind == "link_down":
            self._link_down(injection)
        else:
            for steer in injection.steers:
                self.base.tree.add_filters(steer, fault.core.match)
            injection.down = True
        injection.flips += 1
        injection.next_flip_s = time.monotonic() + (fault.down_s if injection.down else fault.up_s)
        return {"event": "flapped", "fault_id": injection.fault_id, "down": injection.down}

    def due_s(self) -> float | None:
        """Return when `tick` is due next, on CLOCK_MONOTONIC; None when nothing waits."""
        times = [item.lease_until_s for item in self.injections.values()]
        times += [item.next_flip_s for item in self.injections.values() if item.next_flip_s]
        times += [self._drain_at_s] if self._draining else []
        return min(times, default=None)

    def leaf(self, injection: Injection, steer: Steer) -> tc.Qdisc:
        """Return the counters of one direction of a fault, and note its highest backlog.

        Raises:
            AgentError: somebody else removed it.
        """
        found = self.base.tree.leaf(steer)
        if found is None:
            raise failed(
                f"the {steer.kind} qdisc of {injection.fault_id} is gone from {steer.direction}"
            )
        peak = max(injection.peak_backlog.get(steer, 0), found.backlog_packets)
        injection.peak_backlog[steer] = peak
        return found

    def counters_of(self, injection: Injection) -> Json:
        """Return the kernel's counters for a fault, by direction.

        overflow_drops: drops because the queue was full; None where no kernel counter tells them
        from the loss that was asked for. netem counts both in one place.
        """
        found: Json = {}
        for steer in injection.steers:
            leaf = self.leaf(injection, steer)
            asked = injection.fault.core.netem
            entry: Json = {
                "packets": leaf.packets,
                "bytes": leaf.bytes,
                "drops": leaf.drops,
                "overlimits": leaf.overlimits,
                "requeues": leaf.requeues,
                "backlog_packets": leaf.backlog_packets,
                "backlog_bytes": leaf.backlog_bytes,
            }
            if asked is not None:
                entry["limit_packets"] = netem.limit_packets(asked)
                entry["peak_backlog_packets"] = injection.peak_backlog[steer]
                entry["overflow_drops"] = None if asked.drops_by_design else leaf.drops
            found[steer.direction] = entry
        return found

    def pristine(self, *, over: bool = False) -> Json:
        """Compare the node with what `setup` left.

        over: the job has ended, so that packets that healed faults still hold are nobody's.
        """
        self.drain(math.inf if over else time.monotonic())
        found = pristine_differences(self.netlink, self.base)
        return {"pristine": not found, "differences": found}
