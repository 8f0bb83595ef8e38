"""Failures: telling a lost peer from an error in the user's own code."""

from __future__ import annotations

import dataclasses
import re
from typing import Final

import torch.distributed as dist

from chaoslab.resilience.errors import CheckpointCorrupt, GroupLost, RendezvousFailed, StoreError
from chaoslab.resilience.group import Group

GLOO: Final = re.compile(
    r"gloo/|Gloo connectFullMesh|Timed out waiting \d+ms for"
    r"|Application timeout caused pair closure"
    r"|(?:Read error|Write error|Connection closed by peer|Socket closed) \[[0-9a-fA-F.:]+\]:\d"
)
"""How gloo words a lost peer, whose address it adds: torch raises these as plain RuntimeError.

Source: third_party/gloo/gloo/transport/tcp/pair.cc and unbound_buffer.cc.
"""

MESSAGE_CHARACTERS: Final = 500


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """A communication failure: what was raised, and whom it blames, where that is known.

    silent_ranks: those whose hosts acknowledged nothing. is_news: this rank found out by itself,
    so the others may not know yet.
    """

    error_type: str
    message: str
    blamed_rank: int | None = None
    silent_ranks: tuple[int, ...] = ()
    is_news: bool = True


def of(error: BaseException, group: Group | None) -> Failure | None:
    """Read an error as a communication failure of this group; None when it is the user's own."""
    known = (GroupLost, RendezvousFailed, StoreError, CheckpointCorrupt, dist.DistError)
    if not isinstance(error, known) and not (
        isinstance(error, RuntimeError) and GLOO.search(str(error))
    ):
        return None
    lost = group.lost if group is not None else None
    message = str(error) if lost is None or lost in str(error) else f"{lost}; {error}"
    blamed = None if group is None else group.blamed_rank
    if group is not None and lost is None:  # else this rank cut the connection itself
        blamed = group.blame(message)
    silent = () if group is None else group.silent_ranks
    if blamed is None and lost is None and len(silent) == 1:
        blamed = silent[0]
    return Failure(
        error_type=type(error).__name__,
        message=message[:MESSAGE_CHARACTERS],
        blamed_rank=blamed,
        silent_ranks=silent,
        is_news=lost is None or "moved on" not in lost,
    )
