"""Retention: putting a checkpoint in place, and removing what is no longer wanted.

Nothing is removed before its successor is in place, nothing that a living process has locked,
and no directory with anything in it that no save has put there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from chaoslab.resilience import layout, removal, saving
from chaoslab.resilience.errors import CheckpointCorrupt, CheckpointError, CheckpointWriteFailed


def commit(save: saving.Save, manifest: layout.Manifest) -> None:
    """Make the checkpoint whole and durable, then visible under its final name.

    Raises: OSError; CheckpointWriteFailed when something foreign has the final name.
    """
    directory = save.final.parent
    with (save.work / layout.MANIFEST).open("w", encoding="utf-8") as file:
        file.write(manifest.to_json())
        file.flush()
        os.fsync(file.fileno())
    saving.fsync_directory(save.work)
    aside = None
    refuse_foreign(save.final)
    if save.final.exists():  # saved before, in a future that this run went back from
        aside = directory / f".replaced-{save.final.name}-{manifest.attempt}-{os.urandom(4).hex()}"
        with saving.reading(save.final):  # so that no sweep puts it back in between
            save.final.rename(aside)
            try:
                save.work.rename(save.final)
            except OSError:
                aside.rename(save.final)
                raise
    else:
        save.work.rename(save.final)
    saving.fsync_directory(directory)
    if aside is not None:
        remove(aside)


def refuse_foreign(final: Path) -> None:
    """Refuse to replace what no save has put there. Raises: CheckpointWriteFailed; OSError."""
    if not final.exists() and not final.is_symlink():
        return
    if final.is_symlink() or not final.is_dir():
        raise CheckpointWriteFailed(
            f"{final} is no directory: want that name free for the checkpoint; move it away"
        )
    if foreign := layout.foreign_entries(final):
        raise CheckpointWriteFailed(
            f"{final} holds {foreign[0]!r}, which no save has put there: want it moved away before "
            "this step is saved"
        )


def tidy(
    directory: Path,
    *,
    committed: int,
    keep: int,
    damaged: Collection[Path],
    delete: removal.Delete = removal.delete,
) -> None:
    """Remove what is no longer wanted; a failure here costs space, never the save.

    delete: for the checkpoints; it may do so later. damaged: checkpoints known not to verify, which
    do not count. At most `keep` up to the step committed stay, and one later step. One that holds
    something foreign is not counted, and stays.
    """
    with contextlib.suppress(OSError, CheckpointError):
        sweep(directory, up_to=committed)
        found = [
            (step, path)
            for step, path in layout.candidates(directory)
            if path.name[0] != "." and not layout.foreign_entries(path)
        ]
        whole = [step for step, path in found if path not in damaged and is_whole(path)]
        future = _verified_future(found, committed)
        kept = layout.retained(whole, committed=committed, keep=keep, future=future)
        for step, path in found:
            if step not in kept:
                remove(path, delete=delete)


def _verified_future(found: list[tuple[int, Path]], committed: int) -> int | None:
    """Give the newest later step that verifies, reading it only when there is a choice.

    One alone stays in any case.
    """
    later = [(step, path) for step, path in found if step > committed]
    if len(later) > 1:
        for step, path in later:
            with contextlib.suppress(CheckpointCorrupt):
                layout.verify(path, world_size=None)
                return step
    return later[0][0] if later else None


def is_whole(path: Path) -> bool:
    """Tell whether a checkpoint has its manifest and every shard, of its size."""
    try:
        layout.verify(path, world_size=None, digests_of=[])
    except CheckpointCorrupt:
        return False
    return True


def sweep(directory: Path, *, up_to: int | None = None) -> list[Path]:
    """Remove the temporary directories that no living process is saving into; give them.

    up_to: only those of steps up to this one: a peer may have begun the next save already, and
    where nodes share a file system without locks nothing else protects it.
    """
    swept = []
    try:
        entries = list(directory.iterdir())
    except OSError:
        return []
    for path in entries:
        step = layout.work_step(path.name)
        if step is None or (up_to is not None and step > up_to):
            continue
        if path.name.startswith(".replaced-") and _is_needed(path, step):
            continue
        if remove(path):
            swept.append(path)
    return swept


def _is_needed(aside: Path, step: int) -> bool:
    """Tell whether what was moved aside is the only whole one of its step; put it back if alone."""
    if not is_whole(aside):
        return False
    final = aside.with_name(layout.step_name(step))
    if final.exists() or final.is_symlink():
        return not is_whole(final)
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        fd = saving.lock(aside, alone=True)
        if fd is not None:  # else a commit is between its two renames
            stack.callback(saving.unlock, fd)
            aside.rename(final)
    return True


def remove(path: Path, *, delete: removal.Delete = removal.delete) -> bool:
    """Remove a directory of ours unless a process holds its lock; tell whether it is gone.

    It is renamed first, so that nobody sees half a checkpoint.
    """
    try:
        fd = saving.lock(path, alone=True)
    except OSError:
        return False
    if fd is None:
        return False
    try:
        if layout.foreign_entries(path):
            saving.unlock(fd)
            return False
        trash = path
        if not path.name.startswith("."):
            trash = path.with_name(f".trash-{path.name}-{os.getpid()}")
            path.rename(trash)
    except OSError:
        saving.unlock(fd)
        return False
    except BaseException:
        saving.unlock(fd)
        raise
    delete(trash, fd)
    return not trash.exists()
