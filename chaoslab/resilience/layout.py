"""Layout: the names in a checkpoint directory, and what makes a checkpoint whole. Stdlib only.

DIRECTORY/step-00000042/{rank-00000.pt, rank-00001.pt, ..., manifest.json}. Everything else in
DIRECTORY is either work in progress (names that begin with `.tmp-`, `.replaced-`, `.trash-`)
or not ours, and then never touched.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chaoslab.resilience.errors import CheckpointCorrupt

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1
_STEP = re.compile(r"step-(\d{8,})|\.replaced-step-(\d{8,})-.*")
_OURS = re.compile(r"\.(?:tmp|replaced|trash)-step-\d{8,}-.*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """One rank's file: its name, size in bytes and BLAKE2b digest (hex)."""

    name: str
    size_bytes: int
    digest: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a whole checkpoint holds. attempt: names the save that wrote it."""

    step: int
    attempt: str
    shards: tuple[Shard, ...]

    def to_json(self) -> str:
        """Give the manifest as stored."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1) + "\n"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refused:
    """A checkpoint that does not verify, and why."""

    path: Path
    reason: str


def step_name(step: int) -> str:
    """Name the directory of a step's checkpoint."""
    return f"step-{step:08d}"


def shard_name(rank: int) -> str:
    """Name a rank's file."""
    return f"rank-{rank:05d}.pt"


def is_work(name: str) -> bool:
    """Tell whether a name is that of work in progress, which may be swept."""
    return _OURS.fullmatch(name) is not None


def candidates(directory: Path) -> list[tuple[int, Path]]:
    """List what looks like a checkpoint, newest first, without opening any.

    One that was moved aside for its replacement counts, behind the replacement: a crash between
    the two renames leaves it as the only one of its step.
    """
    found = []
    try:
        entries = list(directory.iterdir())
    except FileNotFoundError:
        return []
    for path in entries:
        match = _STEP.fullmatch(path.name)
        if match and path.is_dir():
            found.append((int(match[1] or match[2]), path))
    return sorted(found, key=lambda item: (-item[0], item[1].name.startswith("."), item[1].name))


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest. Raises: CheckpointCorrupt."""
    try:
        value = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if value["format"] != FORMAT:
            raise CheckpointCorrupt(f"{path}: format {value['format']!r}: want {FORMAT}")
        shards = tuple(Shard(**shard) for shard in value["shards"])
        return Manifest(step=int(value["step"]), attempt=str(value["attempt"]), shards=shards)
    except FileNotFoundError:
        raise CheckpointCorrupt(f"{path}: no {MANIFEST}: the save did not finish") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointCorrupt(f"{path}: {MANIFEST} cannot be read: {error!r}") from None


def verify(path: Path, *, world_size: int, digests_of: Sequence[int] | None = None) -> Manifest:
    """Check that a checkpoint is whole: every shard there, of its size and digest.

    digests_of: the ranks whose bytes are read; None for all. Raises: CheckpointCorrupt.
    """
    manifest = read_manifest(path)
    wanted = [shard_name(rank) for rank in range(world_size)]
    if [shard.name for shard in manifest.shards] != wanted:
        raise CheckpointCorrupt(
            f"{path}: shards of {len(manifest.shards)} ranks: want {world_size}; "
            "was it saved by a job of another size?"
        )
    for rank, shard in enumerate(manifest.shards):
        _verify_shard(path, shard, digest=digests_of is None or rank in digests_of)
    return manifest


def _verify_shard(path: Path, shard: Shard, *, digest: bool) -> None:
    try:
        size_bytes = (path / shard.name).stat().st_size
        if size_bytes != shard.size_bytes:
            raise CheckpointCorrupt(
                f"{path}: {shard.name} has {size_bytes} bytes: want {shard.size_bytes}"
            )
        if digest and digest_of(path / shard.name) != shard.digest:
            raise CheckpointCorrupt(
                f"{path}: {shard.name} does not have the digest it was saved with"
            )
    except OSError as error:
        raise CheckpointCorrupt(f"{path}: {shard.name} cannot be read: {error}") from None


def digest_of(path: Path) -> str:
    """Give the digest of a file's bytes. Raises: OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, hashlib.blake2b).hexdigest()


def retained(steps: Sequence[int], *, committed: int, keep: int) -> set[int]:
    """Choose the steps to keep after a commit: the newest `keep` up to the committed one.

    Later steps are kept as well: they belong to a future that this run has not reached, and are
    replaced when it does.
    """
    past = sorted((step for step in set(steps) if step <= committed), reverse=True)
    return set(past[:keep]) | {step for step in steps if step > committed} | {committed}
