"""Backoff: how long to wait before the next attempt, so that ranks do not all come at once."""

from __future__ import annotations

import dataclasses
import random


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backoff:
    """Exponential backoff with full jitter: a random wait in [0, min(cap, base x 2^attempt)].

    base_s: range of the first wait. cap_s: no wait is longer. seed: two backoffs of the same
    seed wait alike; give each rank its own.

    Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    """

    base_s: float = 0.05
    cap_s: float = 2.0
    seed: int = 0

    @classmethod
    def for_world(cls, world_size: int, *, rank: int) -> Backoff:
        """Make the backoff of one rank of many: the more there are, the longer its waits.

        The first wait is drawn from world_size / 32 seconds, so that ranks that fail at the same
        moment come back at some 3 in 100 ms on average, whatever their number.
        """
        if world_size < 1:
            raise ValueError(f"Backoff.for_world({world_size}): want world_size >= 1")
        base_s = max(0.05, world_size / 32)
        return cls(base_s=base_s, cap_s=max(2.0, 4 * base_s), seed=rank)

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: ValueError."""
        if not 0 < self.base_s <= self.cap_s:
            raise ValueError(
                f"Backoff(base_s={self.base_s}, cap_s={self.cap_s}): want 0 < base_s <= cap_s"
            )

    def wait_s(self, attempt: int) -> float:
        """Give the wait before the attempt of this 0-based number, in seconds."""
        # 2.0 ** 1024 overflows; beyond 2^60 any base has long reached any cap.
        limit_s = min(self.cap_s, self.base_s * 2.0 ** min(attempt, 60))
        generator = random.Random(f"{self.seed}/{attempt}")  # noqa: S311 - spread, not secret
        return generator.uniform(0.0, limit_s)
