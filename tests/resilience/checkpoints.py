"""What the tests of checkpoints share: small states, saves by all ranks, and ways to spoil one."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from hypothesis import settings

from chaoslab.resilience.checkpoint import AtomicCheckpointManager

RANKS = 3

on_disk = settings(deadline=None)
"""For properties whose every example writes files: a busy disk is no failure."""


def manager(directory: Path, rank: int = 0, **options: Any) -> AtomicCheckpointManager:
    usual = {"world_size": RANKS, "deadline_s": 10.0}
    return AtomicCheckpointManager(directory, rank=rank, **{**usual, **options})


def alone(directory: Path, **options: Any) -> AtomicCheckpointManager:
    return manager(directory, world_size=1, **options)


def state_of(rank: int, step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.full((1000,), float(100 * step + rank))}


def save_all(directory: Path, step: int, *, ranks: int = RANKS, **options: Any) -> list[Any]:
    """Save as all ranks do, at once; give each rank's path or error."""
    attempt = options.pop("attempt", "one")

    def one(rank: int) -> Any:
        try:
            return manager(directory, rank, **options).save(
                step, state_of(rank, step), attempt=attempt
            )
        except Exception as error:  # noqa: BLE001 - the outcome is looked at by the test
            return error

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(one, range(ranks)))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def flip_a_bit(path: Path, rank: int = 1) -> None:
    shard = path / f"rank-0000{rank}.pt"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)


def zero_a_hole(path: Path, rank: int = 1) -> None:
    shard = path / f"rank-0000{rank}.pt"
    data = bytearray(shard.read_bytes())
    data[1024:2048] = bytes(1024)
    shard.write_bytes(data)


def truncate(path: Path, rank: int = 2) -> None:
    os.truncate(path / f"rank-0000{rank}.pt", 100)


def lose_a_shard(path: Path, rank: int = 0) -> None:
    (path / f"rank-0000{rank}.pt").unlink()


def lose_the_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def tear_the_manifest(path: Path) -> None:
    (path / "manifest.json").write_text('{"format": 2, "step":')


def change_the_format(path: Path) -> None:
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"format": 2', '"format": 1'))


def in_a_child(work: Callable[[], Any]) -> tuple[int, str]:
    """Do the work in a forked child; give its exit status and what it raised, as text."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status, told = 1, ""
        try:
            os.close(read)
            torch.set_num_threads(1)  # the parent's pool of threads is not in this process
            work()
            status = 0
        except BaseException as error:  # noqa: BLE001 - this is the child's outermost frame
            told = f"{type(error).__name__}: {error}"
        finally:
            os.write(write, told.encode()[:4000])
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as file:
        told = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), told
