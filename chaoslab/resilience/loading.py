"""Loading: one rank's state from one checkpoint, every byte checked before it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from chaoslab.resilience import layout, saving
from chaoslab.resilience.errors import CheckpointCorrupt, CheckpointError
from chaoslab.resilience.state import PER_RANK


def read(path: Path, *, rank: int, world_size: int, any_world_size: bool) -> dict[str, Any]:
    """Load a rank's state (weights_only, on the CPU).

    any_world_size: when another number of ranks saved it, give what is the same on all of them.
    Raises: CheckpointCorrupt; CheckpointError when it is whole, and cannot be loaded all the same.
    """
    with saving.reading(path):
        manifest = layout.verify(
            path, world_size=None if any_world_size else world_size, digests_of=[]
        )
        shard = manifest.shards[layout.source_rank(manifest, rank)]
        with layout.open_shard(path, shard) as file:
            try:
                state = dict(torch.load(file, map_location="cpu", weights_only=True))  # type: ignore[arg-type]
            except Exception as error:
                if file.damage is not None:
                    raise CheckpointCorrupt(file.damage) from None
                raise CheckpointError(
                    f"{path}: {shard.name} is as it was saved, and cannot be loaded: {error}"
                ) from error
            file.verify_rest()
    if len(manifest.shards) == world_size:
        return state
    if PER_RANK not in state:
        raise CheckpointError(
            f"{path}: saved by {len(manifest.shards)} ranks, this job has {world_size}, and the "
            f"state does not say what is one rank's own: want it under {PER_RANK!r}, where "
            "training_state puts it"
        )
    del state[PER_RANK]
    return state
