"""What a checkpoint costs, beside what it is compared with, in one run.

    python benchmarks/checkpoint.py DIRECTORY [--size-mb 256] [--repeats 9]

DIRECTORY should be on the disk that is meant; a file system in memory says nothing about fsync.
Every repeat takes all measures in turn, so that a disk that slows down does so for all of them.
Medians; the ratio is to the row named behind it. The state is that of a model with Adam's two
moments: large matrices and small vectors, in one process.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp

from chaoslab.resilience import AtomicCheckpointManager

WIDTH = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """What is measured. reference: the row it is compared with. most: of the ratio, as claimed."""

    name: str
    reference: str | None = None
    most: float | None = None


ROWS = (
    Row(name="torch.save + fsync"),
    Row(name="save", reference="torch.save + fsync", most=1 / 0.9),
    Row(name="torch.save + fsync, removing the one before"),
    Row(
        name="save, removing the one before",
        reference="torch.save + fsync, removing the one before",
        most=1 / 0.9,
    ),
    Row(
        name="save, until the one before is gone",
        reference="torch.save + fsync, removing the one before",
    ),
    Row(name="DCP save, sync_files", reference="torch.save + fsync"),
    Row(name="torch.load"),
    Row(name="load, verified", reference="torch.load", most=1.15),
    Row(name="torch.load, not in the page cache"),
    Row(
        name="load, verified, not in the page cache",
        reference="torch.load, not in the page cache",
        most=1.15,
    ),
    Row(name="copy of the state into memory used before"),
    Row(
        name="async_save, until it returns",
        reference="copy of the state into memory used before",
        most=1.2,
    ),
    Row(
        name="DCP async_save, until it returns",
        reference="copy of the state into memory used before",
    ),
)


def make_state(size_bytes: int) -> dict[str, Any]:
    """Make a model's state with its moments, of about this size."""
    names = ("model", "exp_avg", "exp_avg_sq")
    state: dict[str, Any] = {name: {} for name in names}
    layer, made_bytes = 0, 0
    while made_bytes < size_bytes:
        for name in names:
            state[name][f"{layer}.weight"] = torch.rand(WIDTH, WIDTH)
            state[name][f"{layer}.bias"] = torch.rand(WIDTH)
            made_bytes += 4 * (WIDTH * WIDTH + WIDTH)
        layer += 1
    return state


def tensors_of(state: dict[str, Any]) -> list[torch.Tensor]:
    """List the state's tensors."""
    return [tensor for part in state.values() for tensor in part.values()]


class Bench:
    """The measures of one state in one directory."""

    def __init__(self, directory: Path, state: dict[str, Any]) -> None:
        self.directory, self.state, self.step = directory, state, 0
        self.seconds: dict[str, list[float]] = {row.name: [] for row in ROWS}
        self.copies = [torch.empty_like(tensor) for tensor in tensors_of(state)]
        self.kept = self.manager("kept", keep=1)
        self.background = self.manager("background", keep=1)
        self.kept.save(0, state)
        self.background.async_save(0, state)  # makes its memory
        self.background.wait()
        self.plain = self.directory / "plain.pt"
        self.plain_save(self.plain)

    def manager(self, name: str, *, keep: int) -> AtomicCheckpointManager:
        """Make a manager of one rank in a directory of its own."""
        return AtomicCheckpointManager(
            self.directory / name, rank=0, world_size=1, keep=keep, deadline_s=600
        )

    @contextlib.contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Time a block, with the disk idle before (and nothing to do for a second such call)."""
        os.sync()
        began_s = time.perf_counter()
        yield
        self.seconds[name].append(time.perf_counter() - began_s)

    def plain_save(self, path: Path) -> None:
        """Save as one does without a library."""
        with path.open("wb") as file:
            torch.save(self.state, file)
            file.flush()
            os.fsync(file.fileno())

    def repeat(self) -> None:
        """Take every measure once."""
        self.step += 1
        self.saves()
        self.loads()
        self.copies_and_async_saves()

    def saves(self) -> None:
        """Measure what blocks until the bytes are on the disk."""
        fresh, other = self.directory / "fresh.pt", self.directory / "next.pt"
        with self.measured("torch.save + fsync"):
            self.plain_save(fresh)
        fresh.unlink()
        first = self.manager(f"first-{self.step}", keep=1)
        with self.measured("save"):
            first.save(self.step, self.state)
        shutil.rmtree(first.directory)
        with self.measured("torch.save + fsync, removing the one before"):
            self.plain_save(other)
            other.replace(self.plain)
        with self.measured("save, until the one before is gone"):
            with self.measured("save, removing the one before"):
                self.kept.save(self.step, self.state)
            self.kept.wait()
        path = self.directory / f"dcp-{self.step}"
        with self.measured("DCP save, sync_files"):
            dcp.save(self.state, storage_writer=dcp.FileSystemWriter(path, sync_files=True))
        shutil.rmtree(path)

    def loads(self) -> None:
        """Measure loading, from the page cache and from the disk."""
        final = self.kept.directory / f"step-{self.step:08d}"
        shard = final / "rank-00000.pt"
        both: tuple[tuple[str, Path, Callable[[], Any]], ...] = (
            ("torch.load", self.plain, lambda: torch.load(self.plain, weights_only=True)),
            ("load, verified", shard, lambda: self.kept.load(self.step)),
        )
        for name, file, load in both:
            load()  # its file is in the page cache now
            with self.measured(name):
                load()
            forget(file)
            with self.measured(f"{name}, not in the page cache"):
                load()

    def copies_and_async_saves(self) -> None:
        """Measure how long the training loop is held up by a save in the background."""
        with self.measured("copy of the state into memory used before"):
            for copy, tensor in zip(self.copies, tensors_of(self.state), strict=True):
                copy.copy_(tensor)
        with self.measured("async_save, until it returns"):
            self.background.async_save(self.step, self.state)
        self.background.wait()
        path = self.directory / f"dcp-async-{self.step}"
        with self.measured("DCP async_save, until it returns"):
            future = dcp.async_save(self.state, storage_writer=dcp.FileSystemWriter(path))
        future.result()
        shutil.rmtree(path)


def forget(path: Path) -> None:
    """Drop a file from the page cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def tell(bench: Bench, size_bytes: int, repeats: int) -> None:
    """Print the table."""
    medians = {name: statistics.median(seconds) for name, seconds in bench.seconds.items()}
    print(f"{size_bytes / 1e6:.0f} MB, {repeats} repeats, {torch.get_num_threads()} threads")
    print(f"{'':45s} {'median s':>9s} {'least':>7s} {'most':>7s} {'MB/s':>6s}  ratio, claim")
    for row in ROWS:
        seconds, median_s = bench.seconds[row.name], medians[row.name]
        line = f"{row.name:45s} {median_s:9.4f} {min(seconds):7.4f} {max(seconds):7.4f}"
        line += f" {size_bytes / median_s / 1e6:6.0f}"
        if row.reference is not None:
            ratio = median_s / medians[row.reference]
            line += f"  {ratio:.2f} x {row.reference}"
            if row.most is not None:
                line += f" (at most {row.most:.2f}: {'holds' if ratio <= row.most else 'BROKEN'})"
        print(line)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--size-mb", type=float, default=256.0)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    state = make_state(int(options.size_mb * 1e6))
    size_bytes = sum(tensor.nbytes for tensor in tensors_of(state))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            bench = Bench(Path(directory), state)
            for _ in range(options.repeats):
                bench.repeat()
            tell(bench, size_bytes, options.repeats)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
