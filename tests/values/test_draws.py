"""Targets that are drawn: the seed alone decides."""

from hypothesis import given, strategies as st

from chaoslab.schedule import drawn_ranks, ranks


@given(st.integers(), st.integers(1, 64), st.data())
def test_a_seed_draws_the_same_ranks_always(seed, world_size, data) -> None:
    """The same seed, place and world size give the same, valid, distinct ranks."""
    count = data.draw(st.integers(1, world_size))
    first = drawn_ranks(ranks(count), world_size=world_size, seed=seed, nth=0)
    again = drawn_ranks(ranks(count), world_size=world_size, seed=seed, nth=0)
    assert first == again
    assert len(set(first)) == count
    assert all(0 <= rank < world_size for rank in first)


def test_another_seed_draws_other_ranks() -> None:
    """Seeds matter: a hundred of them do not all draw the same rank of sixteen."""
    drawn = {drawn_ranks(ranks(1), world_size=16, seed=seed, nth=0) for seed in range(100)}
    assert len(drawn) > 8
