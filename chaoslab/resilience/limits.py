"""Limits: how long a runner waits for what, and how often it tries."""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The runner's time limits, in seconds, and its number of attempts.

    timeout_s: of every collective and store call; a silent peer is noticed after it. A dist.send or
    dist.recv waits a fifth of it: dist.irecv(...).wait(limit) has its own limit. patience_s: how
    long to wait for all ranks to gather, from the notice of a loss; then the circuit opens.
    attempts: failures without a healthy stretch in between, of healthy_steps new steps in a row.
    start_patience_s: how long the first start waits for all ranks. teardown_s: limit for destroying
    a group, beyond the timeout_s that a collective in it may still take. exit_s: limit for leaving
    the process. failed_saves: failed saves in a row that training goes on through.
    """

    timeout_s: float = 10.0
    patience_s: float = 60.0
    attempts: int = 10
    start_patience_s: float = 120.0
    teardown_s: float = 5.0
    exit_s: float = 3.0
    failed_saves: int = 3
    healthy_steps: int = 10

    @property
    def destroy_s(self) -> float:
        """How long destroying a group may take before it counts as hung.

        A collective that is still under way may take its own timeout.
        """
        return self.timeout_s + self.teardown_s

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: ValueError."""
        least = {"attempts": 1, "failed_saves": 0, "healthy_steps": 1}
        for name, value in dataclasses.asdict(self).items():
            whole = isinstance(value, int) and not isinstance(value, bool)
            if name in least and not (whole and value >= least[name]):
                raise ValueError(
                    f"Limits({name}={value!r}): want a whole number, at least {least[name]}"
                )
            if name not in least and (isinstance(value, bool) or not 0 < value < math.inf):
                raise ValueError(f"Limits({name}={value!r}): want seconds, above 0 and finite")
