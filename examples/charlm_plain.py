"""charlm as it is commonly written: plain DDP, a save by rank 0 now and then, no recovery.

The same model, data and seed as charlm.py, for comparison. Without --ddp-timeout-s the process
group has torch's default timeout, 30 minutes with gloo.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
from pathlib import Path

import charlm
import torch
import torch.distributed as dist

from chaoslab import probe


def main() -> int:
    """Train; a lost peer ends it with whatever error torch raises, when it raises one."""
    torch.set_num_threads(1)
    parser = charlm.make_parser()
    parser.add_argument("--ddp-timeout-s", type=float, default=None, help="of each collective")
    options = parser.parse_args()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    probe.emit("rank_started", pid=os.getpid(), world_size=world_size)
    limit = options.ddp_timeout_s
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=limit) if limit else None)
    task = charlm.CharacterTask(options, rank=rank, world_size=world_size)
    task.attach()
    probe.emit("group_ready", generation=1, world_size=world_size)
    for step in range(1, options.steps + 1):
        loss = task.step(step)
        probe.emit("step", step=step, loss=loss)
        if rank == 0 and step % options.save_every == 0:
            probe.emit("save_begun", step=step)
            torch.save(task.state_dict(), Path(os.environ["CHAOSLAB_CHECKPOINTS"]) / "last.pt")
            probe.emit("save_committed", step=step)
    task.detach()
    dist.destroy_process_group()
    task.tell_result()
    probe.emit("rank_exited", status=0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
