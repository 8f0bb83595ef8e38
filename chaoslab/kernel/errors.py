"""The error of this package."""

from chaoslab.errors import HarnessError


class KernelError(HarnessError):
    """A user-mode kernel could not start, or stopped before the command had ended.

    The text says what was asked, what was seen (with the last console lines where there are
    any) and the command that mends it.
    """
