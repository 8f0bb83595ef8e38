"""The containers of a run, in the engine's terms: what each may do, see and use.

The agent's container owns the node's network: every capability dropped, NET_ADMIN added, its root
read-only. The training container joins that network with no capability at all, as an ordinary
user. Neither is privileged, sees the host's network or processes, or can gain anything by exec.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

import docker.types

from chaoslab.cluster.containers.engine import Engine, fresh_name, labels
from chaoslab.cluster.containers.images import USER, Images

SENT: Final = Path("/chaoslab")
"""Where nodes find what was sent into them: lib/chaoslab, and the job's files in job/."""

SHARED: Final = Path("/shared")
CHECKPOINTS: Final = SHARED / "checkpoints"
INTERFACE: Final = "eth0"

AGENT_MEMORY_BYTES: Final = 256 << 20
AGENT_PIDS: Final = 16
NO_NEW_PRIVILEGES: Final = "no-new-privileges:true"

_ENVIRONMENT: Final = {
    "PYTHONPATH": str(SENT / "lib"),
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "HOME": "/tmp",  # noqa: S108  a container's own
    "TORCHINDUCTOR_CACHE_DIR": "/tmp",  # noqa: S108  as above
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What one node's training container may use. memory_bytes: 0 for no limit.

    disk_bytes: of the volume of the checkpoints, which all nodes share; 0 for no limit.
    """

    memory_bytes: int = 0
    pids: int = 512
    disk_bytes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What all containers of a run share. network, sent, shared: names in the engine.

    nodes: without the store's, whose number this is.
    """

    run_id: str
    nodes: int
    network: str
    sent: str
    shared: str
    images: Images
    limits: Limits


def create_network(engine: Engine, run_id: str, subnet: str) -> str:
    """Make a run's internal bridge network, from which no packet gets out. Returns its id."""
    pool = docker.types.IPAMPool(subnet=subnet)
    made = engine.api.create_network(
        fresh_name(run_id, "net"),
        driver="bridge",
        internal=True,
        labels=labels(run_id),
        ipam=docker.types.IPAMConfig(pool_configs=[pool]),
    )
    return str(made["Id"])


def create_volume(engine: Engine, run_id: str, what: str, *, size_bytes: int = 0) -> str:
    """Make a volume of a run; size_bytes: one in memory, of this size. Returns its name.

    What is in memory is there as long as a container that runs has it mounted.
    """
    name = fresh_name(run_id, what)
    options = {"type": "tmpfs", "device": "tmpfs", "o": f"size={size_bytes},mode=1777"}
    engine.api.create_volume(
        name, labels=labels(run_id), driver_opts=options if size_bytes else None
    )
    return name


def create_loader(engine: Engine, plan: Plan) -> str:
    """Make a container that is never started: files are put into the volumes through it."""
    mounts = [_volume(plan.sent, SENT)]
    if not plan.limits.disk_bytes:
        mounts.append(_volume(plan.shared, SHARED))
    made = engine.api.create_container(
        plan.images.own.name,
        ["true"],
        name=fresh_name(plan.run_id, "loader"),
        labels=labels(plan.run_id),
        host_config=engine.api.create_host_config(network_mode="none", mounts=mounts),
    )
    return str(made["Id"])


def create_agent(engine: Engine, plan: Plan, *, node: int, address: str, forbidden: str) -> str:
    """Make a node's agent container. Returns its id."""
    api, image = engine.api, plan.images.own
    mounts = [*image.mount_options(), _volume(plan.sent, SENT, read_only=True)]
    if plan.limits.disk_bytes:  # kept while the training containers are killed
        mounts.append(_volume(plan.shared, CHECKPOINTS, read_only=True))
    made = api.create_container(
        image.name,
        [image.python, "-m", "chaoslab.agent", "--forbid-netns", forbidden],
        entrypoint=[""],
        name=fresh_name(plan.run_id, f"agent-{node}"),
        hostname=f"node{node}",
        user="0:0",
        stdin_open=True,
        environment=_ENVIRONMENT,
        labels=labels(plan.run_id),
        networking_config=api.create_networking_config(
            {plan.network: api.create_endpoint_config(ipv4_address=address)}
        ),
        host_config=api.create_host_config(
            network_mode=plan.network,
            mounts=mounts,
            cap_drop=["ALL"],
            cap_add=["NET_ADMIN"],
            read_only=True,
            pids_limit=AGENT_PIDS,
            mem_limit=AGENT_MEMORY_BYTES,
            **_common(),
        ),
    )
    return str(made["Id"])


def create_pod(engine: Engine, plan: Plan, *, node: int, agent: str, preload: str | None) -> str:
    """Make the container that joins an agent's network, for the ranks of a node.

    The last node's is the store's: chaoslab's image, and nothing of the job's. Returns its id.
    """
    api, limits = engine.api, plan.limits
    is_store = node == plan.nodes
    image = plan.images.own if is_store else plan.images.training
    mounts = [*image.mount_options(), _volume(plan.sent, SENT, read_only=True)]
    if not is_store:
        mounts.append(_volume(plan.shared, CHECKPOINTS if limits.disk_bytes else SHARED))
    command = [image.python, "-m", "chaoslab.cluster.pod", str(node)]
    memory = {"mem_limit": limits.memory_bytes} if limits.memory_bytes else {}
    made = api.create_container(
        image.name,
        command if preload is None else [*command, preload],
        entrypoint=[""],
        name=fresh_name(plan.run_id, "store" if is_store else f"node-{node}"),
        user=f"{USER}:{USER}",
        stdin_open=True,
        environment=_ENVIRONMENT,
        working_dir=str(SENT),
        labels=labels(plan.run_id),
        host_config=api.create_host_config(
            network_mode=f"container:{agent}",
            mounts=mounts,
            cap_drop=["ALL"],
            pids_limit=limits.pids,
            **memory,
            **_common(),
        ),
    )
    return str(made["Id"])


def _common() -> dict[str, Any]:
    """Give what all containers have: gone when they end, no log on the engine's disk."""
    return {
        "auto_remove": True,
        "security_opt": [NO_NEW_PRIVILEGES],
        "log_config": docker.types.LogConfig(type="none"),
    }


def _volume(name: str, target: Path, *, read_only: bool = False) -> docker.types.Mount:
    return docker.types.Mount(str(target), name, type="volume", read_only=read_only)
