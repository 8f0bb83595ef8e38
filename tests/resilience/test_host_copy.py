"""The copy in host memory that a save in the background writes from."""

from __future__ import annotations

import copy
import io
from collections import OrderedDict
from typing import Any

import torch
from checkpoints import on_disk
from hypothesis import given, strategies as st

from chaoslab.resilience.snapshot import HostCopy
from chaoslab.resilience.state import digest


def storage_bytes(state: Any) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


Leaves = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.floats(allow_nan=False),
    st.integers(0, 5).map(lambda n: torch.arange(float(n))),
    st.just(torch.eye(3).t()),
    st.just(torch.arange(10)[3:7]),
    st.just(torch.eye(2).to_sparse()),
    st.builds(lambda: torch.nn.Parameter(torch.ones(2))),
    st.builds(bytearray),
)
States = st.recursive(
    Leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=4),
        st.dictionaries(st.integers(), inner, max_size=4).map(OrderedDict),
    ),
    max_leaves=12,
)


@on_disk
@given(States, States)
def test_a_copy_is_bit_for_bit_the_state(first: Any, second: Any) -> None:
    """Whatever was copied into the same memory before."""
    host = HostCopy()
    for state in (first, second, first):
        copied = host.take(state)
        assert storage_bytes(copied) == storage_bytes(state)
        assert type(copied) is type(state)


def test_a_lazily_conjugated_tensor_is_copied_as_what_it_stands_for() -> None:
    """Its memory holds the other sign; the copy, and the digest, are of the value."""
    number = torch.tensor([1 + 2j])
    copied = HostCopy().take([number.conj()])
    number.zero_()
    assert torch.equal(copied[0], torch.tensor([1 - 2j]))
    assert digest(copied[0]) == digest(torch.tensor([1 + 2j]).conj()) != digest(copied[0].conj())


def shared_state() -> dict[str, Any]:
    base = torch.arange(12.0)
    inner = {"x": torch.ones(3)}
    return {
        "whole": base,
        "view": base.view(3, 4).t(),
        "tail": base[8:],
        "twice": [inner, inner],
        "model": torch.nn.Linear(2, 2).state_dict(),
    }


def test_a_copy_shares_within_what_the_state_shares_within() -> None:
    """torch.save writes the same bytes of both: a tied weight is stored once."""
    state = shared_state()
    copied = HostCopy().take(state)
    assert storage_bytes(copied) == storage_bytes(state)
    copied["whole"][0] = 7
    assert copied["view"][0, 0] == 7
    assert copied["model"]._metadata == state["model"]._metadata


def test_a_copy_shares_nothing_with_the_state() -> None:
    """Changing every tensor and container of the live state leaves the copy as it was."""
    state = shared_state()
    before = digest(state)
    copied = HostCopy().take(state)
    for tensor in (state["whole"], state["twice"][0]["x"], *state["model"].values()):
        tensor.add_(1)
    state["twice"].append(None)
    state["model"].clear()
    assert digest(copied) == before


def test_the_memory_of_a_copy_is_used_again() -> None:
    """The same sizes: the same addresses; other sizes: other memory for these only."""
    host = HostCopy()
    state = {"a": torch.ones(100), "b": torch.ones(200)}
    first = {name: tensor.data_ptr() for name, tensor in host.take(state).items()}
    state = {name: tensor + 1 for name, tensor in state.items()}
    second = host.take(state)
    assert {name: tensor.data_ptr() for name, tensor in second.items()} == first
    assert digest(second) == digest(state)
    state["a"] = torch.ones(300)
    third = host.take(copy.deepcopy(state))
    assert third["b"].data_ptr() == first["b"]
    assert digest(third) == digest(state)
