"""CircuitBreaker: when to give up. Pure: it is told the time, it waits for nothing."""

from __future__ import annotations

from typing import Final

CIRCUIT_OPEN_STATUS: Final = 75
"""Exit status of a rank that has given up: a scheduler should not restart it as it is.

Source: sysexits.h, EX_TEMPFAIL.
"""


class CircuitBreaker:
    """Counts the failures and the downtime of one job; open means: give up.

    patience_s: longest time from the loss of a group until all ranks have gathered again, connected
    or not: it is for peers that do not come. attempts: most failures without a healthy stretch in
    between: it is for peers that do come and fail again, as on a lossy link. healthy_steps: a
    stretch, of so many steps in a row beyond the highest one before; steps that are done again are
    no progress, or a crash at the same step would be retried for ever.
    """

    def __init__(self, *, patience_s: float, attempts: int, healthy_steps: int = 10) -> None:
        if not patience_s > 0 or attempts < 1 or healthy_steps < 1:
            raise ValueError(
                f"CircuitBreaker(patience_s={patience_s}, attempts={attempts}, "
                f"healthy_steps={healthy_steps}): want patience_s > 0, attempts >= 1 and "
                "healthy_steps >= 1"
            )
        self.patience_s = patience_s
        self.attempts = attempts
        self.healthy_steps = healthy_steps
        self.failures = 0
        self._new_steps = 0
        self._down_since_s: float | None = None
        self._highest_step = -1

    def failed(self, now_s: float) -> None:
        """Note a failure; downtime begins with the first one."""
        self.failures += 1
        self._new_steps = 0
        if self._down_since_s is None:
            self._down_since_s = now_s

    def gathered(self) -> None:
        """Note that all ranks have come together again: downtime ends, failures still count."""
        self._down_since_s = None

    def stepped(self, step: int) -> None:
        """Note a completed step: downtime ends; a stretch of new ones also clears the failures."""
        self._down_since_s = None
        if step > self._highest_step:
            self._highest_step = step
            self._new_steps += 1
            if self._new_steps >= self.healthy_steps:
                self.failures = 0

    def left_s(self, now_s: float) -> float:
        """Give what is left of the patience in seconds, never below 0."""
        if self._down_since_s is None:
            return self.patience_s
        return max(0.0, self._down_since_s + self.patience_s - now_s)

    def reason(self, now_s: float) -> str | None:
        """Say why the circuit is open, or give None while it is closed."""
        if self.failures > self.attempts:
            return (
                f"{self.failures} failures without {self.healthy_steps} new steps in a row: "
                f"want at most {self.attempts}"
            )
        if self._down_since_s is not None and self.left_s(now_s) <= 0:
            return f"down for {now_s - self._down_since_s:.1f} s: want at most {self.patience_s} s"
        return None
