"""Interference: what to do to one call of a recording, in place of watching it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kill:
    """Kill every process, with SIGKILL, when call `at` (0-based) is about to begin.

    first: called before that, with that thread stopped; others may be anywhere.
    """

    at: int
    first: Callable[[], None] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tear:
    """Let call `at`, a write, write only so many bytes, then kill every process."""

    at: int
    kept_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fail:
    """Have call `at` fail with an errno, and not happen."""

    at: int
    errno: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lie:
    """Have call `at` say that it was done, and not happen."""

    at: int


Interference = Kill | Tear | Fail | Lie
