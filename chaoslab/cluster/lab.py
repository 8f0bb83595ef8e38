"""The lab: process 1 of a run's own pid namespace, parent of all that the run starts.

Nothing of a run can outlive it. When the harness closes its end of the control socket, or is
killed, the lab kills every process of the run and exits; the kernel then takes back the
namespaces with their links and qdiscs. If the lab itself is
killed, the kernel kills everything in its pid namespace.

Single-threaded on purpose: it forks. Control messages are JSON lines over a Unix socket;
descriptors for the agents travel with the `nodes` request.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaoslab.cluster import linux, plumbing, spawn

_READ_BYTES = 1 << 16
_MAX_FDS = 253
"""Descriptors in one message. Source: SCM_MAX_FD of include/net/scm.h."""

_START_LIMIT_S = 15.0
_WIRE_LIMIT_S = 15.0
_END_LIMIT_S = 10.0
_REAP_POLL_S = 0.05
_GONE = {"state": None, "cpu_ticks": 0, "pending": 0, "caught": 0, "ignored": 0}


class Lab:
    """State of one run's lab. `serve` is its whole life."""

    def __init__(self, control: socket.socket, forbidden_netns: tuple[int, int]) -> None:
        self._control = control
        self._forbidden_netns = forbidden_netns
        self._netns_fds: list[int] = []
        self._agent_pids: list[int] = []
        self._keys: dict[int, str] = {}
        self._received_fds: list[int] = []
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._requests: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "nodes": self._start_nodes,
            "spawn": self._spawn,
            "signal": self._signal,
            "state": self._state,
            "processes": self._processes,
            "empty": self._empty_node,
            "close": self._close,
        }

    def serve(self) -> None:
        """Answer requests until the control socket ends, then leave nothing behind."""
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        try:
            self._loop()
        finally:
            self._kill_all()

    def _loop(self) -> None:
        pending = b""
        while True:
            ready, _, _ = select.select([self._control.fileno(), self._wake_read], [], [])
            if self._wake_read in ready:
                self._drain_wakes()
                self._reap()
            if self._control.fileno() not in ready:
                continue
            data, fds, _, _ = socket.recv_fds(self._control, _READ_BYTES, _MAX_FDS)
            self._received_fds += fds
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                self._answer(json.loads(line))

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, _READ_BYTES)

    def _answer(self, request: dict[str, Any]) -> None:
        try:
            answer = {"ok": True} | self._requests[request["op"]](request)
        except Exception as problem:  # noqa: BLE001  the harness decides what it means
            answer = {"ok": False, "error": f"{type(problem).__name__}: {problem}"}
        self._send(answer | {"id": request["id"]})

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._control.sendall(json.dumps(message).encode() + b"\n")

    # --- nodes ---------------------------------------------------------------------------

    def _start_nodes(self, request: dict[str, Any]) -> dict[str, Any]:
        count = request["count"]
        channels, self._received_fds = self._received_fds[:count], self._received_fds[count:]
        if len(channels) != count:
            raise ValueError(f"nodes: want {count} descriptors, got {len(channels)}")
        born_read, born_write = os.pipe2(os.O_CLOEXEC)
        for index, channel in enumerate(channels):
            others = [fd for fd in channels if fd != channel]
            close = [born_read, *others, *self._own_fds()]
            pid = spawn.fork_child(lambda c=channel: self._agent(c, born_write), close)  # type: ignore[misc]
            self._keys[pid] = f"agent-{index}"
            self._agent_pids.append(pid)
        os.close(born_write)
        _read_exactly(born_read, count, limit_s=10.0)
        os.close(born_read)
        for pid, channel in zip(self._agent_pids, channels, strict=True):
            # Held open, a namespace outlives its agent: an agent can die, the node stays.
            self._netns_fds.append(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC))
            os.close(channel)
        self._wire()
        return {"pids": self._agent_pids}

    def _agent(self, channel: int, born: int) -> int:
        from chaoslab.agent import main  # noqa: PLC0415  imported by the server before the fork

        os.setsid()
        linux.unshare(linux.CLONE_NEWNET)
        linux.keep_capabilities({linux.CAP_NET_ADMIN})
        os.write(born, b".")
        os.close(born)
        return int(main(channel, channel, self._forbidden_netns))

    def _wire(self) -> None:
        def body() -> int:
            plumbing.wire(self._agent_pids)
            return 0

        done, wired = os.pipe2(os.O_CLOEXEC)
        pid = spawn.fork_child(body, [self._control.fileno(), done])
        os.close(wired)  # the child's end closes when it ends
        try:
            _read_all(done, limit_s=_WIRE_LIMIT_S)
        except TimeoutError as problem:
            os.kill(pid, signal.SIGKILL)
            raise TimeoutError(f"the nodes were not wired within {_WIRE_LIMIT_S} s") from problem
        finally:
            _, status = os.waitpid(pid, 0)
        if status != 0:
            raise RuntimeError(f"wiring the nodes failed with status {status}")

    def _own_fds(self) -> list[int]:
        return [self._control.fileno(), self._wake_read, self._wake_write, *self._netns_fds]

    # --- processes -----------------------------------------------------------------------

    def _spawn(self, request: dict[str, Any]) -> dict[str, Any]:
        start = spawn.Start(**request["start"])
        netns_fd = self._netns_fds[start.node]
        close = [fd for fd in self._own_fds() if fd != netns_fd]
        report, told = os.pipe2(os.O_CLOEXEC)
        pid = spawn.fork_child(lambda: spawn.become(start, netns_fd, told=told), [*close, report])
        os.close(told)
        self._keys[pid] = start.key
        started_s = time.monotonic()
        # Its end closes when the program begins; before that, it says what went wrong.
        problem = _read_all(report, limit_s=_START_LIMIT_S)
        if problem:
            del self._keys[pid]
            raise RuntimeError(f"{start.key} could not begin: {problem}")
        return {"pid": pid, "t_s": started_s}

    def _empty_node(self, request: dict[str, Any]) -> dict[str, Any]:
        """Kill every process of a node but its agent, also those that left their session."""
        killed = 0
        for process in self._processes({})["processes"]:
            key = process["key"] or ""
            if process["node"] == request["node"] and not key.startswith("agent-"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process["pid"], signal.SIGKILL)
                    killed += 1
        return {"killed": killed}

    def _signal(self, request: dict[str, Any]) -> dict[str, Any]:
        pid = self._pid_of(request["key"])
        if pid is None:
            return {"gone": True, "t_s": time.monotonic()}
        for one in _family(pid) if request.get("tree") else [pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, request["signal"])
        return {"gone": False, "t_s": time.monotonic()}

    def _state(self, request: dict[str, Any]) -> dict[str, Any]:
        pid = self._pid_of(request["key"])
        if pid is None:
            return dict(_GONE)
        seen = _look(pid)
        if request.get("tree"):
            family = [_look(one) for one in _family(pid)]
            states = {one["state"] for one in family if one["state"] not in (None, "Z", "X")}
            # Stopped when all of them are; else the state of one that is not.
            running = states - {"T", "t"}
            seen["state"] = min(running) if running else seen["state"]
            seen["cpu_ticks"] = sum(one["cpu_ticks"] or 0 for one in family)
        return seen

    def _pid_of(self, key: str) -> int | None:
        for pid, name in self._keys.items():
            if name == key:
                return pid
        return None

    def _processes(self, _: dict[str, Any]) -> dict[str, Any]:
        """List what runs besides the lab: what was started by name, and what is an orphan."""
        found = []
        for entry in (path.name for path in Path("/proc").iterdir()):
            if not entry.isdigit() or int(entry) == 1:
                continue
            with contextlib.suppress(OSError):
                pid = int(entry)
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                netns = linux.netns_identity(pid)
                found.append(
                    {
                        "pid": pid,
                        "key": self._keys.get(pid),
                        "state": _look(pid)["state"],
                        "command": command.replace(b"\0", b" ").decode(errors="replace")[:200],
                        "node": self._node_of(netns),
                    }
                )
        return {"processes": found}

    def _node_of(self, netns: tuple[int, int]) -> int | None:
        for index, fd in enumerate(self._netns_fds):
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) == netns:
                return index
        return None

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            key = self._keys.pop(pid, None)
            event = {"event": "exited", "key": key, "pid": pid, "status": code}
            self._send(event | {"t_s": time.monotonic()})

    # --- the end -------------------------------------------------------------------------

    def _close(self, _: dict[str, Any]) -> dict[str, Any]:
        """Kill every process of the run, and answer when they are gone."""
        self._kill_all()
        return {}

    def _kill_all(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        deadline_s = time.monotonic() + _END_LIMIT_S
        # One that hangs in the kernel is left to it: the end of process 1 ends the namespace.
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < deadline_s:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    select.select([self._wake_read], [], [], _REAP_POLL_S)
                    self._drain_wakes()


def _family(pid: int) -> list[int]:
    """Give a process and all that descend from it, parents first. Source: proc(5)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
                parent = int(stat.rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def _look(pid: int) -> dict[str, Any]:
    """Read a process's state, processor time and signal masks. Source: proc(5)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return dict(_GONE)
    fields = stat.rpartition(")")[2].split()
    masks = dict.fromkeys(("SigPnd", "ShdPnd", "SigCgt", "SigIgn"), 0)
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name in masks:
            masks[name] = int(value, 16)
    return {
        "state": fields[0],
        "cpu_ticks": int(fields[11]) + int(fields[12]),
        "pending": masks["SigPnd"] | masks["ShdPnd"],
        "caught": masks["SigCgt"],
        "ignored": masks["SigIgn"],
    }


def _read_exactly(fd: int, count: int, *, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while count > 0:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
            raise TimeoutError(f"{count} nodes were not born within {limit_s} s")
        data = os.read(fd, count)
        if not data:
            raise RuntimeError(f"{count} nodes died while being born")
        count -= len(data)


def _read_all(fd: int, *, limit_s: float) -> str:
    """Read a pipe to its end, and close it. Raises: TimeoutError."""
    parts: list[bytes] = []
    try:
        while select.select([fd], [], [], limit_s)[0]:
            part = os.read(fd, _READ_BYTES)
            if not part:
                return b"".join(parts).decode(errors="replace")
            parts.append(part)
    finally:
        os.close(fd)
    raise TimeoutError(f"a process did not begin within {limit_s} s of its start")


def enter(control: socket.socket, options: dict[str, Any]) -> int:
    """Become a lab: new namespaces, then process 1 of the new pid namespace.

    Called in a fork of the server. Returns the exit status of the process outside, which
    waits for the lab. options: user_namespace, uid, gid, forbidden_netns.
    """
    flags = linux.CLONE_NEWNET | linux.CLONE_NEWPID | linux.CLONE_NEWNS
    if options["user_namespace"]:
        linux.unshare(linux.CLONE_NEWUSER | flags)
        linux.map_root_to_me(options["uid"], options["gid"])
    else:
        linux.unshare(flags)
    linux.mount("none", "/", "none", linux.MS_REC | linux.MS_PRIVATE)
    pid = spawn.fork_child(lambda: _first_process(control, options), [])
    control.close()
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _first_process(control: socket.socket, options: dict[str, Any]) -> int:
    os.setsid()
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    Lab(control, tuple(options["forbidden_netns"])).serve()
    return 0
