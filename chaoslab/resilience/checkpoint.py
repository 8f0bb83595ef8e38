"""AtomicCheckpointManager: a checkpoint of all ranks is either whole or not there.

How a save goes: each rank writes its shard into one temporary directory, computes its digests on
the way, fsyncs it, and puts a small note beside it. Rank 0 waits for all notes, checks sizes,
writes the manifest, fsyncs, renames the directory to its final name and fsyncs the parent. The
others wait for that. Ranks meet through these files, not through a collective: a collective
hangs when a peer is gone, and the files need no network. Every wait has a deadline.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, Self

from chaoslab.resilience import (
    layout,
    loading,
    removal,
    retention,
    saving,
    snapshot,
    writing,
)
from chaoslab.resilience.async_saving import InFlight
from chaoslab.resilience.errors import CheckpointCorrupt

GRACE_S: Final = 5.0
"""How long after its deadline a save in flight may take to say so."""

REMOVAL_POLL_S: Final = 0.05
REMOVAL_PATIENCE_S: Final = 5.0
"""How long a save waits for the space of the one before the last: then it goes without."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Survey:
    """The checkpoints of a directory: steps that verify, newest first, and those refused."""

    steps: tuple[int, ...]
    refused: tuple[layout.Refused, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """The newest checkpoint that verifies, and the newer ones that do not, with reasons.

    world_size: of the job that saved it.
    """

    step: int
    path: Path
    world_size: int
    refused: tuple[layout.Refused, ...]


class AtomicCheckpointManager:
    """Saves and loads the checkpoints of one job in one directory that all ranks share.

    directory: must be on one file system; created when missing. rank, world_size: this process's
    place. keep: how many checkpoints stay. deadline_s: limit of one save, waits for the other
    ranks included. Not to be called from two threads at once. Used as a context manager, it
    waits for the save in flight at the end. A large checkpoint that is no longer kept is out of
    sight when the save returns; its space is given back in the background, before the next save.
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
        integers = all(type(value) is int for value in (rank, world_size, keep))
        if (
            not integers
            or keep < 1
            or not 0 <= rank < world_size
            or not (deadline_s > 0 and math.isfinite(deadline_s))
        ):
            raise ValueError(
                f"AtomicCheckpointManager(rank={rank}, world_size={world_size}, keep={keep}, "
                f"deadline_s={deadline_s}): want keep >= 1, 0 <= rank < world_size, integers; "
                "deadline_s > 0, finite"
            )
        self.directory = Path(directory)
        self.rank, self.world_size = rank, world_size
        self.keep, self.deadline_s = keep, deadline_s
        self._in_flight: InFlight | None = None
        self._host_copy = snapshot.HostCopy()
        self._remover = removal.Remover()
        self._damaged: set[Path] = set()
        self._is_swept = self._is_loadable = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon(f"{kind.__name__} in this rank")

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
        not deliver. In both cases earlier checkpoints are untouched. Also the error of an
        `async_save` before, in place of this save; ValueError for a bad step, state or attempt.
        """
        return self._save(self._begin(step, state, attempt, should_stop), state)

    def async_save(
        self,
        step: int,
        state: dict[str, Any],
        *,
        attempt: str = "solo",
        should_stop: saving.StopReason = lambda: None,
    ) -> None:
        """Copy the state to host memory, and save the copy in the background.

        Waits first for the save in flight, if any. Takes what `save` takes; should_stop is asked
        from another thread. How it ends, the next `save`, `async_save`, `wait` or `close` says.

        Raises: what the save before raised; CheckpointWriteFailed when that is still in flight
        after deadline_s; ValueError as `save`.
        """
        save = self._begin(step, state, attempt, should_stop)
        copied = self._host_copy.take(state)
        flight = InFlight(save.step, should_stop)
        deadline_s = time.monotonic() + self.deadline_s
        save = dataclasses.replace(save, should_stop=flight.stop_reason, deadline_s=deadline_s)
        flight.start(lambda: self._save(save, copied))
        self._in_flight = flight

    def wait(self, limit_s: float | None = None) -> Path | None:
        """Wait for the save in flight, and for removals; give its path, None when there is none.

        limit_s: None for its own deadline. Raises: what ended it; CheckpointWriteFailed at the
        limit, and the save goes on.
        """
        limit_s = self.deadline_s + GRACE_S if limit_s is None else _checked_limit(limit_s)
        flight = self._present_flight()
        if flight is None:
            self._remover.wait(limit_s)
            return None
        flight.join(limit_s)
        self._in_flight = None
        self._remover.wait(limit_s)
        return flight.outcome()

    def abandon(self, reason: str, *, limit_s: float = GRACE_S) -> bool:
        """End the save in flight, which may have been committed already; tell whether it ended.

        For a generation that is torn down. What ended the save is not raised later.
        """
        _checked_limit(limit_s)
        flight = self._present_flight()
        if flight is None:
            return True
        flight.abandon(reason)
        if not flight.has_ended(limit_s):
            return False
        self._in_flight = None
        return True

    def close(self, limit_s: float | None = None) -> None:
        """Wait for the save in flight as `wait` does, abandon it at the limit, free its memory."""
        try:
            self.wait(limit_s)
        finally:
            if self.abandon("the manager was closed"):
                self._host_copy = snapshot.HostCopy()

    def latest(self, *, any_world_size: bool = False) -> Found | None:
        """Find the newest checkpoint that verifies, reading every byte of every shard.

        None where there is none; where there are some and all are refused, a RuntimeWarning says
        why each was. any_world_size: also one that another number of ranks saved; see `load`.

        Raises: CheckpointError when the directory cannot be read.
        """
        refused: list[layout.Refused] = []
        for step, path in layout.candidates(self.directory):
            found = self._examine(path, ranks=None, any_world_size=any_world_size)
            if isinstance(found, layout.Refused):
                refused.append(found)
                continue
            size = len(found.shards)
            return Found(step=step, path=path, world_size=size, refused=tuple(refused))
        if refused:
            reasons = "; ".join(item.reason for item in refused)
            text = f"{self.directory}: all {len(refused)} checkpoints are refused: {reasons}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return None

    def survey(self, *, any_world_size: bool = False) -> Survey:
        """List the steps that this rank can restore: all sizes are checked, its own shard is read.

        When every rank surveys, every shard is read once. any_world_size: as for `latest`.
        """
        steps: list[int] = []
        refused: list[layout.Refused] = []
        self._sweep_once()
        for step, path in layout.candidates(self.directory):
            found = self._examine(path, ranks=[self.rank], any_world_size=any_world_size)
            if isinstance(found, layout.Refused):
                refused.append(found)
            elif step not in steps:
                steps.append(step)
        return Survey(steps=tuple(steps), refused=tuple(refused))

    def load(self, step: int, *, any_world_size: bool = False) -> dict[str, Any]:
        """Load this rank's state of a step (weights_only, on the CPU).

        any_world_size: also from a checkpoint that another number of ranks saved. The state then
        lacks `per_rank`, since what was one rank's own (random states, buffers, its place in the
        data) belongs to no rank of this job; the rest is the same on every rank.

        Raises: CheckpointCorrupt; CheckpointError for a state that cannot be loaded, or that
        another number of ranks saved without saying what is per rank.
        """
        step, problems = layout.checked_step(step), []
        for found, path in layout.candidates(self.directory):
            if found != step:
                continue
            try:
                return loading.read(
                    path,
                    rank=self.rank,
                    world_size=self.world_size,
                    any_world_size=any_world_size,
                )
            except CheckpointCorrupt as error:
                problems.append(str(error))
        raise CheckpointCorrupt(
            f"step {step} in {self.directory}: {'; '.join(problems) or 'no such checkpoint'}"
        )

    def sweep(self) -> list[Path]:
        """Remove the temporary directories that no living process is saving into; give them.

        Rank 0 does so by itself at its first `survey` or save.
        """
        self._is_swept = True
        return retention.sweep(self.directory)

    def _sweep_once(self) -> None:
        if self.rank == 0 and not self._is_swept:
            self.sweep()

    def _examine(
        self, path: Path, *, ranks: Collection[int] | None, any_world_size: bool
    ) -> layout.Manifest | layout.Refused:
        size = None if any_world_size else self.world_size
        try:
            with saving.reading(path):
                return layout.verify(path, world_size=size, digests_of=ranks)
        except CheckpointCorrupt as error:
            if not layout.is_of_other_size(path, self.world_size):
                self._damaged.add(path)
            return layout.Refused(path=path, reason=str(error))

    def _present_flight(self) -> InFlight | None:
        """Give this process's own save in flight, not one of the process it was forked from."""
        if self._in_flight is not None and not self._in_flight.is_ours():
            self._in_flight, self._host_copy = None, snapshot.HostCopy()
        return self._in_flight

    def _begin(
        self, step: int, state: dict[str, Any], attempt: str, should_stop: saving.StopReason
    ) -> saving.Save:
        """Check what was given, settle the save in flight, and describe the new one."""
        step, attempt = layout.checked_step(step), layout.checked_attempt(attempt)
        if not isinstance(state, dict):
            raise ValueError(f"state of type {type(state).__name__}: want a dict")  # noqa: TRY004
        self._sweep_once()
        work = self.directory / f".tmp-{layout.step_name(step)}-{attempt}"
        self._settle(work, should_stop)
        return saving.Save(
            step=step,
            attempt=attempt,
            work=work,
            final=self.directory / layout.step_name(step),
            deadline_s=time.monotonic() + self.deadline_s,
            should_stop=should_stop,
        )

    def _settle(self, work: Path, should_stop: saving.StopReason) -> None:
        """Wait for the save before. If it failed, tell the peers that this rank skips the next."""
        flight = self._present_flight()
        try:
            if flight is not None:
                flight.join(self.deadline_s, should_stop)
                self._in_flight = None
                flight.outcome()
        except BaseException:
            with contextlib.suppress(OSError):
                work.mkdir(exist_ok=True)
            saving.give_up(work, self.rank)
            raise
        # The peers' deadlines run already.
        end_s = time.monotonic() + min(REMOVAL_PATIENCE_S, self.deadline_s / 4)
        while not self._remover.wait(REMOVAL_POLL_S):  # its space may be wanted
            if should_stop() is not None or time.monotonic() > end_s:
                return

    def _save(self, save: saving.Save, state: dict[str, Any]) -> Path:
        """Do this rank's part of a save, in whichever thread."""
        path = writing.save_part(
            save,
            state,
            rank=self.rank,
            world_size=self.world_size,
            is_first=not self._is_loadable,
        )
        self._is_loadable = True
        if self.rank == 0:
            self._damaged.discard(path)
            retention.tidy(
                self.directory,
                committed=save.step,
                keep=self.keep,
                damaged=self._damaged,
                delete=self._remover.delete,
            )
        return path


def _checked_limit(limit_s: float) -> float:
    if not limit_s >= 0:
        raise ValueError(f"limit_s={limit_s}: want limit_s >= 0")
    return limit_s
