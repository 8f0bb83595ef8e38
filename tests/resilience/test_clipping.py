"""Clipping does what torch's own does, and a gradient that is not finite ruins nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings, strategies as st
from loopback_job import Store
from torch.utils._python_dispatch import TorchDispatchMode

from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.clipping import Clipped, clip_gradients
from chaoslab.resilience.errors import NonfiniteGradient
from chaoslab.resilience.store import parse_address
from chaoslab.resilience.torch_store import TorchStore

SHAPES = [(3, 4), (5,), (), (1, 0), (2, 2)]


def with_gradients(seed: int, *, scale: float = 1.0, dtypes: Any = (torch.float32,)) -> list[Any]:
    """Give parameters with random gradients, the last one without."""
    generator = torch.Generator().manual_seed(seed)
    parameters = []
    for nth, shape in enumerate(SHAPES):
        dtype = dtypes[nth % len(dtypes)]
        parameter = torch.zeros(shape, dtype=dtype, requires_grad=True)
        parameter.grad = (torch.randn(shape, generator=generator) * scale).to(dtype)
        parameters.append(parameter)
    return [*parameters, torch.zeros(2, requires_grad=True)]


def gradients(parameters: list[Any]) -> list[Any]:
    return [p.grad for p in parameters if p.grad is not None]


def same_bits(left: list[Any], right: list[Any]) -> bool:
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(left, right, strict=True))


@given(
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([0.0, 1e-6, 0.1, 1.0, 100.0]),
    max_norm=st.sampled_from([1e-3, 1.0, 3.0, 1e6, math.inf]),
    norm_type=st.sampled_from([1.0, 2.0, 3.0, math.inf]),
    foreach=st.sampled_from([None, True, False]),
    dtypes=st.sampled_from(
        [(torch.float32,), (torch.float32, torch.bfloat16), (torch.float64, torch.float16)]
    ),
)
@settings(deadline=None)
def test_finite_gradients_are_clipped_as_torch_does(
    *, seed: int, scale: float, max_norm: float, norm_type: float, foreach: Any, dtypes: Any
) -> None:
    """Bit for bit, in every mode and mix of types; the norm is the same number.

    torch's own function raises for the maximum of an empty gradient: it gets the others only.
    """
    ours, theirs = (with_gradients(seed, scale=scale, dtypes=dtypes) for _ in range(2))
    theirs = [p for p in theirs if p.numel()]
    found = clip_gradients(ours, max_norm, norm_type=norm_type, foreach=foreach)
    norm = torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type, foreach=foreach)
    assert found == Clipped(norm=float(norm), skip=False)
    assert same_bits([g for g in gradients(ours) if g.numel()], gradients(theirs))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("foreach", [None, True, False])
def test_one_bad_element_skips_the_step(bad: float, norm_type: float, foreach: Any) -> None:
    """Every gradient is zeroed in the same memory, so that a step taken all the same is harmless.

    torch's own function spreads the NaN to all of them.
    """
    ours = with_gradients(1)
    ours[1].grad[2] = bad
    before = [gradient.data_ptr() for gradient in gradients(ours)]
    found = clip_gradients(ours, 1.0, norm_type=norm_type, foreach=foreach)
    assert found.skip
    assert not math.isfinite(found.norm)
    assert all(gradient.count_nonzero() == 0 for gradient in gradients(ours))
    assert [gradient.data_ptr() for gradient in gradients(ours)] == before


@pytest.mark.parametrize("how", ["leave", "raise"])
def test_bad_gradients_can_be_kept_for_inspection(how: str) -> None:
    """They are bit-equal to before, also when an error is raised."""
    ours, kept = with_gradients(1), with_gradients(1)
    ours[1].grad[2] = kept[1].grad[2] = math.inf
    if how == "leave":
        assert clip_gradients(ours, 1.0, on_nonfinite="leave").skip
    else:
        with pytest.raises(NonfiniteGradient, match="norm of 5 gradients is inf: want a finite"):
            clip_gradients(ours, 1.0, error_if_nonfinite=True)
    assert same_bits(gradients(ours), gradients(kept))


def test_a_model_survives_a_bad_batch() -> None:
    """Skipping leaves parameters and momentum as they were; the next step is a usual one."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    skipped = []
    for nth in range(4):
        inputs = torch.full((3, 4), math.nan) if nth == 2 else torch.randn(3, 4)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        found = clip_gradients(model.parameters(), 1.0)
        skipped.append(found.skip)
        if not found.skip:
            optimizer.step()
    assert skipped == [False, False, True, False]
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("parameters", [[], [torch.zeros(2, requires_grad=True)]])
def test_no_gradients_have_the_norm_zero(parameters: list[Any]) -> None:
    """There is nothing to skip."""
    assert clip_gradients(parameters, 1.0) == Clipped(norm=0.0, skip=False)


def test_a_single_tensor_and_a_generator_will_do() -> None:
    """As with torch's own function."""
    ours = with_gradients(3)
    assert clip_gradients(ours[0], 0.5).norm == pytest.approx(
        float(with_gradients(3)[0].grad.norm())
    )
    assert clip_gradients((each for each in ours), 0.5).norm > 0.5
    assert float(torch.nn.utils.get_total_norm(gradients(ours))) == pytest.approx(0.5)


def test_a_sparse_gradient_is_refused() -> None:
    """The message says what to change; no gradient was touched."""
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    dense, kept = with_gradients(1, scale=100), with_gradients(1, scale=100)
    with pytest.raises(ValueError, match=r"torch\.sparse_coo: want strided; build the embedding"):
        clip_gradients([*dense, *embedding.parameters()], 1.0)
    assert same_bits(gradients(dense), gradients(kept))


@pytest.mark.parametrize("value", [0, -1.0, math.nan, True, "1"])
@pytest.mark.parametrize("name", ["max_norm", "norm_type"])
def test_a_limit_that_cannot_be_is_refused(name: str, value: object) -> None:
    """The message shows the argument."""
    arguments: dict[str, Any] = {"max_norm": 1.0, name: value}
    with pytest.raises(ValueError, match=f"{name}=.*: want a number above 0"):
        clip_gradients([], **arguments)


def test_an_unknown_way_is_refused() -> None:
    """Only two things can be done with bad gradients."""
    with pytest.raises(ValueError, match="want 'zero' or 'leave'"):
        clip_gradients([], 1.0, on_nonfinite="drop")  # type: ignore[arg-type]


class Waits(TorchDispatchMode):
    """Counts how often a value is taken from the device to the program."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("bad", [1.0, math.nan])
def test_the_device_is_waited_for_once(bad: float) -> None:
    """Whether or not the step is skipped; the counter sees a second wait when there is one."""
    ours = with_gradients(1)
    ours[0].grad[0, 0] = bad
    with Waits() as waits:
        clip_gradients(ours, 1.0, foreach=True)
    assert waits.count == 1
    with waits:
        bool(ours[0].grad.isnan().any())
    assert waits.count == 2


def in_two_ranks(store: Store, work: Callable[[int], bool]) -> list[int]:
    """Fork two ranks with a gloo group; give their statuses, 0 where the work said True."""
    pids = []
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                torch.set_num_threads(1)
                own = TorchStore(StoreClient(*parse_address(store.address)))
                dist.init_process_group(
                    "gloo", store=own, rank=rank, world_size=2, timeout=timedelta(seconds=20)
                )
                status = 0 if work(rank) else 2
                dist.barrier()
            finally:
                os._exit(status)
        pids.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


@pytest.mark.usefixtures("warmed")
def test_shards_of_a_group_are_clipped_as_one(store: Store) -> None:
    """Each rank holds one half, the second with an empty shard too: the norm is the whole's."""
    whole = with_gradients(7)

    def work(rank: int) -> bool:
        mine = whole[:2] if rank == 0 else whole[2:]
        twin = with_gradients(7)
        for norm_type in (2.0, math.inf):
            found = clip_gradients(mine, 0.5, norm_type=norm_type, group=dist.group.WORLD)
            norm = float(
                torch.nn.utils.clip_grad_norm_([p for p in twin if p.numel()], 0.5, norm_type)
            )
            if found.skip or not math.isclose(found.norm, norm, rel_tol=1e-6):
                return False
        theirs = gradients(twin[:2] if rank == 0 else twin[2:])
        return all(torch.allclose(a, b) for a, b in zip(gradients(mine), theirs, strict=True))

    assert in_two_ranks(store, work) == [0, 0]


@pytest.mark.usefixtures("warmed")
def test_a_bad_shard_on_one_rank_skips_the_step_on_all(store: Store) -> None:
    """For NaN and Inf, in the sum and in the maximum, and when the other rank holds nothing."""

    def work(rank: int) -> bool:
        for bad in (math.nan, math.inf):
            for norm_type in (2.0, math.inf):
                mine = with_gradients(rank)
                if rank == 1:
                    mine[0].grad[0, 0] = bad
                held = mine if rank == 1 or norm_type == 2.0 else []
                found = clip_gradients(held, 1.0, norm_type=norm_type, group=dist.group.WORLD)
                if not found.skip or (held and any(g.any() for g in gradients(mine))):
                    return False
        return not clip_gradients(with_gradients(rank), 1.0, group=dist.group.WORLD).skip

    assert in_two_ranks(store, work) == [0, 0]


@pytest.mark.usefixtures("warmed")
def test_a_norm_beyond_the_smaller_type_is_judged_alike(store: Store) -> None:
    """One rank's gradients are float16, the other's float32: the same number decides on both."""

    def work(rank: int) -> bool:
        parameter = torch.zeros(4, dtype=(torch.float16, torch.float32)[rank], requires_grad=True)
        parameter.grad = torch.full_like(parameter, 30_000.0)
        found = clip_gradients([parameter], 1.0, group=dist.group.WORLD)  # 8.5e4 is no float16
        return not found.skip and bool(parameter.grad.isfinite().all())

    assert in_two_ranks(store, work) == [0, 0]


@pytest.mark.usefixtures("warmed")
def test_dtensors_bring_their_own_group(store: Store) -> None:
    """Sharded as by FSDP2: the norm is the whole's, and a NaN in one shard skips on both ranks."""

    def work(rank: int) -> bool:
        from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 - in the rank
        from torch.distributed.tensor import Shard, distribute_tensor  # noqa: PLC0415

        mesh = init_device_mesh("cpu", (2,))
        whole = torch.arange(8.0)
        parameter = distribute_tensor(torch.zeros(8), mesh, [Shard(0)]).requires_grad_()
        parameter.grad = distribute_tensor(whole, mesh, [Shard(0)])
        found = clip_gradients([parameter], 1.0)
        mine = whole.chunk(2)[rank] / whole.norm()
        right = torch.allclose(parameter.grad.to_local(), mine, atol=1e-5)
        if rank == 1:
            parameter.grad.to_local()[0] = math.nan
        again = clip_gradients([parameter], 1.0)
        zeroed = not parameter.grad.to_local().any()
        return right and math.isclose(found.norm, float(whole.norm())) and again.skip and zeroed

    assert in_two_ranks(store, work) == [0, 0]
