"""What a training job uses to survive: usable without the rest of chaoslab.

Names are imported when first used, so that the store's process never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaoslab.resilience.backoff import Backoff
    from chaoslab.resilience.breaker import CIRCUIT_OPEN_STATUS, CircuitBreaker
    from chaoslab.resilience.checkpoint import AtomicCheckpointManager
    from chaoslab.resilience.client import StoreClient
    from chaoslab.resilience.clipping import Clipped, clip_gradients
    from chaoslab.resilience.configure import configure_gloo, configure_nccl
    from chaoslab.resilience.configured import Configured
    from chaoslab.resilience.errors import CircuitOpen
    from chaoslab.resilience.existing_store import ExistingStoreClient
    from chaoslab.resilience.limits import Limits
    from chaoslab.resilience.runner import FaultTolerantRunner
    from chaoslab.resilience.state import load_training_state, training_state
    from chaoslab.resilience.task import Task
    from chaoslab.resilience.torch_store import TorchStore

_MODULES = {
    "AtomicCheckpointManager": "checkpoint",
    "Backoff": "backoff",
    "CIRCUIT_OPEN_STATUS": "breaker",
    "CircuitBreaker": "breaker",
    "CircuitOpen": "errors",
    "Clipped": "clipping",
    "Configured": "configured",
    "ExistingStoreClient": "existing_store",
    "FaultTolerantRunner": "runner",
    "Limits": "limits",
    "StoreClient": "client",
    "Task": "task",
    "TorchStore": "torch_store",
    "load_training_state": "state",
    "training_state": "state",
    "clip_gradients": "clipping",
    "configure_gloo": "configure",
    "configure_nccl": "configure",
}

__all__ = [
    "CIRCUIT_OPEN_STATUS",
    "AtomicCheckpointManager",
    "Backoff",
    "CircuitBreaker",
    "CircuitOpen",
    "Clipped",
    "Configured",
    "ExistingStoreClient",
    "FaultTolerantRunner",
    "Limits",
    "StoreClient",
    "Task",
    "TorchStore",
    "clip_gradients",
    "configure_gloo",
    "configure_nccl",
    "load_training_state",
    "training_state",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used. Raises: AttributeError."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
