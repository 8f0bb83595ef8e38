"""State: all that a resumed training run needs, and digests of nested states.

What is one rank's own is kept apart, under `per_rank`: the random states of Python, numpy and
torch, the place in the data, and the model's buffers (running statistics differ from rank to
rank). The rest (parameters, optimizer, learning-rate schedule) is the same on every rank, so that
a job of another size can go on from it. A key that a user adds beside them counts as the same on
every rank.
"""

from __future__ import annotations

import collections
import ctypes
import hashlib
import random
import sys
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PER_RANK: Final = "per_rank"


def training_state(
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: Any = None,
    sampler_position: Any = None,
    shared_buffers: bool = False,
) -> dict[str, Any]:
    """Give the state of a training run, for a checkpoint manager to save.

    model: bare or in DDP, which gives the same. schedule: what has state_dict, as a learning-rate
    schedule has. sampler_position: this rank's place in the data, of numbers, text, lists and
    dicts. shared_buffers: the model's buffers are the same on every rank, so count them in.
    Tensors are the live ones: the manager copies or writes them before it returns.
    """
    bare = _bare(model)
    whole = bare.state_dict()
    own = set() if shared_buffers else _buffer_names(bare)
    return {
        "model": _part(whole, set(whole) - own),
        "optimizer": optimizer.state_dict(),
        "schedule": None if schedule is None else schedule.state_dict(),
        PER_RANK: {
            "random": random_states(),
            "sampler_position": sampler_position,
            "buffers": _part(whole, own),
        },
    }


def load_training_state(
    state: dict[str, Any],
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: Any = None,
    fresh_per_rank: bool = False,
) -> Any:
    """Put back what `training_state` gave; give the sampler position, None where there is none.

    fresh_per_rank: for a job of another size, whose state holds nothing of this rank's own: random
    states and buffers stay as they are. Call it last before training: what draws random numbers
    afterwards (building DDP may) moves the random states on.

    Raises: ValueError when the state lacks this rank's own part, or the schedule does not fit.
    """
    own = state.get(PER_RANK)
    if own is None and not fresh_per_rank:
        raise ValueError(
            "the state holds no random states, sampler position and buffers of this rank: a job of "
            "another size saved it; to start those afresh, give fresh_per_rank=True"
        )
    if (state["schedule"] is None) != (schedule is None):
        given, saved = (("one", "none"), ("none", "one"))[schedule is None]
        raise ValueError(f"schedule: {given} given, {saved} saved: want the job as it was saved")
    bare = _bare(model)
    present = bare.state_dict()
    kept = _part(present, _buffer_names(bare)) if own is None else own["buffers"]
    merged = collections.OrderedDict([*kept.items(), *state["model"].items()])
    merged._metadata = getattr(state["model"], "_metadata", {})  # type: ignore[attr-defined]  # noqa: SLF001
    bare.load_state_dict(merged)
    optimizer.load_state_dict(state["optimizer"])
    if schedule is not None:
        schedule.load_state_dict(state["schedule"])
    if own is None:
        return None
    set_random_states(own["random"])
    return own["sampler_position"]


def _bare(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def _buffer_names(model: nn.Module) -> set[str]:
    """Give the names, within its state, of what is no parameter but a buffer."""
    names = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    return names & set(model.state_dict())


def _part(whole: Any, names: set[str]) -> Any:
    """Choose some of a model's state, in its order, with the versions of its modules."""
    part = collections.OrderedDict((name, whole[name]) for name in whole if name in names)
    part._metadata = getattr(whole, "_metadata", {})  # type: ignore[attr-defined]  # noqa: SLF001
    return part


def random_states() -> dict[str, Any]:
    """Give the states of Python's and torch's generators, and of numpy's and CUDA's if in use."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        states["numpy"] = (str(name), [int(key) for key in keys], *rest)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state()  # of the present device
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Put back what `random_states` gave."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(states["torch"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in states:
        numpy.random.set_state(tuple(states["numpy"]))
    if torch.cuda.is_available() and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])


def digest(value: Any) -> str:
    """Give the SHA-256 (hex) of a nested state's raw bytes: equal only if bit-identical.

    Dictionaries count by sorted key, tensors by type, shape and bytes, other leaves by repr.
    """
    sink = hashlib.sha256()
    _fold(sink, value)
    return sink.hexdigest()


def _fold(sink: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        tensor = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
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
