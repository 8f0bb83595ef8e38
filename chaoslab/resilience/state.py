"""State: the random states of a process, and digests of nested states for exact comparison."""

from __future__ import annotations

import ctypes
import hashlib
import random
import sys
from typing import Any

import torch


def random_states() -> dict[str, Any]:
    """Give the states of Python's, torch's and, where it is in use, numpy's generators."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        states["numpy"] = (str(name), [int(key) for key in keys], *rest)
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Put back what `random_states` gave."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(states["torch"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in states:
        numpy.random.set_state(tuple(states["numpy"]))


def digest(value: Any) -> str:
    """Give the SHA-256 (hex) of a nested state's raw bytes: equal only if bit-identical.

    Dictionaries count by sorted key, tensors by type, shape and bytes, other leaves by repr.
    """
    sink = hashlib.sha256()
    _fold(sink, value)
    return sink.hexdigest()


def _fold(sink: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().contiguous()
        sink.update(f"tensor {tensor.dtype} {tuple(tensor.shape)}".encode())
        sink.update(ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()))
    elif isinstance(value, dict):
        sink.update(f"dict {len(value)}".encode())
        for key in sorted(value, key=repr):
            sink.update(repr(key).encode())
            _fold(sink, value[key])
    elif isinstance(value, list | tuple):
        sink.update(f"list {len(value)}".encode())
        for item in value:
            _fold(sink, item)
    else:
        sink.update(f"{type(value).__name__} {value!r}".encode())
