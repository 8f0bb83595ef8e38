"""Every error that resilience raises, in one place."""

from __future__ import annotations


class ResilienceError(Exception):
    """Base of all errors of this library."""


class StoreError(ResilienceError):
    """The store refused a request or gave an answer that cannot be read."""


class StoreTimeout(StoreError, TimeoutError):
    """No answer from the store within the caller's deadline."""


class CheckpointError(ResilienceError):
    """A checkpoint could not be saved or loaded; earlier checkpoints are untouched."""


class CheckpointWriteFailed(CheckpointError):
    """This rank could not write its part (full disk, read-only directory)."""


class SaveAbandoned(CheckpointError):
    """A peer failed, or did not deliver its part within the deadline."""


class SaveTimedOut(SaveAbandoned):
    """A peer said nothing of its part within the deadline: it may be gone."""


class CheckpointCorrupt(CheckpointError):
    """A checkpoint does not hold what its manifest promises."""


class GroupLost(ResilienceError):
    """The process group is gone: a peer was lost, or the job moved on to a new generation."""


class RendezvousFailed(ResilienceError):
    """Not every rank joined the generation in time."""


class ConfigurationDiffers(ResilienceError):
    """What is in force is not what was configured; the message names every difference."""


class DeprecatedVariable(UserWarning):
    """A deprecated environment variable was found; its value has been moved to the current one."""


class NonfiniteGradient(ResilienceError):
    """The norm of the gradients is NaN or infinite; they are as they were."""


class CircuitOpen(SystemExit):
    """The job has given up; the process ends with CIRCUIT_OPEN_STATUS.

    Where this is caught, it ends all the same, once the runner's exit_s and teardown_s are over.
    """

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(status)
        self.reason = reason
