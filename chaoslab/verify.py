"""Verify: whether checkpoints are what was saved, as far as each format lets anybody know.

| format | what is proven |
|---|---|
| AtomicCheckpointManager | every byte, by digest; that all shards are of one save |
| torch.save | every byte, by the archive's CRC-32; not that it is the file of its name |
| DCP directory | every item, by its archive's CRC-32; not that all are of one save |
| safetensors | the header and all sizes; no byte, since it has no checksum |

Nothing is unpickled but names, and no tensor is loaded: a stranger's checkpoint can be looked at.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import io
import json
import pickle
import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

from chaoslab.resilience import layout
from chaoslab.resilience.errors import CheckpointCorrupt

DCP_METADATA: Final = ".metadata"
POINTERS: Final = ("latest", "latest_checkpointed_iteration.txt")
"""Files that name the newest checkpoint: DeepSpeed's and Megatron's."""

_IN_PROGRESS: Final = (".tmp-", ".trash-")
"""Directories of a save or a removal of ours that was not finished."""

_ZIP: Final = b"PK\x03\x04"
_HEADER: Final = struct.Struct("<Q")
_HEADER_MOST_BYTES: Final = 100_000_000
"""Of a safetensors file. Source: its format's documentation."""

_PLAIN: Final = frozenset(("dict", "frozenset", "list", "set", "tuple", "OrderedDict"))


class Proof(enum.Enum):
    """What is known of a checkpoint."""

    OK = "OK"
    UNPROVEN = "UNPROVEN"
    DAMAGED = "DAMAGED"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """One checkpoint or file. words: what was proven, or what is wrong."""

    path: Path
    format: str
    proof: Proof
    words: str


def check(path: Path) -> list[Checked]:
    """Check a checkpoint, or all that a directory holds, in the order of their names.

    Empty where nothing is recognised. Raises: OSError where the path itself cannot be read.
    """
    path.stat()
    return list(_directory(path) if path.is_dir() else _file(path))


def _directory(path: Path) -> Iterator[Checked]:
    if (path / layout.MANIFEST).exists() and _is_ours(path):
        yield _ours(path)
    elif (path / DCP_METADATA).exists():
        yield _dcp(path)
    else:
        for child in sorted(path.iterdir()):
            if child.name in POINTERS and child.is_file():
                yield _pointer(child)
            elif child.is_dir() and not child.name.startswith(_IN_PROGRESS):
                yield from _directory(child)
            elif child.is_file():
                yield from _file(child)


def _is_ours(path: Path) -> bool:
    """Tell a manifest of ours, whole or not, from somebody else's file of that name."""
    return bool(list(path.glob("rank-*.pt"))) or b'"algorithm"' in _head(path / layout.MANIFEST)


def _ours(path: Path) -> Checked:
    try:
        manifest = layout.verify(path, world_size=None)
    except CheckpointCorrupt as error:
        return _damaged(path, "AtomicCheckpointManager", str(error).removeprefix(f"{path}: "))
    words = f"step {manifest.step}, {len(manifest.shards)} shards, every byte"
    return Checked(path=path, format="AtomicCheckpointManager", proof=Proof.OK, words=words)


def _file(path: Path) -> Iterator[Checked]:
    head = _head(path)
    if head.startswith(_ZIP) or path.suffix in (".pt", ".pth"):
        yield _archive(path, head)
    elif path.suffix == ".safetensors":
        yield _safetensors(path)


def _head(path: Path) -> bytes:
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(256)
    return b""


def _archive(path: Path, head: bytes) -> Checked:
    if head.startswith(b"\x80"):
        words = "written by torch.save before 1.6: it has no checksum"
        return Checked(path=path, format="torch.save", proof=Proof.UNPROVEN, words=words)
    try:
        with path.open("rb") as file:
            count = _intact_archive(file)
    except (OSError, zipfile.BadZipFile, ValueError, EOFError) as error:
        return _damaged(path, "torch.save", str(error))
    return Checked(
        path=path, format="torch.save", proof=Proof.OK, words=f"{count} records, every byte"
    )


def _intact_archive(file: Any) -> int:
    """Check every record of an archive; give their number. Raises: BadZipFile, ValueError."""
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        if not any(name.endswith("data.pkl") for name in names):
            raise ValueError("an archive without data.pkl: not one of torch.save's")
        if (bad := archive.testzip()) is not None:
            raise ValueError(f"{bad} does not have its CRC-32")
    return len(names)


def _safetensors(path: Path) -> Checked:
    try:
        words = _sizes_of_safetensors(path)
    except (OSError, ValueError, KeyError, TypeError, struct.error, RecursionError) as error:
        return _damaged(path, "safetensors", str(error) or repr(error))
    return Checked(path=path, format="safetensors", proof=Proof.UNPROVEN, words=words)


def _sizes_of_safetensors(path: Path) -> str:
    """Source: huggingface.co/docs/safetensors, "Format"."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        (length,) = _HEADER.unpack(file.read(_HEADER.size))
        if length > min(size_bytes - _HEADER.size, _HEADER_MOST_BYTES):
            raise ValueError(f"a header of {length} bytes in a file of {size_bytes}")
        header = json.loads(file.read(length))
    spans = sorted(
        tuple(tensor["data_offsets"]) for name, tensor in header.items() if name != "__metadata__"
    )
    end = 0
    for begin, after in spans:
        if begin != end or after < begin:
            raise ValueError(f"a tensor from {begin} to {after} where {end} was to be next")
        end = after
    if _HEADER.size + length + end != size_bytes:
        raise ValueError(f"{size_bytes} bytes: the header wants {_HEADER.size + length + end}")
    return f"{len(spans)} tensors, header and sizes; the format has no checksum of their bytes"


def _dcp(path: Path) -> Checked:
    try:
        items, files = _dcp_items(path), set[str]()
        for name, offset, length in items:
            _check_item(path / name, offset, length)
            files.add(name)
    except Exception as error:  # noqa: BLE001  unpickling what is damaged raises anything
        return _damaged(path, "DCP", str(error) or repr(error))
    words = (
        f"{len(items)} items in {len(files)} files, every byte of them; the format does not say "
        "that all are of one save"
    )
    return Checked(path=path, format="DCP", proof=Proof.UNPROVEN, words=words)


def _dcp_items(path: Path) -> list[tuple[str, int, int]]:
    """List file, offset and length of every item that the metadata names."""
    with (path / DCP_METADATA).open("rb") as file:
        metadata = _Names(file).load()
    try:
        stored = metadata.storage_data.values()
        return [(str(one.relative_path), int(one.offset), int(one.length)) for one in stored]
    except AttributeError:
        raise ValueError(f"{DCP_METADATA}: it does not say where the items are") from None


def _check_item(path: Path, offset: int, length: int) -> None:
    if not path.is_file():
        raise ValueError(f"{path.name} is not there")
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(length)
    if len(data) != length:
        raise ValueError(f"{path.name} ends at {offset + len(data)}: want {offset + length}")
    try:
        _intact_archive(io.BytesIO(data))
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path.name} at {offset}: {error}") from None


class _Names(pickle.Unpickler):
    """Reads a pickle without importing anything: every object only holds what it is told."""

    def find_class(self, module: str, name: str) -> Any:
        """Give a plain container, or a holder."""
        if module in ("builtins", "collections") and name in _PLAIN:
            return super().find_class(module, name)
        return type(name, (_Holder,), {})


class _Holder:
    """What stands for an object of a class that is not imported."""

    def __new__(cls, *_: object, **__: object) -> Self:
        return super().__new__(cls)

    def __init__(self, *arguments: object, **_: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                self.__dict__.update(part)


def _pointer(path: Path) -> Checked:
    """Check that a pointer names a checkpoint that is there, and no older one than the newest."""
    try:
        told = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        return _damaged(path, "pointer", str(error))
    others = [one.name for one in path.parent.iterdir() if one.is_dir() and _numbers(one.name)]
    named = next((name for name in others if told and _is_named(told, name)), None)
    if named is None:
        return _damaged(path, "pointer", f"names {told[:80]!r}, which is not there")
    alike = [name for name in others if _stem(name) == _stem(named)]
    newest = max(alike, key=_numbers)
    if _numbers(newest) > _numbers(named):
        return _damaged(path, "pointer", f"names {named}, and {newest} is there")
    return Checked(path=path, format="pointer", proof=Proof.OK, words=f"names {named}, the newest")


def _is_named(told: str, name: str) -> bool:
    return told == name or (told.isdigit() and _numbers(name) == [int(told)])


def _numbers(name: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", name)]


def _stem(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _damaged(path: Path, kind: str, words: str) -> Checked:
    return Checked(path=path, format=kind, proof=Proof.DAMAGED, words=words)
