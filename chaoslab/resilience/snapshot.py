"""Snapshot: a copy of a state in host memory that shares nothing with the live one."""

from __future__ import annotations

import collections
import copy
from typing import Any, Final

import torch

_ATOMS: Final = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.Size)
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


class HostCopy:
    """Copies states into memory of its own, which it uses again while the sizes stay the same.

    A later copy overwrites an earlier one. Storages are copied, not tensors: tensors that share
    memory share it in the copy, and what torch.save writes of either is the same. Memory for
    what comes from a GPU is pinned.
    """

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []
        self._used = 0
        self._copied: dict[int, tuple[Any, Any]] = {}
        self._made: dict[int, Any] = {}

    def take(self, state: Any) -> Any:
        """Copy dictionaries, lists, tuples, tensors; of anything else make a deep copy."""
        self._used, self._copied, self._made = 0, {}, {}
        try:
            with torch.no_grad():
                copied = self._copy(state)
            for device in {storage.device for storage, _ in self._copied.values()}:
                if device.type == "cuda":
                    torch.cuda.current_stream(device).synchronize()
        finally:
            del self._buffers[self._used :]
            self._copied, self._made = {}, {}
        return copied

    def _copy(self, value: Any) -> Any:
        kind = type(value)
        if kind in _ATOMS:
            return value
        made = self._made.get(id(value))  # what the state holds twice, the copy does, too
        if made is not None:
            return made
        if isinstance(value, torch.Tensor):
            made = self._tensor(value)
        elif kind in (dict, collections.OrderedDict):
            made = kind((self._copy(key), self._copy(item)) for key, item in value.items())
            if attributes := getattr(value, "__dict__", None):  # state_dict()'s _metadata
                made.__dict__.update(copy.deepcopy(attributes))
        elif kind in (list, tuple):
            made = kind([self._copy(item) for item in value])
        else:
            made = copy.deepcopy(value)
        self._made[id(value)] = made
        return made

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if not _is_plain(tensor):
            return copy.deepcopy(tensor.detach()).cpu()
        storage = tensor.untyped_storage()
        held = self._copied.get(storage._cdata)  # noqa: SLF001 - torch.save's own key of a storage
        if held is None:
            held = self._copied[storage._cdata] = (storage, self._host_storage(storage))  # noqa: SLF001
        made = torch.empty(0, dtype=tensor.dtype)
        made.set_(held[1], tensor.storage_offset(), tensor.size(), tensor.stride())
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        return made.requires_grad_(tensor.requires_grad)

    def _host_storage(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """Copy a storage into the next buffer."""
        pinned = storage.device.type == "cuda"
        live = torch.empty(0, dtype=torch.uint8, device=storage.device)
        live.set_(storage)
        index, self._used = self._used, self._used + 1
        fits = index < len(self._buffers) and (
            self._buffers[index].numel() == live.numel()
            and self._buffers[index].is_pinned() == pinned
        )
        if not fits:
            made = torch.empty(live.numel(), dtype=torch.uint8, pin_memory=pinned)
            self._buffers[index : index + 1] = [made]
        self._buffers[index].copy_(live, non_blocking=pinned)
        return self._buffers[index].untyped_storage()


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in _PLAIN
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
    )


def state_bytes(state: Any) -> int:
    """Give the bytes of all tensors of a state, those shared counted once."""
    found: dict[int, int] = {}
    _find(state, found)
    return sum(found.values())


def _find(value: Any, found: dict[int, int]) -> None:
    if isinstance(value, torch.Tensor):
        if _is_plain(value):
            storage = value.untyped_storage()
            found[storage._cdata] = storage.nbytes()  # noqa: SLF001 - as above
    elif isinstance(value, dict):
        for item in value.values():
            _find(item, found)
    elif isinstance(value, list | tuple):
        for item in value:
            _find(item, found)
