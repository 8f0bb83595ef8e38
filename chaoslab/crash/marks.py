"""Marks: how what is recorded tells which saves have begun and returned, line by line."""

from __future__ import annotations

import re
from typing import Final

from chaoslab.crash.operations import Acknowledged, Begun, Operation

_OWN: Final = re.compile(rb"([BA]) (\d+)")
ANY_STEP: Final = 1 << 62
"""Begun by a program that does not say what it begins: whatever it saves may be there."""


class Marks:
    """Reads what is written to one file.

    pattern: found in a line that acknowledges a step, which is its first group; None: lines "B 3"
    (the save of step 3 begins) and "A 3" (it has returned).

    Raises: ValueError for a pattern that is none, or has no group.
    """

    def __init__(self, pattern: str | None = None) -> None:
        self._rest = b""
        self._pattern: re.Pattern[bytes] | None = None
        if pattern is not None:
            try:
                self._pattern = re.compile(pattern.encode())
            except re.error as error:
                raise ValueError(f"{pattern!r}: {error}: want a regular expression") from None
            if self._pattern.groups < 1:
                raise ValueError(f"{pattern!r}: want a group for the step, as in 'saved (\\d+)'")

    def read(self, data: bytes) -> list[Operation]:
        """Take what was written; give what its whole lines tell."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = (self._of(line) for line in lines)
        return [operation for operation in found if operation is not None]

    def _of(self, line: bytes) -> Operation | None:
        if self._pattern is not None:
            told = self._pattern.search(line)
            return Acknowledged(step=int(told[1])) if told else None
        own = _OWN.fullmatch(line)
        if own is None:
            return None
        return Begun(step=int(own[2])) if own[1] == b"B" else Acknowledged(step=int(own[2]))
