"""A few nodes on a bridge for the agent's tests: namespaces, sockets born in them, agents.

Everything lives in namespaces of its own, held by keeper processes that end with the test.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from chaoslab.agent import main

if TYPE_CHECKING:
    from collections.abc import Callable

CLONE_NEWNET = 0x40000000
ANSWER_LIMIT_S = 30.0
_LIBC = ctypes.CDLL(None, use_errno=True)


def own_netns() -> tuple[int, int]:
    found = Path("/proc/self/ns/net").stat()
    return found.st_dev, found.st_ino


def enter(netns_fd: int) -> None:
    if _LIBC.setns(netns_fd, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class Node:
    """A network namespace with eth0 on the lab's bridge."""

    def __init__(self, lab: Lab, index: int) -> None:
        self.lab, self.name, self.address = lab, f"n{index}", f"10.77.0.{index + 1}"
        self.hardware = ""
        self.pid = lab.keeper()
        self.netns_fd = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        lab.stack.callback(os.close, self.netns_fd)

    def ip(self, *words: str, tool: str = "ip") -> str:
        """Run ip (or tc, ss) in this namespace."""
        argv = ["nsenter", f"--net=/proc/{self.pid}/ns/net", tool, *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout

    def socket(
        self, kind: int, bind: tuple[str, int] | None = None, family: int = socket.AF_INET
    ) -> socket.socket:
        """Return a socket that lives in this namespace, made there by a child and handed over."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                enter(self.netns_fd)
                made = socket.socket(family, kind)
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [made.fileno()]))
                theirs.sendmsg([b"x"], [rights])
                os._exit(0)
            except BaseException:  # noqa: BLE001  # a forked child must never return
                os._exit(1)
        theirs.close()
        _, control, _, _ = ours.recvmsg(1, 64)
        ours.close()
        os.waitpid(pid, 0)
        (fd,) = array.array("i", control[0][2])
        made = socket.socket(fileno=fd)
        self.lab.scratch.callback(made.close)
        if bind is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(bind)
        if kind == socket.SOCK_DGRAM:
            for option in (33, 32):  # SO_RCVBUFFORCE, SO_SNDBUFFORCE: bursts must not be lost here
                made.setsockopt(socket.SOL_SOCKET, option, 1 << 26)
        return made

    def udp(self, port: int = 0) -> socket.socket:
        return self.socket(socket.SOCK_DGRAM, (self.address, port))

    def agent(self, *, set_up: bool = True, drop_capabilities: bool = False) -> AgentClient:
        """Fork an agent into this namespace."""
        client = AgentClient.forked(self.netns_fd, drop_capabilities=drop_capabilities)
        self.lab.scratch.callback(client.close)
        assert client.event("ready")
        if set_up:
            client.ask("setup", interface="eth0", address=self.address, prefix_length=24)
        return client


class Lab:
    """Nodes n0..n(count-1) at 10.77.0.1.. on one bridge."""

    def __init__(self, count: int = 2) -> None:
        if os.geteuid() != 0:
            pytest.skip("NotAvailable: these tests make network namespaces: want root")
        self.stack = ExitStack()
        self._hub = self.keeper()
        self._in_hub("ip", "link", "add", "br0", "type", "bridge")
        self._in_hub("ip", "link", "set", "br0", "up")
        self.nodes = [self._add(index) for index in range(count)]
        self.scratch = ExitStack()
        self.stack.callback(self.scratch.close)
        for node in self.nodes:
            self.know_neighbours(node)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def keeper(self) -> int:
        """Start a process that holds a fresh network namespace until the lab closes."""
        argv = ["unshare", "--net", "sh", "-c", "echo up; exec cat"]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"up\n"

        def end() -> None:
            process.stdin.close()
            process.wait(10)
            process.stdout.close()

        self.stack.callback(end)
        return process.pid

    def _add(self, index: int) -> Node:
        node = Node(self, index)
        port = f"p{index}"
        self._in_hub(
            "ip",
            "link",
            "add",
            port,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            str(node.pid),
        )
        self._in_hub("ip", "link", "set", port, "master", "br0", "up")
        node.ip("link", "set", "lo", "up")
        node.ip("link", "set", "eth0", "up")
        node.ip("address", "add", f"{node.address}/24", "dev", "eth0")
        node.hardware = json.loads(node.ip("-j", "link", "show", "eth0"))[0]["address"]
        return node

    def know_neighbours(self, node: Node) -> None:
        """Write down every neighbour's hardware address: no fault shall meet ARP first."""
        for other in self.nodes:
            if other is not node:
                words = (
                    f"neigh replace {other.address} lladdr {other.hardware} dev eth0 nud permanent"
                )
                node.ip(*words.split())

    def _in_hub(self, *argv: str) -> None:
        subprocess.run(
            ["nsenter", f"--net=/proc/{self._hub}/ns/net", *argv], check=True, timeout=30
        )


class AgentClient:
    """The harness's end of an agent's two pipes."""

    def __init__(self, pid: int, to_agent: int, from_agent: int, reap: Callable[[], int]) -> None:
        self.pid, self.to_agent, self.from_agent, self._reap = pid, to_agent, from_agent, reap
        self.events: list[dict[str, Any]] = []
        self.answers: dict[Any, dict[str, Any]] = {}
        self.status: int | None = None
        self._buffer = b""
        self._number = 0

    @classmethod
    def forked(
        cls,
        netns_fd: int | None,
        *,
        drop_capabilities: bool = False,
        forbidden: tuple[int, int] | None = None,
    ) -> Self:
        stdin_read, stdin_write = os.pipe()
        stdout_read, stdout_write = os.pipe()
        forbidden = forbidden or own_netns()
        pid = os.fork()
        if pid == 0:
            status = 99
            try:
                os.close(stdin_write)
                os.close(stdout_read)
                if netns_fd is not None:
                    enter(netns_fd)
                if drop_capabilities:
                    keep_only_net_admin()
                status = main(stdin_read, stdout_write, forbidden)
            except BaseException as error:  # noqa: BLE001  # a forked child must never return
                sys.stderr.write(f"agent: {error!r}\n")
            finally:
                os._exit(status)
        os.close(stdin_read)
        os.close(stdout_write)
        return cls(
            pid, stdin_write, stdout_read, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        )

    def send(self, op: str, **fields: Any) -> int:
        self._number += 1
        self.send_raw(json.dumps({"id": self._number, "op": op, **fields}).encode() + b"\n")
        return self._number

    def send_raw(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.to_agent, data) :]

    def answer(self, number: Any, limit_s: float = ANSWER_LIMIT_S) -> dict[str, Any]:
        self._until(lambda: number in self.answers, f"an answer to request {number}", limit_s)
        return self.answers.pop(number)

    def ask_raw(self, op: str, **fields: Any) -> dict[str, Any]:
        return self.answer(self.send(op, **fields))

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        found = self.ask_raw(op, **fields)
        assert found["ok"], found
        return found

    def event(self, kind: str, limit_s: float = ANSWER_LIMIT_S) -> dict[str, Any]:
        self._until(lambda: any(e["event"] == kind for e in self.events), f"event {kind}", limit_s)
        found = next(e for e in self.events if e["event"] == kind)
        self.events.remove(found)
        return found

    def inject(
        self, fault: dict[str, Any], fault_id: str = "f", lease_s: float = 60
    ) -> dict[str, Any]:
        return self.ask("inject", fault_id=fault_id, lease_s=lease_s, fault=fault)

    def effective(
        self, fault_id: str = "f", timeout_s: float = 10, probe_to: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        return self.ask(
            "wait_effective", fault_id=fault_id, timeout_s=timeout_s, probe_to=list(probe_to)
        )

    def heal(self, fault_id: str = "f") -> dict[str, Any]:
        return self.ask("heal", fault_id=fault_id)

    def healed(
        self,
        fault_id: str = "f",
        timeout_s: float = 10,
        probe_to: tuple[str, ...] = (),
        **more: Any,
    ) -> dict[str, Any]:
        return self.ask(
            "wait_healed", fault_id=fault_id, timeout_s=timeout_s, probe_to=list(probe_to), **more
        )

    def close_input(self) -> None:
        if self.to_agent >= 0:
            os.close(self.to_agent)
            self.to_agent = -1

    def end(self) -> int:
        """Wait for the process and return its exit status."""
        if self.status is None:
            self.status = self._reap()
        return self.status

    def close(self) -> None:
        self.close_input()
        if self.status is None:
            self.end()
        if self.from_agent >= 0:
            os.close(self.from_agent)
            self.from_agent = -1

    def terminate(self, number: int = signal.SIGTERM) -> None:
        os.kill(self.pid, number)

    def _until(self, met: Callable[[], bool], what: str, limit_s: float) -> None:
        deadline_s = time.monotonic() + limit_s
        while not met():
            left_s = deadline_s - time.monotonic()
            ready = select.select([self.from_agent], [], [], max(left_s, 0))[0]
            data = os.read(self.from_agent, 1 << 16) if ready else b""
            if not data:
                ended = "the agent closed its output" if ready else f"nothing for {limit_s} s"
                raise AssertionError(f"{ended}; wanted {what}; events: {self.events}")
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                value = json.loads(line)
                if "event" in value:
                    self.events.append(value)
                else:
                    self.answers[value["id"]] = value


def keep_only_net_admin() -> None:
    """Drop every capability but CAP_NET_ADMIN from this process, for good."""
    cap_net_admin, pr_capbset_drop, pr_set_no_new_privs, version3 = 12, 24, 38, 0x20080522
    for capability in range(64):
        if capability != cap_net_admin:
            _LIBC.prctl(pr_capbset_drop, capability, 0, 0, 0)
    _LIBC.prctl(pr_set_no_new_privs, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(version3, 0)
    bit = 1 << cap_net_admin
    data = (ctypes.c_uint32 * 6)(bit, bit, 0, 0, 0, 0)
    if _LIBC.capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")
