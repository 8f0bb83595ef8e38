"""What runs of one process share: the warm server, and the fault-free twins."""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
from pathlib import Path
from typing import Final

from chaoslab.cluster.guardian import Guardian
from chaoslab.cluster.namespaces import Server
from chaoslab.history import History
from chaoslab.kernel import Availability, host_has_netem
from chaoslab.scenario import Job

_PRELOAD: Final = "chaoslab.resilience.preload:warm"


class Session:
    """Started on first use; `close` ends the server. Twice is harmless."""

    def __init__(self) -> None:
        self._server: Server | None = None
        self._guardian: Guardian | None = None
        self.twins: dict[str, tuple[str, History]] = {}
        self.reports: list[object] = []

    def server(self) -> Server:
        """Give the warm server, started if need be. Its imports may still be going on."""
        if self._server is not None and not self._server.alive:
            self._server.close()
            self._server = None
        if self._server is None:
            self._server = Server(_PRELOAD)
            atexit.register(self.close)
        return self._server

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


def twin_key(job: Job, script: Path) -> str:
    """Name what a twin's result depends on: the job and its script, not the restart policy."""
    parts = {
        "script": hashlib.sha256(script.read_bytes()).hexdigest(),
        "path": str(script),
        "nodes": job.nodes,
        "ranks_per_node": job.ranks_per_node,
        "steps": job.steps,
        "args": job.args,
        "env": job.env,
        "seed": job.seed,
        "warm": job.warm,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
