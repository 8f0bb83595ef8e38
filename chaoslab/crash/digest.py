"""Digest: one text for the same value, whatever it is made of, tensors and arrays too."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import xxhash


def digest(value: object) -> str:
    """Give the digest (hex, XXH3-128) of a value: equal values have the same.

    Containers, numbers, text, bytes, dataclasses, NumPy arrays, torch tensors by their bytes; what
    else there is, as it is pickled. Raises: what pickling raises.
    """
    total = xxhash.xxh3_128()
    for part in _parts(value):
        total.update(part)
    return total.hexdigest()


def _parts(value: Any) -> Iterator[bytes | memoryview]:
    """Give a value as bytes, each part with its kind and length before it."""
    if isinstance(value, Mapping):
        yield f"mapping {len(value)};".encode()
        for key in sorted(value, key=lambda key: (type(key).__name__, repr(key))):
            yield from _parts(key)
            yield from _parts(value[key])
    elif isinstance(value, list | tuple):
        yield f"sequence {len(value)};".encode()
        for item in value:
            yield from _parts(item)
    elif isinstance(value, set | frozenset):
        yield f"set {len(value)};".encode()
        yield from sorted(digest(item).encode() for item in value)
    elif hasattr(value, "untyped_storage"):  # a tensor, told without importing torch
        array = value.detach().cpu().contiguous()
        yield f"tensor {array.dtype} {tuple(array.shape)};".encode()
        yield memoryview(array.reshape(-1).view(_byte_type(array)).numpy())
    elif hasattr(value, "__array_interface__"):
        yield f"array {value.dtype} {value.shape};".encode()
        yield value.tobytes()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield f"{type(value).__name__};".encode()
        for field in dataclasses.fields(value):
            yield from _parts(getattr(value, field.name))
    else:
        data = _plain(value)
        yield f"{type(value).__name__} {len(data)};".encode()
        yield data


def _plain(value: object) -> bytes:
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if value is None or isinstance(value, str | bool | int | float | complex):
        return repr(value).encode()
    return pickle.dumps(value, protocol=4)


def _byte_type(tensor: Any) -> Any:
    return sys.modules["torch"].uint8 if tensor.numel() else tensor.dtype
