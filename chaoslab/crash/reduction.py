"""Reduction: the fewest losses that still fail, tried one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chaoslab.crash.models import Crash, Loss, Model
from chaoslab.crash.operations import Operation


def reduced(
    crash: Crash,
    operations: Sequence[Operation],
    model: Model,
    fails: Callable[[Crash], bool],
) -> Crash:
    """Take losses away, in pieces and one by one, as long as it is allowed and still fails.

    fails: builds and checks a state; one that cannot be built does not fail. A list in which no
    single loss can be spared is left. Source: Zeller and Hildebrandt, "Simplifying and Isolating
    Failure-Inducing Input" (2002), algorithm ddmin.
    """
    losses, pieces = list(crash.losses), 2
    while len(losses) > 1:
        length = -(-len(losses) // pieces)
        for begin in range(0, len(losses), length):
            rest = losses[:begin] + losses[begin + length :]
            if _still(rest, crash, operations, model, fails):
                losses, pieces = rest, max(pieces - 1, 2)
                break
        else:
            if pieces >= len(losses):
                break
            pieces = min(len(losses), pieces * 2)
    if losses and _still([], crash, operations, model, fails):
        losses = []
    return Crash(after=crash.after, losses=tuple(losses))


def _still(
    losses: Sequence[Loss],
    crash: Crash,
    operations: Sequence[Operation],
    model: Model,
    fails: Callable[[Crash], bool],
) -> bool:
    candidate = Crash(after=crash.after, losses=tuple(losses))
    return model.allows(operations, candidate) and fails(candidate)
