"""A defective twin of charlm: plain DDP. The first communication error ends it with status 1."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import charlm
import torch
import torch.distributed as dist

from chaoslab import probe
from chaoslab.resilience import health
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.store import parse_address
from chaoslab.resilience.torch_store import TorchStore


def train(task: charlm.CharacterTask, steps: int, timeout_s: float) -> None:
    """Train from step 0, with no thought of failure."""
    address = parse_address(os.environ["CHAOSLAB_STORE"])
    own = health.address_towards(address)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", health.interface_of(own or "") or "lo")
    store = TorchStore(StoreClient(*address, timeout_s=timeout_s))
    limit = timedelta(seconds=timeout_s)
    dist.init_process_group(
        "gloo", store=store, rank=task.rank, world_size=task.world_size, timeout=limit
    )
    probe.emit("group_ready", generation=1, world_size=task.world_size)
    task.attach()
    for step in range(1, steps + 1):
        loss = task.step(step)
        probe.emit("step", step=step, loss=loss)
    dist.barrier()


def main() -> int:
    """Train; give the exit status."""
    torch.set_num_threads(1)
    options = charlm.make_parser().parse_args()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    probe.emit("rank_started", pid=os.getpid(), world_size=world_size)
    status = 1
    try:
        task = charlm.CharacterTask(options, rank=rank, world_size=world_size)
        train(task, options.steps, options.timeout_s)
        task.tell_result()
        status = 0
    except RuntimeError as error:
        told = {"error_type": type(error).__name__, "message": str(error), "blamed_rank": None}
        probe.emit("failure_seen", **told)
        sys.stderr.write(f"rank {rank}: {error}\n")
    finally:
        probe.emit("rank_exited", status=status)
    return status


if __name__ == "__main__":
    sys.exit(main())
