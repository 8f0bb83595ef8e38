"""The backends: what a node is. Each brings a run's nodes up and takes them away again."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, Protocol

from chaoslab import errors, platforms
from chaoslab.cluster import namespaces
from chaoslab.cluster.containers import start as containers
from chaoslab.cluster.containers.engine import Engine
from chaoslab.cluster.containers.images import choose
from chaoslab.cluster.containers.recipes import Limits
from chaoslab.cluster.interface import Inside, Up
from chaoslab.cluster.namespaces import Server
from chaoslab.cluster.scratch import Scratch
from chaoslab.errors import NotAvailable
from chaoslab.scenario import Job

PRELOAD: Final = "chaoslab.resilience.preload:warm"
"""What a process imports before ranks are forked from it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listeners:
    """Who is told of what happens in the nodes.

    on_exit: a process ended (key, pid, status, t_s). on_agent_event: node and event. on_cut: node,
    file and limit in bytes: of a file that grew beyond that the rest is not passed on.
    """

    on_exit: Callable[[dict[str, Any]], None]
    on_agent_event: Callable[[int, dict[str, Any]], None]
    on_cut: Callable[[int, str, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to bring up. script, cwd: as the harness sees them. owner: uid and gid of the ranks."""

    job: Job
    script: Path
    cwd: Path
    owner: tuple[int, int] | None
    scratch: Scratch


class Backend(Protocol):
    """What a node is."""

    def up(
        self, wanted: Wanted, listeners: Listeners
    ) -> contextlib.AbstractAsyncContextManager[Up]:
        """Bring the nodes up; take everything down at the end.

        Raises: ClusterError; NotAvailable for what this machine or image lacks.
        """


class Namespaces:
    """Each node is a network namespace of this machine."""

    def __init__(self, server: Server) -> None:
        self._server = server

    @contextlib.asynccontextmanager
    async def up(self, wanted: Wanted, listeners: Listeners) -> AsyncIterator[Up]:
        """Bring the nodes up."""
        problem = await self._server.wait_ready()
        if problem is not None and wanted.job.warm:
            raise NotAvailable(f"warm ranks cannot be had: {problem}; or set Job(warm=False)")
        scratch = wanted.scratch
        inside = Inside(
            nodes=scratch.nodes,
            checkpoints=scratch.checkpoints,
            temporary=scratch.temporary,
            cwd=wanted.cwd,
            script=wanted.script,
            package=Path(errors.__file__).parent,
            python=sys.executable,
            environment=dict(os.environ),
        )
        async with namespaces.start_cluster(
            self._server,
            run_id=scratch.run_id,
            nodes=wanted.job.nodes,
            owner=wanted.owner,
            volume=scratch.checkpoints,
            volume_bytes=wanted.job.disk_bytes,
            on_exit=listeners.on_exit,
            on_agent_event=listeners.on_agent_event,
        ) as cluster:
            yield Up(cluster=cluster, inside=inside, platform=platforms.of_this_machine())


class Docker:
    """Each node is an agent's container, and a training container that shares its network."""

    def __init__(self, engine: Engine, *, image: str) -> None:
        self._engine, self._image = engine, image

    @contextlib.asynccontextmanager
    async def up(self, wanted: Wanted, listeners: Listeners) -> AsyncIterator[Up]:
        """Bring the nodes up."""
        images = await self._engine.call("look for images", choose, self._engine, self._image)
        async with containers.start_cluster(
            self._engine,
            containers.Wanted(
                run_id=wanted.scratch.run_id,
                nodes=wanted.job.nodes,
                images=images,
                limits=Limits(disk_bytes=wanted.job.disk_bytes or 0),
                cwd=wanted.cwd,
                script=wanted.script,
                preload=PRELOAD if wanted.job.warm else None,
                places=wanted.scratch.nodes,
            ),
            on_exit=listeners.on_exit,
            on_agent_event=listeners.on_agent_event,
            on_cut=listeners.on_cut,
        ) as up:
            yield up
