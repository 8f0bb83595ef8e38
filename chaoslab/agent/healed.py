"""Waiting until a fault is gone: the state reads back clean and a probe packet gets through."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from chaoslab.agent import interface
from chaoslab.agent.echo import Prober
from chaoslab.agent.effect import Pause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaoslab.agent.effect import Wait
    from chaoslab.agent.node import Json, Node

_PAUSE_S: Final = 0.005
_PROBE_EVERY_S: Final = 0.02


def wait_healed(
    node: Node, fault_id: str, timeout_s: float, probe_to: Sequence[str], *, drained: bool = False
) -> Wait:
    """Wait until nothing of the fault steers traffic any more and every target answers a probe.

    A target that another fault in force cuts off is not probed; the answer says which fault. What
    the fault still holds arrives late; `draining_packets` counts it, `drained` waits for it.

    Returns:
        {"healed": true, "t_s", ...} or {"healed": false, "missing"}.
    """
    deadline_s = time.monotonic() + timeout_s
    in_the_way = _in_the_way(node, fault_id, probe_to)
    targets = [target for target in probe_to if target not in in_the_way]
    with contextlib.ExitStack() as stack:
        ping = node.base.ping_allowed
        probers = {t: stack.enter_context(Prober([t], ping=ping)) for t in targets}
        probe_at_s = 0.0
        while True:
            now_s = time.monotonic()
            for prober in probers.values():
                prober.collect()
            unheard = {target: p for target, p in probers.items() if not p.seen.answered}
            state = _unclean(node, fault_id, drained=drained)
            missing = state + [f"no answer from {target}" for target in unheard]
            if not missing:
                return _healed(node, in_the_way)
            if now_s >= deadline_s:
                return {"healed": False, "missing": "; ".join(missing), "state_clean": not state}
            if now_s >= probe_at_s and not state:
                probe_at_s = now_s + _PROBE_EVERY_S
                _send_each(unheard)
            fds = tuple(fd for prober in unheard.values() for fd in prober.fds)
            yield Pause(until_s=min(now_s + _PAUSE_S, deadline_s), fds=fds)


def _send_each(probers: dict[str, Prober]) -> None:
    for prober in probers.values():
        prober.send(1)


def _healed(node: Node, in_the_way: dict[str, str]) -> Json:
    return {
        "healed": True,
        "t_s": time.monotonic(),
        "draining_packets": node.draining_packets,
        "not_probed": in_the_way,
    }


def _unclean(node: Node, fault_id: str, *, drained: bool) -> list[str]:
    if fault_id in node.injections:
        return [f"{fault_id} is still in force: want heal first"]
    found = []
    if not any(item.fault.core.kind == "link_down" for item in node.injections.values()):
        link = interface.get(node.netlink, node.base.ifindex)
        found = [] if link.carries else [f"{link.name} is {link.operstate}"]
        found += interface.differences(node.netlink, node.base.ifindex, node.base.recorded)
    if drained and node.draining_packets:
        found.append(f"{node.draining_packets} packets still held")
    return found


def _in_the_way(node: Node, fault_id: str, targets: Sequence[str]) -> dict[str, str]:
    return {
        target: item.fault_id
        for target in targets
        for item in node.injections.values()
        if item.fault_id != fault_id
        and item.fault.cuts_all
        and not item.fault.match.ports
        and target in (item.fault.match.peers or targets)
    }
