"""Writing: one rank's part in a save, from its state to the committed checkpoint."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from chaoslab import probe
from chaoslab.resilience import digests, layout, retention, saving, snapshot
from chaoslab.resilience.errors import CheckpointWriteFailed, SaveAbandoned, SaveTimedOut
from chaoslab.resilience.writeback import EarlyWriteback


def save_part(
    save: saving.Save, state: dict[str, Any], *, rank: int, world_size: int, is_first: bool
) -> Path:
    """Write a rank's shard and take part in the commit; give the final path.

    is_first: check whether the shard can be loaded, too. Raises: CheckpointWriteFailed;
    SaveAbandoned; what torch.save raises for the state.
    """
    probe.emit("save_begun", step=save.step)
    delivered = is_late = False
    try:
        retention.refuse_foreign(save.final)
        with saving.workplace(save):
            saving.take_back(save.work, rank)
            shard = _write_shard(save, state, rank, is_first=is_first)
            is_late = time.monotonic() > save.deadline_s
            saving.put_note(save, shard)
            delivered = True
            if rank == 0:
                shards = saving.collect(save, world_size)
                manifest = layout.Manifest(step=save.step, attempt=save.attempt, shards=shards)
                retention.commit(save, manifest)
            else:
                saving.await_commit(save, shard, rank)
    except OSError as error:
        saving.give_up(save.work, rank, delivered=delivered)
        if rank != 0 and isinstance(error, FileNotFoundError):  # rank 0 has freed all shards
            raise SaveAbandoned(f"{save.work} is gone, or emptied: rank 0 has given up") from error
        raise CheckpointWriteFailed(saving.advice(save.final.parent, error)) from error
    except SaveTimedOut as error:
        saving.give_up(save.work, rank, delivered=delivered)
        if is_late or not delivered:  # by this rank's own disk: no peer is lost
            raise CheckpointWriteFailed(
                f"{error}: is the disk slow? A save may take as long as the manager's deadline_s"
            ) from error
        raise
    except BaseException:
        saving.give_up(save.work, rank, delivered=delivered)
        raise
    probe.emit("save_committed", step=save.step, path=str(save.final))
    return save.final


def _write_shard(
    save: saving.Save, state: dict[str, Any], rank: int, *, is_first: bool
) -> layout.Shard:
    path = save.work / layout.shard_name(rank)
    block_bytes = digests.block_bytes_for(snapshot.state_bytes(state))
    with path.open("wb") as raw:
        file = digests.DigestingFile(
            probe.watched(EarlyWriteback(raw)),
            block_bytes=block_bytes,
            check=lambda: save.check("its own shard to be written"),
        )
        try:
            torch.save(state, file)  # type: ignore[arg-type]
        except RuntimeError:
            if file.error is None:
                raise
            raise file.error from None  # what torch reports in words of its own
        raw.flush()
        os.fsync(raw.fileno())
    if is_first:
        _refuse_unloadable(path)
    return layout.Shard(
        name=path.name,
        size_bytes=file.size_bytes,
        block_bytes=block_bytes,
        digests=file.digests,
    )


def _refuse_unloadable(path: Path) -> None:
    """Refuse a state that weights_only will not load. Raises: ValueError."""
    if unsafe := sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path)):
        raise ValueError(
            f"the state holds {', '.join(unsafe)}, which loading with weights_only refuses: want "
            "tensors, numbers, text, lists, tuples, dicts; or name it to "
            "torch.serialization.add_safe_globals before saving and loading"
        )
