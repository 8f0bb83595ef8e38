"""AtomicCheckpointManager: a checkpoint of all ranks is either whole or not there.

How a save goes: each rank writes its shard into one temporary directory, computes its digest on
the way, fsyncs it, and puts a small note beside it. Rank 0 waits for all notes, checks sizes,
writes the manifest, fsyncs, renames the directory to its final name and fsyncs the parent. The
others wait for that. Ranks meet through these files, not through a collective: a collective
hangs when a peer is gone, and the files need no network. Every wait has a deadline.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from chaoslab import probe
from chaoslab.resilience import layout, saving
from chaoslab.resilience.errors import (
    CheckpointCorrupt,
    CheckpointWriteFailed,
    SaveAbandoned,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Survey:
    """The checkpoints of a directory: steps that verify, newest first, and those refused."""

    steps: tuple[int, ...]
    refused: tuple[layout.Refused, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """The newest checkpoint that verifies, and the newer ones that do not, with reasons."""

    step: int
    path: Path
    refused: tuple[layout.Refused, ...]


class AtomicCheckpointManager:
    """Saves and loads the checkpoints of one job in one directory that all ranks share.

    directory: must be on one file system; created when missing. rank, world_size: this process's
    place. keep: how many checkpoints stay. deadline_s: limit of one save, waits included.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        rank: int,
        world_size: int,
        keep: int = 3,
        deadline_s: float = 60.0,
    ) -> None:
        if keep < 1 or not 0 <= rank < world_size or deadline_s <= 0:
            raise ValueError(
                f"AtomicCheckpointManager(rank={rank}, world_size={world_size}, keep={keep}, "
                f"deadline_s={deadline_s}): want keep >= 1, 0 <= rank < world_size, deadline_s > 0"
            )
        self.directory = Path(directory)
        self.rank, self.world_size = rank, world_size
        self.keep, self.deadline_s = keep, deadline_s

    def save(
        self,
        step: int,
        state: dict[str, Any],
        *,
        attempt: str = "solo",
        should_stop: saving.StopReason = lambda: None,
    ) -> Path:
        """Save every rank's state as the checkpoint of this step; all ranks call it together.

        attempt: the same on all ranks, and never used before for this step with other content
        (a generation's number and a name of the run, for example). should_stop: asked while
        waiting for peers; a reason ends the wait. Gives the final path.

        Raises: CheckpointWriteFailed when this rank cannot write; SaveAbandoned when a peer did
        not deliver. In both cases earlier checkpoints are untouched.
        """
        probe.emit("save_begun", step=step)
        deadline_s = time.monotonic() + self.deadline_s
        work = self.directory / f".tmp-{layout.step_name(step)}-{attempt}"
        final = self.directory / layout.step_name(step)
        try:
            with saving.shared_lock(work):
                self._write_shard(work, state)
                if self.rank == 0:
                    shards = self._collect(work, deadline_s, should_stop)
                    self._commit(
                        work, final, layout.Manifest(step=step, attempt=attempt, shards=shards)
                    )
                else:
                    self._await_commit(work, final, attempt, deadline_s, should_stop)
        except OSError as error:
            self._give_up(work)
            raise CheckpointWriteFailed(saving.advice(work, error)) from error
        except BaseException:
            self._give_up(work)
            raise
        probe.emit("save_committed", step=step, path=str(final))
        if self.rank == 0:
            self._tidy(step)
        return final

    def latest(self) -> Found | None:
        """Find the newest checkpoint that verifies, reading every byte of every shard."""
        refused: list[layout.Refused] = []
        for step, path in layout.candidates(self.directory):
            try:
                layout.verify(path, world_size=self.world_size)
            except CheckpointCorrupt as error:
                refused.append(layout.Refused(path=path, reason=str(error)))
                continue
            return Found(step=step, path=path, refused=tuple(refused))
        return None

    def survey(self) -> Survey:
        """List the steps that this rank can restore: all sizes are checked, its own shard is read.

        When every rank surveys, every shard is read once.
        """
        steps: list[int] = []
        refused: list[layout.Refused] = []
        for step, path in layout.candidates(self.directory):
            try:
                layout.verify(path, world_size=self.world_size, digests_of=[self.rank])
            except CheckpointCorrupt as error:
                refused.append(layout.Refused(path=path, reason=str(error)))
                continue
            if step not in steps:
                steps.append(step)
        return Survey(steps=tuple(steps), refused=tuple(refused))

    def load(self, step: int) -> dict[str, Any]:
        """Load this rank's state of a step (weights_only). Raises: CheckpointCorrupt."""
        problems = []
        for found, path in layout.candidates(self.directory):
            if found != step:
                continue
            try:
                layout.verify(path, world_size=self.world_size, digests_of=[self.rank])
                return dict(torch.load(path / layout.shard_name(self.rank), weights_only=True))
            except CheckpointCorrupt as error:
                problems.append(str(error))
        raise CheckpointCorrupt(
            f"step {step} in {self.directory}: {'; '.join(problems) or 'no such checkpoint'}"
        )

    def _write_shard(self, work: Path, state: dict[str, Any]) -> None:
        name = layout.shard_name(self.rank)
        with (work / name).open("wb") as raw:
            file = saving.DigestingFile(probe.watched(raw))
            try:
                torch.save(state, file)  # type: ignore[arg-type]
            except RuntimeError as error:  # torch's form of ENOSPC and EIO
                raise CheckpointWriteFailed(saving.advice(work, error)) from error
            raw.flush()
            os.fsync(raw.fileno())
        shard = layout.Shard(name=name, size_bytes=file.size_bytes, digest=file.digest)
        note = work / f"{name}{saving.NOTE}"
        draft = note.with_suffix(".draft")
        draft.write_text(json.dumps(dataclasses.asdict(shard)), encoding="utf-8")
        draft.rename(note)  # whole or absent, since rank 0 reads it as soon as it is there

    def _collect(
        self, work: Path, deadline_s: float, should_stop: saving.StopReason
    ) -> tuple[layout.Shard, ...]:
        """Wait for every rank's note, and check each shard against it. Raises: SaveAbandoned."""
        wanted = {f"{layout.shard_name(rank)}{saving.NOTE}" for rank in range(self.world_size)}
        while missing := wanted - saving.names_unless_failed(work):
            saving.pause(deadline_s, should_stop, f"the shards of {sorted(missing)}")
        shards = []
        for name in sorted(wanted):
            note = work / name
            shard = layout.Shard(**json.loads(note.read_text(encoding="utf-8")))
            size_bytes = (work / shard.name).stat().st_size
            if size_bytes != shard.size_bytes:
                raise SaveAbandoned(
                    f"{work / shard.name}: {size_bytes} bytes: its rank wrote {shard.size_bytes}; "
                    "does another job save into this directory?"
                )
            note.unlink()
            shards.append(shard)
        return tuple(shards)

    def _commit(self, work: Path, final: Path, manifest: layout.Manifest) -> None:
        """Make the checkpoint whole and durable, then visible under its final name."""
        with (work / layout.MANIFEST).open("w", encoding="utf-8") as file:
            file.write(manifest.to_json())
            file.flush()
            os.fsync(file.fileno())
        saving.fsync_directory(work)
        aside = None
        if final.exists():  # saved before, in a future that this run went back from
            aside = self.directory / f".replaced-{final.name}-{manifest.attempt}"
            final.rename(aside)
        work.rename(final)
        saving.fsync_directory(self.directory)
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)

    def _await_commit(
        self,
        work: Path,
        final: Path,
        attempt: str,
        deadline_s: float,
        should_stop: saving.StopReason,
    ) -> None:
        """Wait until rank 0 has renamed the directory. Raises: SaveAbandoned."""
        while True:
            try:
                saving.names_unless_failed(work)
            except FileNotFoundError:
                break
            saving.pause(deadline_s, should_stop, "rank 0 to commit")
        try:
            manifest = layout.read_manifest(final)
        except CheckpointCorrupt as error:
            raise SaveAbandoned(f"{work} is gone and nothing took its place: {error}") from None
        if manifest.attempt != attempt:
            raise SaveAbandoned(f"{work} is gone: {final} was saved by {manifest.attempt}")
        # The rename is visible before rank 0 has made it durable: whoever says "committed" first
        # must have done so itself.
        saving.fsync_directory(self.directory)

    def _give_up(self, work: Path) -> None:
        """Tell the others that this rank's part will not come; the deadline tells them if not.

        Its bytes are freed first: on a full disk they are in the way of the next save.
        """
        shard = work / layout.shard_name(self.rank)
        with contextlib.suppress(OSError):
            shard.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            work.joinpath(f"{shard.name}{saving.FAILED}").touch()

    def _tidy(self, committed: int) -> None:
        """Remove what is no longer wanted; a failure here costs space, never the save."""
        with contextlib.suppress(OSError):
            whole = [step for step, path in layout.candidates(self.directory) if _is_whole(path)]
            kept = layout.retained(whole, committed=committed, keep=self.keep)
            for step, path in layout.candidates(self.directory):
                if step < committed and step not in kept and not path.name.startswith("."):
                    trash = self.directory / f".trash-{path.name}-{os.getpid()}"
                    path.rename(trash)  # at once, so that no half-removed checkpoint is seen
                    shutil.rmtree(trash, ignore_errors=True)
            self.sweep()

    def sweep(self) -> list[Path]:
        """Remove the temporary directories that no living process is saving into; give them."""
        swept = []
        whole = {step for step, path in layout.candidates(self.directory) if path.name[0] != "."}
        for path in list(self.directory.iterdir()):
            if not layout.is_work(path.name) or not path.is_dir():
                continue
            if path.name.startswith(".replaced-") and not _superseded(path, whole):
                continue
            if saving.remove_unlocked(path):
                swept.append(path)
        return swept


def _is_whole(path: Path) -> bool:
    try:
        manifest = layout.read_manifest(path)
        layout.verify(path, world_size=len(manifest.shards), digests_of=[])
    except CheckpointCorrupt:
        return False
    return True


def _superseded(path: Path, whole: set[int]) -> bool:
    return int(path.name.split("-")[2]) in whole
