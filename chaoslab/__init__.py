"""chaoslab: break a distributed PyTorch job on purpose, measure how it recovers, judge it.

Names are imported when they are first used: a training process that imports only
`chaoslab.probe`, or a node that runs only `chaoslab.agent`, loads nothing of the harness.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaoslab import bounds, faults
    from chaoslab.bounds import Verdict
    from chaoslab.errors import (
        BoundExceeded,
        ChaoslabError,
        HarnessError,
        InvalidScenario,
        NotAvailable,
        NotProven,
    )
    from chaoslab.options import Options
    from chaoslab.report import Report
    from chaoslab.runner import run
    from chaoslab.scenario import NEVER, Job, RestartPolicy, Scenario, on_failure
    from chaoslab.schedule import (
        Injection,
        after,
        agent_of,
        at_step,
        between,
        during_save,
        everywhere,
        node,
        on_event,
        one_rank,
        rank,
        ranks,
        store,
        when_healed,
        while_recovering,
    )

__version__ = "0.1.0"

_HOMES = {
    "chaoslab.bounds": ("Verdict",),
    "chaoslab.errors": (
        "BoundExceeded",
        "ChaoslabError",
        "HarnessError",
        "InvalidScenario",
        "NotAvailable",
        "NotProven",
    ),
    "chaoslab.options": ("Options",),
    "chaoslab.report": ("Report",),
    "chaoslab.runner": ("run",),
    "chaoslab.scenario": ("NEVER", "Job", "RestartPolicy", "Scenario", "on_failure"),
    "chaoslab.schedule": (
        "Injection",
        "after",
        "agent_of",
        "at_step",
        "between",
        "during_save",
        "everywhere",
        "node",
        "on_event",
        "one_rank",
        "rank",
        "ranks",
        "store",
        "when_healed",
        "while_recovering",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("bounds", "faults")

__all__ = [  # noqa: PLE0604  the names are those of _HOMES, kept in one place
    "__version__",
    *_MODULES,
    *_HOME_OF,
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"chaoslab.{name}")
    if name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'chaoslab' has no attribute {name!r}")
