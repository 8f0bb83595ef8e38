"""Faults of the disk that holds the checkpoints."""

from __future__ import annotations

import dataclasses

from chaoslab.faults.base import Fault


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiskFull(Fault):
    """The volume of the checkpoints is filled: a write to it fails with ENOSPC.

    It is filled once: what the job removes meanwhile, it may use again. Goes on `volume()`, of a
    `Job(disk_bytes=)`, since nothing of the machine's own disk is filled.
    """
