"""Configure: explicit timeouts and environment for NCCL and gloo, read back and checked.

    with configure_nccl(timeout_s=60) as nccl:
        dist.init_process_group("nccl", timeout=nccl.timeout)
        nccl.check()

What is asked for in the call counts; else what the environment says, where it is fit; else the
defaults here, never torch's. Call it before the first process group of a process: NCCL and the
flight recorder read their part once.
"""

from __future__ import annotations

import fcntl
import math
import os
import socket
import struct
from collections.abc import Mapping
from datetime import timedelta
from typing import Final, Literal

import torch.distributed as dist

from chaoslab.resilience import health, variables as v
from chaoslab.resilience.configured import Configured, apply

NCCL_TIMEOUT_S: Final = 120.0
GLOO_TIMEOUT_S: Final = 30.0
HEARTBEAT_S: Final = 180
"""A watchdog thread that is stuck this long is dead; torch's own default is 480 s.

torch looks once per heartbeat and waits one more before it ends the process, so a stuck CUDA call
ends it after at most 3 heartbeats. Source: HeartbeatMonitor::runLoop, ProcessGroupNCCL.cpp.
"""
DUMP_S: Final = 2.0
"""Limit of writing the flight record; torch's own default is 15 s.

The watchdog sleeps four times this after EVERY timeout before it ends the process, whether or not
there is anything to write. Source: Watchdog::runLoop, ProcessGroupNCCL.cpp (main branch, 2025).
"""
DUMP_WAITS: Final = 4
TRACE_ENTRIES: Final = 2000

LONGEST_S: Final = 86_400.0
"""Longest time that is taken: a day. torch counts in milliseconds, partly in 32 bits."""

END_AFTER_CLEANUP, END_AT_ONCE = "1", "3"
"""Modes that end the process; 0 ignores a timeout, 2 goes on with data that was cut off.

Source: enum ErrorHandlingMode, ProcessGroupNCCL.hpp. torchrun sets 1 where nothing is set.
"""

OnTimeout = Literal["end_process", "raise"]


def configure_nccl(
    *,
    timeout_s: float = NCCL_TIMEOUT_S,
    on_timeout: OnTimeout | None = None,
    heartbeat_s: int | None = None,
    dump_s: float | None = None,
    trace_entries: int | None = None,
) -> Configured:
    """Set what NCCL process groups made after this do about a collective that never ends.

    timeout_s: of every collective, in seconds. on_timeout: "end_process" (the default): torch's
    watchdog ends the process, and a launcher starts it again; "raise": `wait` raises, so that the
    process can go on, at the price that every collective blocks the CPU; there is no watchdog
    then. heartbeat_s: see HEARTBEAT_S. dump_s: see DUMP_S. trace_entries: size of the flight
    recorder, 0 for none.

    Raises: ValueError for a bad value, or for an environment that contradicts itself or the call;
    RuntimeError when a process group exists already.
    """
    _refuse_after_the_fact("configure_nccl")
    timeout = _duration("configure_nccl", "timeout_s", timeout_s)
    trace = v.trace_name()
    said = _said()
    mode = _on_timeout(on_timeout, said)
    asked = {
        v.HEARTBEAT: _whole("heartbeat_s", heartbeat_s, lowest=1),
        v.DUMP_WAIT: _milliseconds("dump_s", dump_s),
        trace: _whole("trace_entries", trace_entries, lowest=0),
        **_asked_by_mode(mode, said, chosen=on_timeout is not None),
    }
    values = {
        v.HEARTBEAT: str(HEARTBEAT_S),
        v.DUMP_WAIT: str(int(DUMP_S * 1000)),
        trace: str(TRACE_ENTRIES),
        v.DUMP: "1",
        **said,
        **{name: value for name, value in asked.items() if value is not None},
    }
    for name, lowest in ((v.HEARTBEAT, 1), (v.DUMP_WAIT, 1), (trace, 0)):
        if int(values[name]) < lowest:
            raise ValueError(f"{name}={values[name]}: want {lowest} or more; unset it")
    if values[trace] == "0" or mode == "raise":
        values[v.DUMP] = "0"  # there is nothing to dump, or no watchdog that would
    waits_s = DUMP_WAITS * int(values[v.DUMP_WAIT]) / 1000 if mode == "end_process" else 0.0
    return apply("nccl", timeout, values, longest_s=timeout.total_seconds() + waits_s)


def configure_gloo(
    *,
    timeout_s: float = GLOO_TIMEOUT_S,
    interface: str | None = None,
    store: tuple[str, int] | None = None,
) -> Configured:
    """Set which interface gloo process groups made after this use, and their timeout in seconds.

    interface: its name; else GLOO_SOCKET_IFNAME; else the one that leads to the store, (host,
    port), by default MASTER_ADDR and MASTER_PORT. Left alone, gloo takes what the host's name
    resolves to, often the loopback. Lazy connection is off: it ignores the timeout (gloo 520).

    Raises: ValueError for a bad value, an interface that is not up, or a store without a route;
    RuntimeError when a process group exists already.
    """
    _refuse_after_the_fact("configure_gloo")
    timeout = _duration("configure_gloo", "timeout_s", timeout_s)
    if v.plain(v.LAZY, os.environ.get(v.LAZY, "0")) == "1":
        raise ValueError(f"{v.LAZY}=1: want 0, a lazy connection ignores the timeout; unset it")
    name = interface or os.environ.get(v.GLOO_INTERFACE) or _interface_towards(store)
    for each in name.split(","):
        if not _is_up(each):
            known = [known for _, known in socket.if_nameindex()]
            raise ValueError(f"interface {each!r}: want one that is up, of {known}")
    rpc = None if interface else os.environ.get(v.RPC_INTERFACE)
    values = {v.GLOO_INTERFACE: name, v.RPC_INTERFACE: rpc or name.split(",")[0], v.LAZY: "0"}
    return apply("gloo", timeout, values, longest_s=timeout.total_seconds())


def _said() -> dict[str, str]:
    """Give what the environment says, deprecated names mapped, in one spelling."""
    names = {*v.FLAGS, *v.NUMBERS, *v.deprecated().values()} - {v.LAZY, *v.deprecated()}
    current = {name: v.plain(name, os.environ[name]) for name in names if name in os.environ}
    return current | v.mapped()


def _on_timeout(chosen: OnTimeout | None, said: Mapping[str, str]) -> OnTimeout:
    if chosen not in (None, "end_process", "raise"):
        raise ValueError(f"on_timeout={chosen!r}: want 'end_process' or 'raise'")
    return chosen or ("raise" if said.get(v.BLOCKING_WAIT) == "1" else "end_process")


def _asked_by_mode(
    mode: OnTimeout, said: Mapping[str, str], *, chosen: bool
) -> dict[str, str | None]:
    """Give the settings that make a timeout do what was chosen. Raises: ValueError."""
    if mode == "raise":
        return {v.BLOCKING_WAIT: "1", v.ERROR_HANDLING: "0", v.MONITORING: "0"}
    handling = said.get(v.ERROR_HANDLING, END_AT_ONCE)
    ends = handling in (END_AFTER_CLEANUP, END_AT_ONCE)
    if not chosen and not ends:
        raise ValueError(
            f"{v.ERROR_HANDLING}={handling}: want 1 or 3, which end a process whose collective "
            "timed out; unset it, or say on_timeout="
        )
    return {
        v.BLOCKING_WAIT: "0",
        v.ERROR_HANDLING: handling if ends else END_AT_ONCE,
        v.MONITORING: "1",
    }


def _refuse_after_the_fact(what: str) -> None:
    if dist.is_initialized():
        raise RuntimeError(
            f"{what}: a process group exists already and will not see it; call it before "
            "init_process_group, or destroy the group first"
        )


def _duration(what: str, name: str, value: float) -> timedelta:
    """Check a time in seconds. Raises: ValueError."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not 0.001 <= value <= LONGEST_S  # noqa: PLR2004 - torch counts in milliseconds
    ):
        raise ValueError(
            f"{what}({name}={value!r}): want 0.001 to {LONGEST_S:.0f} s; a limit that is not "
            "finite is no limit"
        )
    return timedelta(milliseconds=round(value * 1000))


def _milliseconds(name: str, value: float | None) -> str | None:
    if value is None:
        return None
    return str(_duration("configure_nccl", name, value) // timedelta(milliseconds=1))


def _whole(name: str, value: int | None, *, lowest: int) -> str | None:
    """Check a whole number. Raises: ValueError."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= LONGEST_S:
        raise ValueError(
            f"configure_nccl({name}={value!r}): want a whole number from {lowest} to "
            f"{LONGEST_S:.0f}; torch reads no fractions"
        )
    return str(value)


def _interface_towards(store: tuple[str, int] | None) -> str:
    """Name the interface that leads to the store. Raises: ValueError."""
    if store is None:
        host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "29500")
        if not host or not port.isdigit():
            raise ValueError(
                "configure_gloo(): want interface=, store=(host, port), or MASTER_ADDR and "
                "MASTER_PORT in the environment"
            )
        store = (host, int(port))
    address = health.address_towards(store)
    name = None if address is None else health.interface_of(address)
    if name is None:
        raise ValueError(f"store {store[0]}: want one that an interface of this node leads to")
    return name


def _is_up(name: str) -> bool:
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock, health.SIOCGIFFLAGS, request)
        except OSError:
            return False
    return bool(struct.unpack_from("H", answer, 16)[0] & health.IFF_UP)
