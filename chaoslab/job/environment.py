"""The environment a rank is started with: what torch, the job and the probe read."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Final

from chaoslab.scenario import Job

STORE_PORT: Final = 29400
"""Port of the rendezvous store on its own node (torchrun's default rendezvous port)."""

_HIDDEN_PREFIXES: Final = ("CHAOSLAB_", "PYTEST_", "COV_", "TORCHELASTIC_")
_HIDDEN: Final = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Places:
    """Where a run's ranks find things.

    nodes: directory that holds one directory per node. checkpoints: shared storage.
    temporary: the ranks' TMPDIR. interface: name of a node's interface. addresses: of the
    nodes, the store's last.
    """

    nodes: Path
    checkpoints: Path
    temporary: Path
    interface: str
    addresses: tuple[str, ...]

    def events(self, rank: int, node: int, incarnation: int) -> Path:
        """Give the event file of one incarnation of a rank."""
        return self.nodes / str(node) / f"rank-{rank}.{incarnation}.jsonl"

    def log(self, rank: int, node: int, incarnation: int) -> Path:
        """Give the file that takes its standard output and error."""
        return self.nodes / str(node) / f"rank-{rank}.{incarnation}.log"

    @property
    def store_log(self) -> Path:
        """Give the file that takes the store's standard output and error."""
        return self.nodes / "store.log"

    @property
    def store_address(self) -> str:
        """Give the store's address and port."""
        return f"{self.addresses[-1]}:{STORE_PORT}"


def inherited_environment() -> dict[str, str]:
    """Give the harness's own environment, less what would mislead a rank."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _HIDDEN and not name.startswith(_HIDDEN_PREFIXES)
    }


def rank_environment(
    job: Job, places: Places, *, rank: int, incarnation: int, holds: list[dict[str, Any]]
) -> dict[str, str]:
    """Give the environment of one incarnation of a rank.

    holds: hold points of the probe (see chaoslab.probe). They apply to a first incarnation.
    """
    node = job.node_of(rank)
    own = {
        "RANK": rank,
        "WORLD_SIZE": job.world_size,
        "LOCAL_RANK": rank % job.ranks_per_node,
        "LOCAL_WORLD_SIZE": job.ranks_per_node,
        "MASTER_ADDR": places.addresses[0],
        "MASTER_PORT": STORE_PORT + 1,
        "GLOO_SOCKET_IFNAME": places.interface,
        "OMP_NUM_THREADS": 1,
        "PYTHONHASHSEED": 0,
        "PYTHONUNBUFFERED": 1,
        "TMPDIR": places.temporary,
        "TORCHINDUCTOR_CACHE_DIR": places.temporary,
        "CHAOSLAB_NODE": node,
        "CHAOSLAB_INCARNATION": incarnation,
        "CHAOSLAB_EVENTS": places.events(rank, node, incarnation),
        "CHAOSLAB_STORE": places.store_address,
        "CHAOSLAB_CHECKPOINTS": places.checkpoints,
    }
    if holds and incarnation == 0:
        own["CHAOSLAB_HOLD"] = json.dumps(holds)
    text = {name: str(value) for name, value in own.items()}
    return inherited_environment() | text | dict(job.env)
