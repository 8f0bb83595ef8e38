"""The lab: the supervisor of a run on this machine, in network namespaces of its own.

Nothing of a run can outlive it: when it ends, the kernel takes back the namespaces with their links
and qdiscs. Descriptors for the agents travel with the `nodes` request.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from chaoslab.cluster import keys, linux, plumbing, spawn
from chaoslab.cluster.supervisor import READ_BYTES, Supervisor, read_all

_MAX_FDS: Final = 253
"""Descriptors in one message. Source: SCM_MAX_FD of include/net/scm.h."""

_WIRE_LIMIT_S: Final = 15.0


class SocketLink:
    """JSON lines over a Unix socket, on which descriptors travel, too."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self.fds = (control.fileno(),)
        self.received_fds: list[int] = []

    def receive(self) -> bytes:
        """Read what is there; empty at the end."""
        data, fds, _, _ = socket.recv_fds(self._control, READ_BYTES, _MAX_FDS)
        self.received_fds += fds
        return data

    def send(self, line: bytes) -> None:
        """Send a line; one that nobody takes any more is dropped."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._control.sendall(line)


class Lab(Supervisor):
    """State of one run's lab."""

    def __init__(self, control: socket.socket, forbidden_netns: tuple[int, int]) -> None:
        self._control = SocketLink(control)
        super().__init__(self._control)
        self._forbidden_netns = forbidden_netns
        self._netns_fds: list[int] = []
        self._agent_pids: list[int] = []
        self._requests["nodes"] = self._start_nodes

    def _start_nodes(self, request: dict[str, Any]) -> dict[str, Any]:
        count, received = request["count"], self._control.received_fds
        channels, self._control.received_fds = received[:count], received[count:]
        if len(channels) != count:
            raise ValueError(f"nodes: want {count} descriptors, got {len(channels)}")
        born_read, born_write = os.pipe2(os.O_CLOEXEC)
        for index, channel in enumerate(channels):
            others = [fd for fd in channels if fd != channel]
            close = [born_read, *others, *self._own_fds()]
            pid = spawn.fork_child(lambda c=channel: self._agent(c, born_write), close)  # type: ignore[misc]
            self._keys[pid] = keys.of_agent(index)
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
        pid = spawn.fork_child(body, [*self._control.fds, done])
        os.close(wired)  # the child's end closes when it ends
        try:
            read_all(done, limit_s=_WIRE_LIMIT_S)
        except TimeoutError as problem:
            os.kill(pid, signal.SIGKILL)
            raise TimeoutError(f"the nodes were not wired within {_WIRE_LIMIT_S} s") from problem
        finally:
            _, status = os.waitpid(pid, 0)
        if status != 0:
            raise RuntimeError(f"wiring the nodes failed with status {status}")

    def _own_fds(self) -> list[int]:
        return [*super()._own_fds(), *self._netns_fds]

    def _child(self, start: spawn.Start) -> tuple[Callable[[int], int], Sequence[int]]:
        netns_fd = self._netns_fds[start.node]
        return lambda told: spawn.become(start, netns_fd=netns_fd, told=told), [netns_fd]

    def _node_of(self, pid: int) -> int | None:
        netns = linux.netns_identity(pid)
        for index, fd in enumerate(self._netns_fds):
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) == netns:
                return index
        return None


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


def enter(control: socket.socket, options: dict[str, Any]) -> int:
    """Become a lab: new namespaces, then process 1 of the new pid namespace.

    Called in a fork of the server. Returns the exit status of the process outside, which
    waits for the lab. options: user_namespace, uid, gid, forbidden_netns,
    volume, volume_bytes.
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
    if options["volume_bytes"] is not None:
        size = f"size={options['volume_bytes']},mode=1777"
        flags = linux.MS_NOSUID | linux.MS_NODEV
        linux.mount("chaoslab", options["volume"], "tmpfs", flags, size)
    Lab(control, tuple(options["forbidden_netns"])).serve()
    return 0
