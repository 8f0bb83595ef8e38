"""A training state survives a save bit by bit; digests tell states apart."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from checkpoints import alone
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from chaoslab.resilience.state import (
    digest,
    load_training_state,
    random_states,
    set_random_states,
    training_state,
)


class Run:
    """A small training run with everything that has a state."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - the generator that is saved
        self.model = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 1)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=20)
        self.position = {"epoch": 0, "order": [3, 1, 2]}

    def step(self) -> float:
        """Train one step on numbers from all three generators."""
        scale = random.random() + np.random.random()  # noqa: NPY002 - as above
        loss = self.model(torch.rand(6, 4) * scale).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.position["epoch"] += 1
        return float(loss.detach())

    def state(self) -> dict[str, Any]:
        """Give its state."""
        return training_state(
            model=self.model,
            optimizer=self.optimizer,
            schedule=self.schedule,
            sampler_position=self.position,
        )

    def load(self, state: dict[str, Any]) -> None:
        """Put a state back."""
        self.position = load_training_state(
            state, model=self.model, optimizer=self.optimizer, schedule=self.schedule
        )


@pytest.mark.parametrize("kind", ["save", "async_save"])
def test_a_run_goes_on_bit_for_bit_from_a_checkpoint(kind: str, tmp_path: Path) -> None:
    """Model, optimizer, schedule, three generators, statistics, sampler: losses and all."""
    run = Run(seed=0)
    for _ in range(3):
        run.step()
    with alone(tmp_path) as saver:
        getattr(saver, kind)(3, run.state())
        expected = [run.step() for _ in range(5)]
    after = digest(run.state())
    resumed = Run(seed=77)
    resumed.load(alone(tmp_path).load(3))
    assert [resumed.step() for _ in range(5)] == expected
    assert digest(resumed.state()) == after


@pytest.mark.parametrize("part", ["python", "numpy", "torch"])
def test_a_run_without_one_of_its_random_states_goes_on_otherwise(
    part: str, tmp_path: Path
) -> None:
    """The test above would see it."""
    run = Run(seed=0)
    alone(tmp_path).save(1, run.state())
    expected = run.step()
    resumed = Run(seed=77)
    state = alone(tmp_path).load(1)
    state["per_rank"]["random"][part] = random_states()[part]
    resumed.load(state)
    assert resumed.step() != expected


def test_a_model_in_ddp_and_a_bare_one_have_the_same_state(tmp_path: Path) -> None:
    """A checkpoint of a distributed run loads without a process group, and the other way."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        run = Run(seed=0)
        bare = run.state()
        run.model = DistributedDataParallel(run.model)  # type: ignore[assignment]
        assert digest(run.state()["model"]) == digest(bare["model"])
        alone(tmp_path).save(1, run.state())
        run.load(alone(tmp_path).load(1))
    finally:
        dist.destroy_process_group()
    other = Run(seed=5)
    other.load(alone(tmp_path).load(1))
    assert digest(other.state()["model"]) == digest(bare["model"])


def test_shared_buffers_are_part_of_the_model() -> None:
    """A caller who knows them to be alike keeps them across sizes."""
    run = Run(seed=0)
    apart = training_state(model=run.model, optimizer=run.optimizer)
    shared = training_state(model=run.model, optimizer=run.optimizer, shared_buffers=True)
    names = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert set(apart["per_rank"]["buffers"]) == set(shared["model"]) - set(apart["model"]) == names
    del shared["per_rank"]
    load_training_state(shared, model=run.model, optimizer=run.optimizer, fresh_per_rank=True)
    del shared["model"]["1.running_var"]
    load_training_state(shared, model=run.model, optimizer=run.optimizer, fresh_per_rank=True)


def test_a_schedule_on_one_side_only_is_refused() -> None:
    """Both ways; nothing has been loaded by then."""
    run = Run(seed=0)
    without = training_state(model=run.model, optimizer=run.optimizer)
    before = digest(run.state())
    with pytest.raises(ValueError, match="schedule: one given, none saved"):
        run.load(without)
    with pytest.raises(ValueError, match="schedule: none given, one saved"):
        load_training_state(run.state(), model=run.model, optimizer=run.optimizer)
    assert digest(run.state()) == before


def test_a_model_of_another_shape_is_refused() -> None:
    """A missing parameter is torch's error, with its name."""
    run = Run(seed=0)
    state = run.state()
    del state["model"]["0.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key.*0\.weight"):
        run.load(state)


def test_random_states_survive_a_save_with_weights_only() -> None:
    """Python's, numpy's and torch's generators go on as if nothing had been saved."""
    file = io.BytesIO()
    torch.save(random_states(), file)
    expected = [random.random(), torch.rand(3).tolist()]
    file.seek(0)
    set_random_states(torch.load(file, weights_only=True))
    assert [random.random(), torch.rand(3).tolist()] == expected


def test_a_digest_is_the_same_for_the_same_bits_only() -> None:
    """One flipped bit, another shape, another type, another key: another digest."""
    weights = torch.arange(6, dtype=torch.float32)
    same = {"b": [weights.clone(), 1], "a": None}
    assert digest({"a": None, "b": (weights, 1)}) == digest(same)
    flipped = weights.clone()
    flipped.view(torch.uint8)[7] ^= 1
    others = [flipped, weights.view(2, 3), weights.double(), weights.view(torch.int32)]
    digests = {digest({"a": None, "b": [other, 1]}) for other in [weights, *others]}
    assert len(digests) == len(others) + 1
    assert digest({"a": 1}) != digest({"b": 1})
