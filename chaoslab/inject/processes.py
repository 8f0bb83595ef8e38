"""Process faults: signals to ranks, the store or agents, each seen to have worked.

Evidence comes from the kernel: the status that the process left with, its state in
/proc/PID/stat, its signal masks.
"""

from __future__ import annotations

import asyncio
import dataclasses
import signal as signals
import time
from typing import Any, Final

from chaoslab import faults
from chaoslab.cluster import keys as names
from chaoslab.cluster.interface import Cluster
from chaoslab.errors import HarnessError
from chaoslab.feed import Feed
from chaoslab.inject.placement import Placement
from chaoslab.job.ranks import STORE_KEY, Ranks

_EFFECT_LIMIT_S: Final = 5.0
_POLL_S: Final = 0.005
_STOPPED_STATES: Final = ("T", "t")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hit:
    """What was signalled. keys: processes; gone: those that had ended before."""

    signal: int | None = None
    keys: tuple[str, ...] = ()
    evidence: dict[str, Any] = dataclasses.field(default_factory=dict)
    missing: tuple[str, ...] = ()


def _signal_of(fault: faults.Fault) -> int | None:
    match fault:
        case faults.Kill() | faults.NodeLoss():
            return signals.SIGKILL
        case faults.Stop():
            return signals.SIGSTOP
        case faults.Signal(signal=number):
            return number
    return None


def keys_of(placement: Placement, ranks: Ranks) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Give the keys of the processes that a placement means, and what of it does not run."""
    if placement.containers:  # what runs in them is hit with them
        return tuple(names.of_container(node) for node in placement.containers), ()
    keys = [(f"rank {rank}", ranks.key_of(rank)) for rank in placement.ranks]
    keys += [(f"agent of node {node}", names.of_agent(node)) for node in placement.agents]
    keys += [("the store", STORE_KEY)] if placement.store else []
    found = tuple(key for _, key in keys if key is not None)
    absent = tuple(f"{name} had no running process" for name, key in keys if key is None)
    return found, absent


async def hit(fault: faults.Fault, placement: Placement, cluster: Cluster, ranks: Ranks) -> Hit:
    """Send the fault's signal to every process of the placement."""
    number = _signal_of(fault)
    if number is None:
        return Hit()
    keys, absent = keys_of(placement, ranks)
    evidence, gone = {}, []
    for key in keys:
        # What a rank has started (a launcher's trainer, data loaders) stands still with it.
        tree = number == signals.SIGSTOP
        delivered = await cluster.signal(key, number, tree=tree)
        evidence[key] = {"signal": signal_name(number), "delivered": delivered}
        if not delivered:
            gone.append(f"{key} had ended before the signal")
    # A target that is gone already is a result for a lost node, and a miss for a plain kill.
    missing = () if isinstance(fault, faults.NodeLoss) else (*absent, *gone)
    return Hit(signal=number, keys=keys, evidence=evidence, missing=missing)


async def effect(
    hit: Hit, cluster: Cluster, feed: Feed
) -> tuple[dict[str, Any], list[str], list[float]]:
    """Wait until each signal was seen to work.

    Returns what was seen by key, what was not seen, and when each was seen (CLOCK_MONOTONIC).
    """
    seen: dict[str, Any] = {}
    missing = list(hit.missing)
    times: list[float] = []
    for key in hit.keys:
        if not hit.evidence[key]["delivered"]:
            continue
        try:
            seen[key], t_s = await _effect_of(key, hit.signal or 0, cluster, feed)
            times.append(t_s)
        except HarnessError as problem:
            missing.append(str(problem))
    return seen, missing, times


async def _effect_of(
    key: str, number: int, cluster: Cluster, feed: Feed
) -> tuple[dict[str, Any], float]:
    deadline_s = time.monotonic() + _EFFECT_LIMIT_S
    before: dict[str, Any] = {}
    while time.monotonic() < deadline_s:
        for event in feed.history.of("process_exited"):
            if event.get("key") == key:
                return _ended(key, number, event.get("status")), event.t_s
        now = await cluster.look(key, tree=number == signals.SIGSTOP)
        if number == signals.SIGSTOP and now["state"] not in (*_STOPPED_STATES, None):
            await cluster.signal(key, number, tree=True)  # a child that was just being forked
        seen = _seen(key, number, before, now)
        if seen:
            return seen, time.monotonic()
        before = now
        await asyncio.sleep(_POLL_S)
    name = signal_name(number)
    raise HarnessError(f"{key} neither ended nor stopped within {_EFFECT_LIMIT_S} s of {name}")


def _ended(key: str, number: int, status: Any) -> dict[str, Any]:
    """Read an exit as the signal's effect. Raises: HarnessError when it was not that signal."""
    by_itself = number in (signals.SIGKILL, signals.SIGSTOP) and status != -signals.SIGKILL
    if by_itself or number == signals.SIGSTOP:
        name = signal_name(number)
        raise HarnessError(f"{key} ended with status {status}, and not by {name}")
    return {"exit_status": status}


def _seen(key: str, number: int, before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Say what two looks at a process show of a signal's effect (empty: nothing yet).

    Raises: HarnessError when the process ignores the signal.
    """
    stopped = now["state"] in _STOPPED_STATES
    if number == signals.SIGSTOP:
        # Stopped at two looks, and no processor time spent in between.
        same = [before.get(name) == now[name] for name in ("state", "cpu_ticks")]
        return (
            {"state": now["state"], "cpu_ticks": now["cpu_ticks"]} if stopped and all(same) else {}
        )
    if number == signals.SIGKILL or now["state"] is None or stopped:
        return {}
    if now["ignored"] & _bit(number):
        raise HarnessError(f"{key} ignores {signal_name(number)}: it had no effect")
    handled = now["caught"] & _bit(number) and not now["pending"] & _bit(number)
    return {"handled_by_the_process": signal_name(number)} if handled else {}


def signal_name(number: int) -> str:
    """Give a signal's name; a real-time signal has none but its number."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _bit(number: int) -> int:
    """Give a signal's place in the masks of /proc/PID/status. Source: proc(5)."""
    return 1 << (number - 1)


async def undo(
    fault: faults.Fault, placement: Placement, cluster: Cluster, ranks: Ranks
) -> tuple[str, ...]:
    """Continue what a Stop has stopped. Returns what could not be undone, in words."""
    if not isinstance(fault, faults.Stop):
        return ()
    keys, _ = keys_of(placement, ranks)
    problems = []
    for key in keys:
        if not await cluster.signal(key, signals.SIGCONT, tree=True):
            continue
        deadline_s = time.monotonic() + _EFFECT_LIMIT_S
        while (await cluster.look(key))["state"] in _STOPPED_STATES:
            if time.monotonic() > deadline_s:
                problems.append(f"{key} is still stopped {_EFFECT_LIMIT_S} s after SIGCONT")
                break
            await asyncio.sleep(_POLL_S)
    return tuple(problems)
