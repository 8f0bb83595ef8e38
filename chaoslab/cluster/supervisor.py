"""A supervisor: process 1 of a pid namespace, parent of all that is started in it.

It starts, signals, looks at and reaps processes, as its link asks it to. Nothing of it can outlive
it: when the link ends, because the harness closed it or was killed, it kills every process and
exits; when it is killed itself, the kernel kills everything in its pid namespace.

Single-threaded on purpose: it forks. Messages are JSON lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from chaoslab.cluster import filling, keys, spawn

READ_BYTES: Final = 1 << 16
_START_LIMIT_S: Final = 15.0
_END_LIMIT_S: Final = 10.0
_REAP_POLL_S: Final = 0.05
GONE: Final = {"state": None, "cpu_ticks": 0, "pending": 0, "caught": 0, "ignored": 0}


class Link(Protocol):
    """The supervisor's end of its conversation with the harness."""

    @property
    def fds(self) -> tuple[int, ...]:
        """Give its descriptors, the readable one first; a child closes them."""

    def receive(self) -> bytes:
        """Read what is there; empty at the end."""

    def send(self, line: bytes) -> None:
        """Send a line; one that nobody takes any more is dropped."""


class Supervisor:
    """State of one supervisor. `serve` is its whole life."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._keys: dict[int, str] = {}
        self._dying: dict[str, list[int]] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._sources: dict[int, Callable[[], None]] = {}
        self._requests: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "spawn": self._spawn,
            "signal": self._signal,
            "state": self._state,
            "processes": self._processes,
            "empty": self._empty_node,
            "fill": self._fill,
            "close": self._close,
        }

    def serve(self) -> None:
        """Answer requests until the link ends, then leave nothing behind.

        Raises: RuntimeError in a process that is not the first of a pid namespace: what it kills at
        the end is every process that it can see.
        """
        if os.getpid() != 1:
            raise RuntimeError(f"pid {os.getpid()}: want process 1 of a pid namespace of its own")
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        try:
            self._loop()
        finally:
            self._kill_all()

    def _loop(self) -> None:
        pending, told = b"", self._link.fds[0]
        while True:
            waited = [told, self._wake_read, *self._sources]
            ready, _, _ = select.select(waited, [], [], self._tick())
            if self._wake_read in ready:
                self._drain_wakes()
                self._reap()
            for fd in ready:
                if fd in self._sources:
                    self._sources[fd]()
            if told not in ready:
                continue
            data = self._link.receive()
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                self._answer(json.loads(line))

    def _tick(self) -> float | None:
        """Do what is due; give after how many seconds something is again (None: never)."""
        return None

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, READ_BYTES)

    def _answer(self, request: dict[str, Any]) -> None:
        try:
            answer = {"ok": True} | self._requests[request["op"]](request)
        except Exception as problem:  # noqa: BLE001  the harness decides what it means
            answer = {"ok": False, "error": f"{type(problem).__name__}: {problem}"}
        self._send(answer | {"id": request["id"]})

    def _send(self, message: dict[str, Any]) -> None:
        self._link.send(json.dumps(message).encode() + b"\n")

    def _own_fds(self) -> list[int]:
        """List what no child may keep open."""
        return [*self._link.fds, self._wake_read, self._wake_write, *self._sources]

    # --- processes -----------------------------------------------------------------------

    def _child(self, start: spawn.Start) -> tuple[Callable[[int], int], Sequence[int]]:
        """Give what a fork does to become the process, told how to report, and what it keeps."""
        return lambda told: spawn.become(start, told=told), ()

    def _spawn(self, request: dict[str, Any]) -> dict[str, Any]:
        start = spawn.Start(**request["start"])
        body, kept = self._child(start)
        close = [fd for fd in self._own_fds() if fd not in kept]
        report, told = os.pipe2(os.O_CLOEXEC)
        pid = spawn.fork_child(lambda: body(told), [*close, report])
        os.close(told)
        self._keys[pid] = start.key
        started_s = time.monotonic()
        # Its end closes when the program begins; before that, it says what went wrong.
        problem = read_all(report, limit_s=_START_LIMIT_S)
        if problem:
            del self._keys[pid]
            raise RuntimeError(f"{start.key} could not begin: {problem}")
        return {"pid": pid, "t_s": started_s}

    def _empty_node(self, request: dict[str, Any]) -> dict[str, Any]:
        """Kill every process of a node but its agent, also those that left their session."""
        killed = 0
        for pid in self._all_on(request["node"]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        return {"killed": killed}

    def _fill(self, request: dict[str, Any]) -> dict[str, Any]:
        """Fill a file system, or free it again, and try to write a byte."""
        return filling.fill(Path(request["path"]), full=request["full"])

    def _all_on(self, node: int) -> list[int]:
        """List the processes of a node but its agent, also those that left their session."""
        return [
            process["pid"]
            for process in self._processes({})["processes"]
            if process["node"] == node and keys.agents_node(process["key"]) is None
        ]

    def _signal(self, request: dict[str, Any]) -> dict[str, Any]:
        key, number = request["key"], request["signal"]
        pids = self._pids_of(key, tree=bool(request.get("tree")))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if pids and number == signal.SIGKILL and keys.containers_node(key) is not None:
            self._dying[key] = pids
        return {"gone": not pids, "t_s": time.monotonic()}

    def _state(self, request: dict[str, Any]) -> dict[str, Any]:
        pids = self._pids_of(request["key"], tree=bool(request.get("tree")))
        if not pids:
            return dict(GONE)
        looks = [_look(pid) for pid in pids]
        states = {one["state"] for one in looks if one["state"] not in (None, "Z", "X")}
        # Stopped when all of them are; else the state of one that is not.
        running = states - {"T", "t"}
        return looks[0] | {
            "state": min(running) if running else looks[0]["state"],
            "cpu_ticks": sum(one["cpu_ticks"] for one in looks),
        }

    def _pids_of(self, key: str, *, tree: bool) -> list[int]:
        """List the processes of a key, the named one first; tree: all that descend from it, too."""
        if (node := keys.containers_node(key)) is not None:
            return self._all_on(node)
        pids = [pid for pid, name in self._keys.items() if name == key]
        return _family(pids[0]) if pids and tree else pids

    def _processes(self, _: dict[str, Any]) -> dict[str, Any]:
        """List what runs besides this process: what was started by name, and what is an orphan."""
        found = []
        for entry in (path.name for path in Path("/proc").iterdir()):
            if not entry.isdigit() or int(entry) == 1:
                continue
            with contextlib.suppress(OSError):
                pid = int(entry)
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                found.append(
                    {
                        "pid": pid,
                        "key": self._keys.get(pid),
                        "state": _look(pid)["state"],
                        "command": command.replace(b"\0", b" ").decode(errors="replace")[:200],
                        "node": self._node_of(pid),
                    }
                )
        return {"processes": found}

    def _node_of(self, pid: int) -> int | None:
        """Give the number of the node that a process is in. Raises: OSError."""
        raise NotImplementedError

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            key = self._keys.pop(pid, None)
            self._ended(key, pid, os.waitstatus_to_exitcode(status))
            self._tell_containers()

    def _tell_containers(self) -> None:
        """Tell of the end of what was killed as one: when the last of its processes is gone."""
        for key, pids in list(self._dying.items()):
            left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
            self._dying[key] = left
            if not left:
                del self._dying[key]
                self._ended(key, 0, -signal.SIGKILL)

    def _ended(self, key: str | None, pid: int, status: int) -> None:
        event = {"event": "exited", "key": key, "pid": pid, "status": status}
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
        return dict(GONE)
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


def read_all(fd: int, *, limit_s: float) -> str:
    """Read a pipe to its end, and close it. Raises: TimeoutError."""
    parts: list[bytes] = []
    try:
        while select.select([fd], [], [], limit_s)[0]:
            part = os.read(fd, READ_BYTES)
            if not part:
                return b"".join(parts).decode(errors="replace")
            parts.append(part)
    finally:
        os.close(fd)
    raise TimeoutError(f"a process did not begin within {limit_s} s of its start")
