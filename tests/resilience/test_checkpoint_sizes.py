"""Another number of ranks loads what is the same on every rank, and never what is one rank's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import alone, flip_a_bit, manager, names, save_all

from chaoslab.resilience import load_training_state, training_state
from chaoslab.resilience.errors import CheckpointCorrupt, CheckpointError
from chaoslab.resilience.state import digest


def model_of(rank: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Build a model that is alike on all ranks but for its running statistics."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    model[1].running_mean.fill_(rank)
    return model, optimizer


def save_job(directory: Path, step: int, world_size: int) -> None:
    """Save a job of this size, each rank its own part."""

    def one(rank: int) -> None:
        state = states[rank]
        manager(directory, rank, world_size=world_size).save(step, state, attempt=f"of{world_size}")

    states = []
    for rank in range(world_size):
        model, optimizer = model_of(rank)
        states.append(training_state(model=model, optimizer=optimizer, sampler_position=rank))
    with ThreadPoolExecutor(world_size) as pool:
        list(pool.map(one, range(world_size)))


@pytest.mark.parametrize(("saved", "now"), [(2, 5), (3, 1), (1, 2)])
def test_a_job_of_another_size_gets_what_is_the_same_everywhere(
    saved: int, now: int, tmp_path: Path
) -> None:
    """More ranks or fewer: parameters and optimizer on each, and nothing of one rank's own."""
    save_job(tmp_path, 7, saved)
    model, optimizer = model_of(0)
    whole = training_state(model=model, optimizer=optimizer)
    for rank in range(now):
        loader = manager(tmp_path, rank, world_size=now)
        assert loader.survey(any_world_size=True).steps == (7,)
        found = loader.latest(any_world_size=True)
        assert found is not None
        assert (found.step, found.world_size) == (7, saved)
        state = loader.load(7, any_world_size=True)
        assert set(state) == {"model", "optimizer", "schedule"}
        assert digest(state["model"]) == digest(whole["model"])
        assert digest(state["optimizer"]) == digest(whole["optimizer"])


def test_what_is_one_ranks_own_is_refused_unless_it_may_be_fresh(tmp_path: Path) -> None:
    """Nobody goes on with another rank's random numbers or statistics by mistake."""
    save_job(tmp_path, 7, 2)
    state = alone(tmp_path).load(7, any_world_size=True)
    model, optimizer = model_of(5)
    for parameter in model.parameters():
        parameter.data.zero_()
    torch.manual_seed(99)
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="fresh_per_rank=True"):
        load_training_state(state, model=model, optimizer=optimizer)
    assert float(model[0].weight.detach().abs().sum()) == 0
    told = load_training_state(state, model=model, optimizer=optimizer, fresh_per_rank=True)
    assert told is None
    assert torch.equal(torch.get_rng_state(), before)
    assert digest(model[0].state_dict()) == digest(model_of(0)[0][0].state_dict())
    assert float(model[1].running_mean[0]) == 5


def test_the_same_size_gets_everything_however_it_asks(tmp_path: Path) -> None:
    """any_world_size takes nothing away where the size is the same."""
    save_job(tmp_path, 7, 2)
    for rank in range(2):
        loader = manager(tmp_path, rank, world_size=2)
        state = loader.load(7, any_world_size=True)
        assert digest(state) == digest(loader.load(7))
        model, optimizer = model_of(9)
        assert load_training_state(state, model=model, optimizer=optimizer) == rank
        assert float(model[1].running_mean[0]) == rank


def test_another_size_is_refused_unless_it_is_asked_for(tmp_path: Path) -> None:
    """By every call, with both sizes in the reason; it does not count as damaged."""
    save_job(tmp_path, 7, 2)
    loader = alone(tmp_path, keep=2)
    with pytest.warns(RuntimeWarning, match="shards of 2 ranks: want 1"):
        assert loader.latest() is None
    survey = loader.survey()
    assert survey.steps == ()
    assert "shards of 2 ranks: want 1" in survey.refused[0].reason
    with pytest.raises(CheckpointCorrupt, match="shards of 2 ranks: want 1"):
        loader.load(7)
    loader.save(8, {"a": 1})
    assert names(tmp_path) == ["step-00000007", "step-00000008"]


def test_a_state_that_does_not_say_what_is_per_rank_is_refused(tmp_path: Path) -> None:
    """Otherwise several ranks would go on with the same random numbers, silently."""
    save_all(tmp_path, 1, ranks=2, world_size=2)
    with pytest.raises(CheckpointError, match="does not say what is one rank's own") as told:
        alone(tmp_path).load(1, any_world_size=True)
    assert not isinstance(told.value, CheckpointCorrupt)


def test_a_damaged_shard_of_another_size_is_refused(tmp_path: Path) -> None:
    """The rank that would read it refuses it, and so does whoever reads all."""
    save_job(tmp_path, 6, 2)
    save_job(tmp_path, 7, 2)
    flip_a_bit(tmp_path / "step-00000007", 1)
    steps: dict[int, Any] = {
        rank: manager(tmp_path, rank, world_size=4).survey(any_world_size=True).steps
        for rank in range(4)
    }
    assert steps == {0: (7, 6), 1: (6,), 2: (7, 6), 3: (6,)}
    found = alone(tmp_path).latest(any_world_size=True)
    assert found is not None
    assert found.step == 6
    with pytest.raises(CheckpointCorrupt, match="does not have the digest"):
        manager(tmp_path, 3, world_size=4).load(7, any_world_size=True)
