"""Clipping: gradient clipping that a NaN cannot turn into a ruined model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Literal

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from chaoslab.resilience.errors import NonfiniteGradient

OnNonfinite = Literal["zero", "leave"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clipped:
    """What clipping found. norm: of all gradients, before clipping. skip: do not step."""

    norm: float
    skip: bool


def clip_gradients(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    *,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    on_nonfinite: OnNonfinite = "zero",
    group: dist.ProcessGroup | None = None,
    foreach: bool | None = None,
) -> Clipped:
    """Scale gradients in place so that their norm is at most max_norm, and tell whether to step.

    With a norm that is finite the gradients are bit-equal to those of `clip_grad_norm_`. With one
    that is not, `skip` is True and every gradient is zeroed in place ("zero"), so that a step
    taken all the same spreads no NaN, or kept for inspection ("leave"), or NonfiniteGradient is
    raised (error_if_nonfinite) with the gradients kept.

    All ranks decide alike. Under DDP that is so by itself, since every rank holds the same reduced
    gradients; give no group then. Where each rank of a group holds another part of the gradients
    (sharded or tensor-parallel parameters), give it: norms are added up by one all-reduce, which
    carries a NaN to everybody; every rank of it must call, with gradients or without. DTensors
    (FSDP2) bring their own group. The device is waited for once.

    Raises: ValueError for a bad argument or a sparse gradient; NonfiniteGradient.
    """
    _check(max_norm, norm_type, on_nonfinite)
    held = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    held = [parameter for parameter in held if parameter is not None]
    gradients = [parameter.grad for parameter in held if parameter.grad is not None]
    for gradient in gradients:
        if gradient.layout != torch.strided:
            raise ValueError(
                f"gradient of shape {tuple(gradient.shape)} is {gradient.layout}: want strided; "
                "build the embedding with sparse=False"
            )
    with torch.no_grad():
        total = _total_norm(held, gradients, float(norm_type), group, foreach=foreach)
        norm = float(total)  # the one wait for the device
        finite = math.isfinite(norm)
        if finite:
            clip_grads_with_norm_(held, float(max_norm), total, foreach)
        elif error_if_nonfinite:
            raise NonfiniteGradient(
                f"norm of {len(gradients)} gradients is {norm}: want a finite one; skip this "
                "step, and look for a loss that overflowed or a rate that is too high"
            )
        elif on_nonfinite == "zero":
            _zero(gradients)
    return Clipped(norm=norm, skip=not finite)


def _total_norm(
    held: list[torch.Tensor],
    gradients: list[torch.Tensor],
    norm_type: float,
    group: dist.ProcessGroup | None,
    *,
    foreach: bool | None,
) -> torch.Tensor:
    """Give the norm over this rank's gradients, or over the whole group's."""
    # An empty shard has no maximum: torch 2.13 raises for it with norm_type=inf.
    filled = [gradient for gradient in gradients if gradient.numel() > 0]
    norm = get_total_norm(filled, norm_type, error_if_nonfinite=False, foreach=foreach)
    whole = getattr(norm, "full_tensor", None)
    if whole is not None:
        norm = whole()  # a DTensor holds its rank's part
    if group is None:
        return norm
    device = norm.device if filled or not held else held[0].device
    # In double precision, whatever the gradients are in: one number, so that all decide alike.
    part = norm.to(device=device, dtype=torch.float64)
    if math.isinf(norm_type):
        # The maximum of a NaN and a number is either, depending on the backend.
        part = torch.nan_to_num(part, nan=math.inf, posinf=math.inf)
        dist.all_reduce(part, op=dist.ReduceOp.MAX, group=group)
        return part
    part = part.pow(norm_type)
    dist.all_reduce(part, op=dist.ReduceOp.SUM, group=group)
    return part.pow(1.0 / norm_type)


def _zero(gradients: list[torch.Tensor]) -> None:
    """Zero in place: DDP's buckets are views of the same memory."""
    for gradient in gradients:
        gradient.zero_()


def _check(max_norm: float, norm_type: float, on_nonfinite: str) -> None:
    """Refuse values out of range. Raises: ValueError."""
    for name, value in (("max_norm", max_norm), ("norm_type", norm_type)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(
                f"clip_gradients({name}={value!r}): want a number above 0; "
                "float('inf') as max_norm clips nothing and still tells the norm"
            )
    if on_nonfinite not in ("zero", "leave"):
        raise ValueError(f"clip_gradients(on_nonfinite={on_nonfinite!r}): want 'zero' or 'leave'")
