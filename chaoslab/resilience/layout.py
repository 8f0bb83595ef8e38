"""Layout: the names in a checkpoint directory, and what makes a checkpoint whole. No torch.

DIRECTORY/step-00000042/{rank-00000.pt, rank-00001.pt, ..., manifest.json}. Everything else in
DIRECTORY is either work in progress (names that begin with `.tmp-`, `.replaced-`, `.trash-`)
or not ours, and then never touched.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import re
import stat
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

from chaoslab.resilience import digests
from chaoslab.resilience.errors import CheckpointCorrupt, CheckpointError

MANIFEST: Final = "manifest.json"
FORMAT: Final = 2
"""1 had BLAKE2b digests of whole files."""

ATTEMPT: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_STEP = re.compile(r"step-(\d{8,})|\.replaced-step-(\d{8,})-.*")
_OURS = re.compile(r"\.(?:tmp|replaced|trash)-step-(\d{8,})-.*")
_INSIDE = re.compile(r"manifest\.json|rank-\d{5,}\.pt(?:\.note|\.draft|\.failed)?")
_HEX = re.compile(r"(?:[0-9a-f]{32})*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """One rank's file: its name, size in bytes, and the digests (hex) of its blocks."""

    name: str
    size_bytes: int
    block_bytes: int
    digests: str

    def __post_init__(self) -> None:
        """Refuse what no save writes. Raises: ValueError."""
        sizes = (self.size_bytes, self.block_bytes)
        if not isinstance(self.name, str) or not all(type(size) is int for size in sizes):
            raise ValueError(f"a shard named {self.name!r} of sizes {sizes}: want text, integers")
        if self.size_bytes < 1 or self.block_bytes < 1:
            raise ValueError(f"{self.name}: size_bytes, block_bytes {sizes}: want at least 1")
        length = digests.DIGEST_HEX * -(-self.size_bytes // self.block_bytes)
        if not isinstance(self.digests, str) or not _HEX.fullmatch(self.digests):
            raise ValueError(f"{self.name}: digests are no {digests.ALGORITHM} in hexadecimal")
        if len(self.digests) != length:
            raise ValueError(f"{self.name}: {len(self.digests)} characters of digests: {length}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a whole checkpoint holds. attempt: names the save that wrote it."""

    step: int
    attempt: str
    shards: tuple[Shard, ...]

    def to_json(self) -> str:
        """Give the manifest as stored: with the digest of its own content, as `check`."""
        content = {"format": FORMAT, "algorithm": digests.ALGORITHM, **dataclasses.asdict(self)}
        return json.dumps({**content, "check": _check(content)}, indent=1) + "\n"


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


def checked_step(step: Any) -> int:
    """Give the step as an integer. Raises: ValueError."""
    try:
        number = -1 if isinstance(step, bool) else operator.index(step)
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(f"step={step!r}: want an integer >= 0; for 3.0 write 3")
    return number


def checked_attempt(attempt: Any) -> str:
    """Give the attempt's name. Raises: ValueError."""
    if not isinstance(attempt, str) or not ATTEMPT.fullmatch(attempt):
        raise ValueError(
            f"attempt={attempt!r}: want 1 to 100 letters, digits, '.', '_' or '-': it names a "
            "directory"
        )
    return attempt


def is_work(name: str) -> bool:
    """Tell whether a name is that of work in progress, which may be swept."""
    return work_step(name) is not None


def work_step(name: str) -> int | None:
    """Give the step of a name of work in progress; None for any other name."""
    match = _OURS.fullmatch(name)
    return int(match[1]) if match else None


def foreign_entries(path: Path) -> list[str]:
    """List what in a checkpoint's directory no save has put there. Raises: OSError."""
    return sorted(
        entry.name
        for entry in path.iterdir()
        if not _INSIDE.fullmatch(entry.name) or (entry.is_dir() and not entry.is_symlink())
    )


def candidates(directory: Path) -> list[tuple[int, Path]]:
    """List what looks like a checkpoint, newest first, without opening any.

    One that was moved aside for its replacement counts, behind the replacement: a crash between
    the two renames leaves it as the only one of its step. Raises: CheckpointError.
    """
    found = []
    try:
        entries = list(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{directory}: {error}: want a readable directory") from error
    for path in entries:
        match = _STEP.fullmatch(path.name)
        if match and path.is_dir():
            found.append((int(match[1] or match[2]), path))
    return sorted(found, key=lambda item: (-item[0], item[1].name.startswith("."), item[1].name))


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest. Raises: CheckpointCorrupt."""
    try:
        if not (path / MANIFEST).is_file():  # so that a pipe of that name is not waited for
            raise CheckpointCorrupt(f"{path}: no {MANIFEST}: the save did not finish")
        value = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        _refuse_other_formats(path, value)
        if value.pop("check") != _check(value):
            raise CheckpointCorrupt(f"{path}: {MANIFEST} does not have its own digest: damaged")
        shards = tuple(Shard(**shard) for shard in value["shards"])
        step, attempt = checked_step(value["step"]), checked_attempt(value["attempt"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointCorrupt(f"{path}: {MANIFEST} cannot be read: {error!r}") from None
    match = _STEP.fullmatch(path.name)
    if match and step != int(match[1] or match[2]):
        raise CheckpointCorrupt(f"{path}: {MANIFEST} is of step {step}: was it moved here?")
    if [shard.name for shard in shards] != [shard_name(rank) for rank in range(len(shards))]:
        raise CheckpointCorrupt(f"{path}: {MANIFEST} does not name one shard of each rank")
    return Manifest(step=step, attempt=attempt, shards=shards)


def _refuse_other_formats(path: Path, value: Any) -> None:
    if value["format"] != FORMAT or type(value["format"]) is not int:
        raise CheckpointCorrupt(
            f"{path}: format {value['format']!r}: want {FORMAT}; load it with the version of "
            "chaoslab that saved it"
        )
    if value["algorithm"] != digests.ALGORITHM:
        raise CheckpointCorrupt(
            f"{path}: digests by {value['algorithm']!r}: want {digests.ALGORITHM}"
        )


def _check(content: dict[str, Any]) -> str:
    return digests.digest_of_text(json.dumps(content, sort_keys=True))


def is_of_other_size(path: Path, world_size: int) -> bool:
    """Tell whether another number of ranks saved this, which makes it no damaged one."""
    try:
        return len(read_manifest(path).shards) != world_size
    except CheckpointCorrupt:
        return False


def source_rank(manifest: Manifest, rank: int) -> int:
    """Choose whose shard a rank reads: its own, or one of those there are, in turn."""
    return rank % len(manifest.shards)


def verify(
    path: Path,
    *,
    world_size: int | None,
    digests_of: Collection[int] | None = None,
) -> Manifest:
    """Check that a checkpoint is whole: every shard there, of its size and digests.

    world_size: of the job that saved it; None for any. digests_of: the ranks whose bytes are
    read (each stands for the shard that it loads); None for all. Raises: CheckpointCorrupt.
    """
    manifest = read_manifest(path)
    if not manifest.shards or world_size not in (None, len(manifest.shards)):
        raise CheckpointCorrupt(
            f"{path}: shards of {len(manifest.shards)} ranks: want {world_size}; "
            "was it saved by a job of another size?"
        )
    ranks = range(len(manifest.shards)) if digests_of is None else digests_of
    wanted = {source_rank(manifest, rank) for rank in ranks}
    for rank, shard in enumerate(manifest.shards):
        _check_size(path, shard)
        if rank in wanted:
            with open_shard(path, shard) as file:
                file.verify_rest()
    return manifest


def _check_size(path: Path, shard: Shard) -> None:
    try:
        status = (path / shard.name).stat()
    except OSError as error:
        raise CheckpointCorrupt(f"{path}: {shard.name} cannot be read: {error}") from None
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointCorrupt(f"{path}: {shard.name} cannot be read: it is no file")
    if status.st_size != shard.size_bytes:
        raise CheckpointCorrupt(
            f"{path}: {shard.name} has {status.st_size} bytes: want {shard.size_bytes}"
        )


def open_shard(path: Path, shard: Shard) -> digests.VerifiedFile:
    """Open a rank's file, whose bytes are then checked as they are read.

    Raises: CheckpointCorrupt.
    """
    _check_size(path, shard)  # before opening: to open a pipe is to wait for it
    try:
        return digests.VerifiedFile(
            path / shard.name, shard.size_bytes, shard.block_bytes, shard.digests
        )
    except OSError as error:
        raise CheckpointCorrupt(f"{path}: {shard.name} cannot be read: {error}") from None


def retained(
    steps: Sequence[int], *, committed: int, keep: int, future: int | None = None
) -> set[int]:
    """Choose the steps to keep after a commit: the newest `keep` up to the committed one.

    future: a later step that stays as well. This run has not reached it, and replaces it when it
    does; or it belongs to a job that was started here by mistake.
    """
    past = sorted((step for step in {*steps, committed} if step <= committed), reverse=True)
    return set(past[:keep]) | ({future} if future is not None else set())
