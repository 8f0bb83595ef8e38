"""What runs of one process share: the warm server, and the fault-free twins."""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
from pathlib import Path

from chaoslab.backends import PRELOAD, Backend, Docker, Namespaces
from chaoslab.cluster.containers.engine import About, Engine
from chaoslab.cluster.guardian import Guardian
from chaoslab.cluster.namespaces import Server
from chaoslab.history import History
from chaoslab.kernel import Availability, host_has_netem
from chaoslab.options import Options
from chaoslab.scenario import Job


class Session:
    """Started on first use; `close` ends the server. Twice is harmless."""

    def __init__(self) -> None:
        self._server: Server | None = None
        self._guardian: Guardian | None = None
        self._engine: Engine | None = None
        self.twins: dict[str, tuple[str, History]] = {}
        self.reports: list[object] = []

    def server(self) -> Server:
        """Give the warm server, started if need be. Its imports may still be going on."""
        if self._server is not None and not self._server.alive:
            self._server.close()
            self._server = None
        if self._server is None:
            self._server = Server(PRELOAD)
            atexit.register(self.close)
        return self._server

    def backend(self, options: Options) -> Backend:
        """Give the backend that the options name. Raises: NotAvailable."""
        if options.backend == "docker":
            return Docker(self.engine(), image=options.image)
        return Namespaces(self.server())

    def engine(self) -> Engine:
        """Give the connection to the Docker engine, made if need be. Raises: NotAvailable."""
        if self._engine is None:
            self._engine = Engine()
            atexit.register(self.close)
        return self._engine

    def engine_of(self, options: Options) -> About | None:
        """Tell what engine the nodes are on (None: on none). Raises: NotAvailable."""
        return self.engine().about if options.backend == "docker" else None

    @functools.cached_property
    def netem(self) -> Availability:
        """Tell whether this kernel has netem; asked once."""
        return host_has_netem()

    def guard(self, path: Path) -> None:
        """Have this path removed when this process ends, however it ends."""
        if self._guardian is None:
            self._guardian = Guardian()
            atexit.register(self.close)
        self._guardian.guard(path)

    def close(self) -> None:
        """End the warm server and the guardian."""
        guardian, self._guardian = self._guardian, None
        if guardian is not None:
            guardian.close()
        server, self._server = self._server, None
        if server is not None:
            server.close()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()


def twin_key(job: Job, script: Path, options: Options) -> str:
    """Name what a twin's result depends on: the job, its script and where it runs.

    Not the restart policy.
    """
    parts = {
        "backend": options.backend,
        "image": options.image,
        "script": hashlib.sha256(script.read_bytes()).hexdigest(),
        "path": str(script),
        "nodes": job.nodes,
        "ranks_per_node": job.ranks_per_node,
        "steps": job.steps,
        "args": job.args,
        "env": job.env,
        "seed": job.seed,
        "warm": job.warm,
        "disk_bytes": job.disk_bytes,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
