"""charlm, but over torch's own TCPStore in place of the library's store.

Both ends of every connection of torch's store ask the name service for the other's name, the
server in its only thread: where that does not answer, all wait 5 s.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import charlm
import torch.distributed as dist

from chaoslab.resilience.existing_store import ExistingStoreClient

RESOLVER = "timeout:1 attempts:1"


def existing(host: str, port: int, *, timeout_s: float, **_: Any) -> ExistingStoreClient:
    """Give a client of the TCPStore there."""
    store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout_s))
    return ExistingStoreClient(store, timeout_s=timeout_s)


if __name__ == "__main__":
    os.environ["RES_OPTIONS"] = RESOLVER
    charlm.StoreClient = existing  # type: ignore[assignment,misc]
    sys.exit(charlm.main())
