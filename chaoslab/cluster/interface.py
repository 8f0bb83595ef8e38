"""What every backend offers: nodes that are up, and processes in them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from chaoslab.cluster.channel import Channel
from chaoslab.errors import AgentError, HarnessError, NotAvailable
from chaoslab.platforms import Platform, mending


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inside:
    """Where things are inside the nodes, as their processes see it.

    nodes: directory that holds one directory per node, for the event files. checkpoints: shared by
    all nodes. temporary: for TMPDIR. cwd: where ranks run. script: the job's file. package: the
    directory of the package chaoslab. python: the interpreter. environment: what processes
    inherit.
    """

    nodes: Path
    checkpoints: Path
    temporary: Path
    cwd: Path
    script: Path
    package: Path
    python: str
    environment: Mapping[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Up:
    """Nodes that are up, where things are inside them, and what they run on."""

    cluster: Cluster
    inside: Inside
    platform: Platform


class Cluster(Protocol):
    """A run's nodes, up and wired. Node numbers 0..nodes-1; the store's node comes last.

    Every call raises ClusterError when the backend fails.
    """

    @property
    def nodes(self) -> int:
        """Give the number of nodes, without the store's."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Give the IPv4 address of each node, the store's last."""

    @property
    def agents(self) -> Sequence[Channel]:
        """Give the channels to the agents, by node."""

    @property
    def interface(self) -> str:
        """Name each node's only interface."""

    @property
    def store_node(self) -> int:
        """Give the number of the node that hosts the store."""

    def clock_offset_s(self, node: int) -> float:
        """Give what to add to a time of this node to have it on the harness's CLOCK_MONOTONIC."""

    async def gone(self) -> None:
        """Wait until the cluster is lost, which only a fault of its own is. Raises ClusterError."""

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
        events: Path | None,
    ) -> tuple[int, float]:
        """Start a process in a node (see chaoslab.cluster.spawn.Start for the fields).

        log, events: files of the harness's that take what it prints and the events it writes. It
        has no capability. Returns its pid there and when it started (CLOCK_MONOTONIC).
        """

    async def empty(self, node: int) -> None:
        """Kill every process of a node but its agent."""

    async def signal(self, key: str, number: int, *, tree: bool = False) -> bool:
        """Signal a process by its key; tree: all that descend from it, too.

        Returns False when it was gone already.
        """

    async def look(self, key: str, *, tree: bool = False) -> dict[str, Any]:
        """Look at a process: its state, processor time and signals.

        tree: state and processor time of all that descend from it, too; stopped when all are.
        Returns state (T: stopped; None: gone), cpu_ticks, and the masks pending, caught and
        ignored. Source: proc(5).
        """

    async def processes(self) -> list[dict[str, Any]]:
        """List the run's processes: pid, key (None for an orphan), state, command, node."""

    async def touch(self, node: int, path: Path) -> None:
        """Make an empty file in a node."""

    async def fill(self, *, full: bool) -> dict[str, Any]:
        """Fill the volume of the checkpoints, or free it again, and try to write a byte.

        Returns refused (why that byte was refused, such as ENOSPC; None: it was taken), free_bytes
        and t_s.
        """

    async def ask_agent(
        self, node: int, op: str, *, limit_s: float, **fields: Any
    ) -> dict[str, Any]:
        """Ask a node's agent. Raises: AgentError when it refuses or does not answer."""


async def ask(
    agent: Channel, node: int, op: str, *, limit_s: float, **fields: Any
) -> dict[str, Any]:
    """Ask an agent. Raises: AgentError when it refuses or does not answer."""
    try:
        answer = await agent.request(op, limit_s=limit_s, **fields)
    except HarnessError as problem:
        raise AgentError(str(problem)) from problem
    if not answer["ok"]:
        raise AgentError(f"agent of node {node}: {op}: {answer['error']['message']}")
    return answer


async def set_up(
    cluster: Cluster, *, prefix_length: int, limit_s: float, platform: Platform
) -> None:
    """Have every agent make its node ready, all at once.

    Raises: AgentError; NotAvailable for modules that the platform's kernel lacks.
    """
    requests = [
        cluster.agents[index].request(
            "setup",
            limit_s=limit_s,
            interface=cluster.interface,
            address=address,
            prefix_length=prefix_length,
        )
        for index, address in enumerate(cluster.addresses)
    ]
    for answer in await asyncio.gather(*requests):
        problem = None if answer["ok"] else answer["error"]
        if problem is not None and problem["kind"] == "not_available":
            hint = mending("silent_drop", platform)
            raise NotAvailable(f"every node needs classes: {problem['message']}; {hint}")
        if problem is not None:
            raise AgentError(f"setting a node up: {problem['message']}")
