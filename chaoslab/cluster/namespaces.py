"""The `namespaces` backend: each node is a network namespace of this machine.

Works as root, and in an unprivileged user namespace where the system allows one. Nothing of
it lives in the host's own network namespace: bridge and cables are made inside the lab's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from chaoslab.cluster import interface, linux, subnet
from chaoslab.cluster.channel import Channel, open_channel
from chaoslab.cluster.plumbing import NODE_INTERFACE
from chaoslab.cluster.spawn import Start
from chaoslab.errors import ClusterError, HarnessError
from chaoslab.platforms import of_this_machine

_ANSWER_LIMIT_S: Final = 20.0
_PRELOAD_LIMIT_S: Final = 120.0
_SINGLE_THREAD: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}
"""Environment of the warm server: no thread pool may exist before a fork."""


class Server:
    """The harness's handle on the warm server process (see chaoslab.cluster.server)."""

    def __init__(self, preload: str | None) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003  the socket module has no keyword for it
        self._control = ours
        self._stderr = os.memfd_create("chaoslab-server", os.MFD_CLOEXEC)
        command = [sys.executable, "-m", "chaoslab.cluster.server", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command if preload is None else [*command, preload],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._stderr,
            stderr=self._stderr,
            # Importing torch's compiler makes its cache directory: give it one that is there.
            env=os.environ | _SINGLE_THREAD | {"TORCHINDUCTOR_CACHE_DIR": tempfile.gettempdir()},
            start_new_session=True,
        )
        theirs.close()
        self._ready: dict[str, Any] | None = None

    async def wait_ready(self) -> str | None:
        """Wait until its imports are done. Returns why warm ranks cannot be had, or None.

        Can be cancelled at once, as Ctrl-C does. Raises: ClusterError when it died or took
        longer than 120 s.
        """
        if self._ready is None:
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(_PRELOAD_LIMIT_S):
                    line = await loop.sock_recv(self._control, 1 << 16)
            except TimeoutError as problem:
                what = f"the warm server: imports took over {_PRELOAD_LIMIT_S} s"
                raise ClusterError(what) from problem
            if not line:
                raise ClusterError(f"the warm server died while starting:\n{self._said()}")
            self._ready = json.loads(line)
        return self._ready["preload_problem"]  # type: ignore[no-any-return]

    async def fork_lab(self, options: dict[str, Any]) -> socket.socket:
        """Fork a lab. Returns the harness's end of its control socket. Raises: ClusterError."""
        await self.wait_ready()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [json.dumps(options).encode()], [theirs.fileno()])
            except OSError as problem:
                ours.close()
                raise ClusterError(f"the warm server is gone: {self._said()}") from problem
        return ours

    def _said(self) -> str:
        size = os.fstat(self._stderr).st_size
        return os.pread(self._stderr, 4000, max(0, size - 4000)).decode(errors="replace").strip()

    def close(self) -> None:
        """End the server; twice is harmless. One that still imports is not waited for."""
        self._control.close()
        if self._ready is None:
            self._process.kill()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        stderr, self._stderr = self._stderr, -1
        if stderr >= 0:
            os.close(stderr)

    @property
    def alive(self) -> bool:
        """Tell whether its process still runs."""
        return self._process.poll() is None


class NamespacesCluster:
    """A run's nodes, up and wired; see chaoslab.cluster.interface.Cluster."""

    interface: Final = NODE_INTERFACE

    def __init__(
        self,
        *,
        nodes: int,
        addresses: Sequence[str],
        lab: Channel,
        owner: tuple[int, int] | None,
        volume: Path | None,
    ) -> None:
        self.nodes = nodes
        self._volume = volume
        self.addresses = tuple(addresses)
        self._owner = owner
        self.agents: list[Channel] = []
        self._lab = lab

    @property
    def store_node(self) -> int:
        """Give the number of the node that hosts the store."""
        return self.nodes

    def clock_offset_s(self, node: int) -> float:  # noqa: ARG002  one clock for all of them
        """Give 0: the nodes are on this machine."""
        return 0.0

    async def gone(self) -> None:
        """Wait until the lab has ended, which it does only when it is killed.

        Raises: ClusterError, then.
        """
        await self._lab.ended.wait()
        raise ClusterError("the lab was killed from outside, and every process of the run with it")

    async def start(
        self,
        key: str,
        node: int,
        argv: list[str],
        *,
        mode: str,
        env: dict[str, str],
        cwd: str,
        log: Path,
        events: Path | None,  # noqa: ARG002  it is written to directly
    ) -> tuple[int, float]:
        """Start a process in a node (see chaoslab.cluster.spawn.Start for the fields).

        It runs as the cluster's owner, without capabilities. Returns its pid in the lab
        and when it started (CLOCK_MONOTONIC). Raises: ClusterError.
        """
        uid, gid = self._owner or (None, None)
        start = Start(
            key=key,
            node=node,
            mode=mode,
            argv=argv,
            env=env,
            cwd=cwd,
            log=str(log),
            uid=uid,
            gid=gid,
        )
        answer = await self._ask("spawn", start=vars(start))
        return int(answer["pid"]), float(answer["t_s"])

    async def empty(self, node: int) -> None:
        """Kill every process of a node but its agent. Raises: ClusterError."""
        await self._ask("empty", node=node)

    async def signal(self, key: str, number: int, *, tree: bool = False) -> bool:
        """Signal a process by its key; tree: all that descend from it, too.

        Returns False when it was gone already. Raises: ClusterError.
        """
        return not (await self._ask("signal", key=key, signal=number, tree=tree))["gone"]

    async def look(self, key: str, *, tree: bool = False) -> dict[str, Any]:
        """Look at a process: its state, processor time and signals.

        tree: state and processor time of all that descend from it, too; stopped when all are.
        Returns state (T: stopped; None: gone), cpu_ticks, and the masks pending, caught and
        ignored. Source: proc(5).
        """
        return await self._ask("state", key=key, tree=tree)

    async def processes(self) -> list[dict[str, Any]]:
        """List the run's processes: pid, key (None for an orphan), state, command, node."""
        return (await self._ask("processes"))["processes"]  # type: ignore[no-any-return]

    async def fill(self, *, full: bool) -> dict[str, Any]:
        """Fill the volume of the checkpoints, or free it again, and try to write a byte."""
        if self._volume is None:
            raise ClusterError("these nodes have no volume for checkpoints")
        return await self._ask("fill", path=str(self._volume), full=full)

    async def touch(self, node: int, path: Path) -> None:  # noqa: ARG002  one file system
        """Make an empty file in a node."""
        await asyncio.to_thread(path.touch)

    async def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        answer = await self._lab.request(op, limit_s=_ANSWER_LIMIT_S, **fields)
        if not answer["ok"]:
            raise ClusterError(f"{op}: {answer['error']}")
        return answer

    async def ask_agent(
        self, node: int, op: str, *, limit_s: float, **fields: Any
    ) -> dict[str, Any]:
        """Ask a node's agent. Raises: AgentError when it refuses or does not answer."""
        return await interface.ask(self.agents[node], node, op, limit_s=limit_s, **fields)


@contextlib.asynccontextmanager
async def start_cluster(
    server: Server,
    *,
    run_id: str,
    nodes: int,
    owner: tuple[int, int] | None,
    volume: Path | None = None,
    volume_bytes: int | None = None,
    on_exit: Callable[[dict[str, Any]], None],
    on_agent_event: Callable[[int, dict[str, Any]], None],
) -> AsyncIterator[NamespacesCluster]:
    """Bring up `nodes` nodes and the store's; take everything down at the end.

    owner: uid and gid of the processes (None: the harness's own). volume: directory of the
    checkpoints (None: there is none to fill); volume_bytes: the size that it gets (None: it is left
    as it is). on_exit: called with each process that ended (key, pid, status, t_s). on_agent_event:
    called with node and event.
    Raises: ClusterError.
    """
    network = subnet.choose(run_id, subnet.host_networks())
    addresses = [str(network[index + 1]) for index in range(nodes + 1)]
    control = await server.fork_lab(_lab_options(volume, volume_bytes))
    ends = [socket.socketpair() for _ in addresses]
    try:
        request = {"id": 0, "op": "nodes", "count": len(ends)}
        theirs = [there.fileno() for _, there in ends]
        socket.send_fds(control, [json.dumps(request).encode() + b"\n"], theirs)
    except OSError as problem:
        control.close()
        raise ClusterError(_why_no_lab(server)) from problem
    finally:
        for _, there in ends:
            there.close()
    born: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    lab = await open_channel("the lab", control, on_exit)
    lab.expect(0, born)
    cluster = NamespacesCluster(
        nodes=nodes, addresses=addresses, lab=lab, owner=owner, volume=volume
    )
    try:
        for index, (ours, _) in enumerate(ends):
            name = f"agent of node {index}"
            handler = _for_node(index, on_agent_event)
            cluster.agents.append(await open_channel(name, ours, handler))
        await _wait_born(born, server)
        await interface.set_up(
            cluster,
            prefix_length=subnet.PREFIX_LENGTH,
            limit_s=_ANSWER_LIMIT_S,
            platform=of_this_machine(),
        )
        yield cluster
    finally:
        with contextlib.suppress(HarnessError):  # it was killed: nothing is left to close
            await lab.request("close", limit_s=_ANSWER_LIMIT_S)
        for channel in (*cluster.agents, lab):
            await channel.close()


def _for_node(
    index: int, on_agent_event: Callable[[int, dict[str, Any]], None]
) -> Callable[[dict[str, Any]], None]:
    return lambda event: on_agent_event(index, event)


def _lab_options(volume: Path | None, volume_bytes: int | None) -> dict[str, Any]:
    return {
        "volume": str(volume),
        "volume_bytes": volume_bytes,
        "user_namespace": os.geteuid() != 0,
        "uid": os.geteuid(),
        "gid": os.getegid(),
        "forbidden_netns": linux.netns_identity(),
    }


async def _wait_born(born: asyncio.Future[dict[str, Any]], server: Server) -> None:
    try:
        answer = await asyncio.wait_for(born, _ANSWER_LIMIT_S)
    except (TimeoutError, ConnectionError) as problem:
        raise ClusterError(_why_no_lab(server)) from problem
    if not answer["ok"]:
        raise ClusterError(f"the nodes could not be started: {answer['error']}")


def _why_no_lab(server: Server) -> str:
    said = server._said()  # noqa: SLF001  same module
    hint = ""
    if os.geteuid() != 0:
        hint = (
            "; as an ordinary user this needs unprivileged user namespaces: run as root, or "
            "`sysctl kernel.unprivileged_userns_clone=1` "
            "(Ubuntu: `sysctl kernel.apparmor_restrict_unprivileged_userns=0`), "
            "or run with --chaos-kernel=uml"
        )
    kernel, reason = platform.release(), said or "no reason given"
    return f"the lab could not be started on Linux {kernel}: {reason}{hint}"
