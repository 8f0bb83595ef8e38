"""The error of this package."""


class KernelError(Exception):
    """A user-mode kernel could not start, or stopped before the command had ended.

    The text says what was asked, what was seen (with the last console lines where there are
    any) and the command that mends it.
    """
