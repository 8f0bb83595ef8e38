"""Backoff spreads the retries; the breaker opens when, and only when, its limits are passed."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any

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


RANKS, BIN_S = 16, 0.1
PEAK = 6
"""Most of 16 ranks that may come within 100 ms, where waits spread over 2 s: 0.8 are expected."""


def peak(arrivals_s: list[float]) -> int:
    """Give the most arrivals in any bin of 100 ms."""
    return max(Counter(int(t_s / BIN_S) for t_s in arrivals_s).values())


def arrivals_s(job: int, attempts: int, wait_s: Callable[[Backoff, int], float]) -> list[float]:
    """Give when each rank of a job makes its last of several attempts after a common failure."""
    ranks = [Backoff(base_s=0.05, cap_s=2.0, seed=job * RANKS + rank) for rank in range(RANKS)]
    return [sum(wait_s(rank, nth) for nth in range(attempts)) for rank in ranks]


def test_sixteen_ranks_that_fail_at_once_come_back_spread() -> None:
    """Over 200 jobs, attempts that have reached the cap peak at 6 of 16 ranks per 100 ms."""
    for job in range(200):
        for attempts in (6, 7, 8, 12):
            assert peak(arrivals_s(job, attempts, Backoff.wait_s)) <= PEAK
        ranks = range(job * RANKS, (job + 1) * RANKS)
        assert peak([Backoff(base_s=2, cap_s=2, seed=seed).wait_s(0) for seed in ranks]) <= PEAK


def test_ranks_that_may_not_wait_so_long_are_spread_all_the_same() -> None:
    """A short patience cuts the range that is drawn from: nobody waits for its end with others."""
    waits = [Backoff.for_world(256, rank=rank).wait_s(3, most_s=1.0) for rank in range(256)]
    assert max(waits) < 1.0
    peak = max(sum(start <= wait < start + 0.1 for wait in waits) for start in waits)
    assert peak < 50, "of 256 in 100 ms, where an even spread has 26"


def test_without_jitter_all_come_at_once() -> None:
    """The planted fault: waits of the same ranges without jitter put 16 of 16 into one bin."""
    assert peak(arrivals_s(0, 8, Backoff.range_s)) == RANKS


@given(
    base_s=st.floats(1e-9, 1e3),
    factor=st.floats(1, 1e9),
    first=st.integers(0, 2000) | st.integers(0, 10**30),
    more=st.integers(0, 2000),
)
def test_ranges_never_shrink_and_end_at_the_cap(
    base_s: float, factor: float, first: int, more: int
) -> None:
    """From base_s on they double until they are the cap, also for huge numbers of attempts."""
    backoff = Backoff(base_s=base_s, cap_s=base_s * factor)
    assert backoff.range_s(0) == base_s
    assert base_s <= backoff.range_s(first) <= backoff.range_s(first + more) <= backoff.cap_s
    assert backoff.range_s(first + 5000) == backoff.cap_s
    assert 0 <= backoff.wait_s(first) <= backoff.range_s(first)
    assert backoff.range_s(first + 1) in (2 * backoff.range_s(first), backoff.cap_s)


@given(seed=st.integers(), other=st.integers(), n=st.integers(0, 100))
def test_waits_are_those_of_the_seed(seed: int, other: int, n: int) -> None:
    """Equal seeds wait alike in any order and process; different ones differ."""
    mine, again = Backoff(seed=seed), Backoff(seed=seed)
    assert [mine.wait_s(k) for k in (n, 0)] == [again.wait_s(k) for k in (0, n)][::-1]
    assert (mine.wait_s(n) == Backoff(seed=other).wait_s(n)) == (seed == other)


def test_waits_are_the_same_in_every_process() -> None:
    """They depend on nothing but the seed: these were drawn once and for all."""
    drawn = [round(Backoff(seed=3).wait_s(n), 6) for n in range(4)]
    assert drawn == [0.025944, 0.057743, 0.130784, 0.389264]


def test_the_mean_is_half_the_range() -> None:
    """Full jitter is uniform: the mean of 2000 seeds is within 5 standard errors."""
    waits = [Backoff(base_s=1, cap_s=1, seed=seed).wait_s(0) for seed in range(2000)]
    assert abs(statistics.fmean(waits) - 0.5) < 5 * (1 / 12) ** 0.5 / 2000**0.5


@pytest.mark.parametrize(
    "values",
    [
        {"base_s": 0, "cap_s": 1},
        {"base_s": 2, "cap_s": 1},
        {"base_s": -1, "cap_s": 1},
        {"base_s": math.nan, "cap_s": 1},
        {"base_s": 1, "cap_s": math.nan},
        {"base_s": 1, "cap_s": math.inf},
        {"base_s": math.inf, "cap_s": math.inf},
        {"base_s": True, "cap_s": 1},
        {"base_s": 1, "cap_s": True},
        {"seed": True},
        {"seed": 1.5},
        {"seed": None},
    ],
)
def test_a_backoff_that_cannot_be_is_refused(values: dict[str, Any]) -> None:
    """The message shows what was given and what is wanted."""
    with pytest.raises(ValueError, match=r"Backoff\(base_s=.*want 0 < base_s <= cap_s"):
        Backoff(**values)


@pytest.mark.parametrize("attempt", [-1, True])
def test_an_attempt_before_the_first_is_refused(attempt: int) -> None:
    """Numbers of attempts begin at 0."""
    with pytest.raises(ValueError, match=f"attempt {attempt}: want 0 for the first"):
        Backoff().wait_s(attempt)


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


@given(st.lists(st.integers(0, 12), min_size=1, max_size=30), st.integers(1, 6), st.integers(1, 4))
def test_a_healthy_stretch_gives_all_attempts_back(
    stretches: list[int], healthy_steps: int, attempts: int
) -> None:
    """Some new steps, then a failure, again and again: shorter stretches use the attempts up."""
    breaker = CircuitBreaker(patience_s=10, attempts=attempts, healthy_steps=healthy_steps)
    step, in_a_row = 0, 0
    for stretch in stretches:
        for _ in range(stretch):
            step += 1
            breaker.stepped(step)
        in_a_row = 1 if stretch >= healthy_steps else in_a_row + 1
        breaker.failed(0)
        assert breaker.failures == in_a_row
        assert (breaker.reason(1) is None) == (in_a_row <= attempts)
        breaker.gathered()


@pytest.mark.parametrize(
    ("patience_s", "attempts", "healthy_steps"),
    [(0, 1, 1), (1, 0, 1), (float("nan"), 1, 1), (1, 1, 0)],
)
def test_a_breaker_that_cannot_be_is_refused(
    patience_s: float, attempts: int, healthy_steps: int
) -> None:
    """The message shows what was given and what is wanted."""
    with pytest.raises(ValueError, match="want patience_s > 0"):
        CircuitBreaker(patience_s=patience_s, attempts=attempts, healthy_steps=healthy_steps)
