"""The environment a rank is started with: what torch, the job and the probe read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from chaoslab.cluster.interface import Cluster, Inside
from chaoslab.scenario import Job

STORE_PORT: Final = 29400
"""Port of the rendezvous store on its own node (torchrun's default rendezvous port)."""

_HIDDEN_PREFIXES: Final = ("CHAOSLAB_", "PYTEST_", "COV_", "TORCHELASTIC_")
_HIDDEN: Final = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Places:
    """Where the harness has what the nodes' processes print and write.

    nodes: directory that holds one directory per node.
    """

    nodes: Path

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


def inheritable(environment: Mapping[str, str]) -> dict[str, str]:
    """Give what of an environment a rank inherits: not what would mislead it."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _HIDDEN and not name.startswith(_HIDDEN_PREFIXES)
    }


def store_address(cluster: Cluster) -> str:
    """Give the address and port of the rendezvous store."""
    return f"{cluster.addresses[-1]}:{STORE_PORT}"


def rank_environment(
    job: Job,
    cluster: Cluster,
    inside: Inside,
    *,
    rank: int,
    incarnation: int,
    holds: list[dict[str, Any]],
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
        "MASTER_ADDR": cluster.addresses[0],
        "MASTER_PORT": STORE_PORT + 1,
        "GLOO_SOCKET_IFNAME": cluster.interface,
        "OMP_NUM_THREADS": 1,
        "PYTHONHASHSEED": 0,
        "PYTHONUNBUFFERED": 1,
        "TMPDIR": inside.temporary,
        "TORCHINDUCTOR_CACHE_DIR": inside.temporary,
        "CHAOSLAB_NODE": node,
        "CHAOSLAB_INCARNATION": incarnation,
        "CHAOSLAB_EVENTS": Places(nodes=inside.nodes).events(rank, node, incarnation),
        "CHAOSLAB_STORE": store_address(cluster),
        "CHAOSLAB_CHECKPOINTS": inside.checkpoints,
    }
    if holds and incarnation == 0:
        own["CHAOSLAB_HOLD"] = json.dumps(holds)
    text = {name: str(value) for name, value in own.items()}
    return inheritable(inside.environment) | text | dict(job.env)
