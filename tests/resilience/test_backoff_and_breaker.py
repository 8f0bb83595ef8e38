"""Backoff spreads the retries; the breaker opens when, and only when, its limits are passed."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from chaoslab.resilience.backoff import Backoff
from chaoslab.resilience.breaker import CircuitBreaker


@given(
    base_s=st.floats(0.001, 1),
    factor=st.floats(1, 1000),
    seed=st.integers(),
    n=st.integers(0, 5000),
)
def test_a_wait_stays_within_its_range(base_s: float, factor: float, seed: int, n: int) -> None:
    """0 <= wait <= min(cap, base x 2^attempt), for any attempt number."""
    backoff = Backoff(base_s=base_s, cap_s=base_s * factor, seed=seed)
    limit_s = min(base_s * factor, base_s * 2 ** min(n, 40))
    assert 0 <= backoff.wait_s(n) <= limit_s
    assert backoff.wait_s(n) == backoff.wait_s(n)


def test_ranks_do_not_come_all_at_once() -> None:
    """Full jitter: a hundred seeds spread over the whole range."""
    waits = [Backoff(base_s=1, cap_s=1, seed=seed).wait_s(0) for seed in range(100)]
    assert min(waits) < 0.1
    assert max(waits) > 0.9


@pytest.mark.parametrize(("base_s", "cap_s"), [(0, 1), (2, 1), (-1, 1)])
def test_a_backoff_that_cannot_be_is_refused(base_s: float, cap_s: float) -> None:
    """The message shows what was given and what is wanted."""
    with pytest.raises(ValueError, match="want 0 < base_s"):
        Backoff(base_s=base_s, cap_s=cap_s)


def test_patience_counts_from_the_first_failure() -> None:
    """More failures do not prolong it; a completed step ends the downtime."""
    breaker = CircuitBreaker(patience_s=10, attempts=5)
    breaker.failed(100)
    breaker.failed(108)
    assert breaker.reason(109.9) is None
    assert breaker.left_s(108) == 2
    assert "down for" in str(breaker.reason(110))
    breaker.stepped(1)
    assert breaker.reason(200) is None
    assert breaker.left_s(200) == 10


def test_a_crash_at_the_same_step_is_no_progress() -> None:
    """Steps that were done before do not clear the failures: the circuit opens in the end."""
    breaker = CircuitBreaker(patience_s=1000, attempts=3)
    breaker.stepped(50)
    for now_s in range(4):
        assert breaker.reason(now_s) is None
        breaker.failed(now_s)
        breaker.stepped(41)
    assert "4 failures" in str(breaker.reason(5))


@given(st.lists(st.sampled_from(["failed", "stepped"]), max_size=60))
def test_a_job_that_progresses_after_each_failure_lives(moves: list[str]) -> None:
    """With a new highest step between failures, any number of failures is survived."""
    breaker = CircuitBreaker(patience_s=10, attempts=1)
    for step, move in enumerate(moves):
        if move == "failed":
            breaker.failed(step)
            assert breaker.reason(step) is None
        breaker.stepped(step)
    assert breaker.failures == 0


@pytest.mark.parametrize(("patience_s", "attempts"), [(0, 1), (1, 0)])
def test_a_breaker_that_cannot_be_is_refused(patience_s: float, attempts: int) -> None:
    """The message shows what was given and what is wanted."""
    with pytest.raises(ValueError, match="want patience_s > 0"):
        CircuitBreaker(patience_s=patience_s, attempts=attempts)
