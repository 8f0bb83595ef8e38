"""Random states survive a save; digests tell states apart bit by bit."""

from __future__ import annotations

import io
import random

import torch

from chaoslab.resilience.state import digest, random_states, set_random_states


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
