"""chaoslab: break a distributed PyTorch job on purpose, measure how it recovers, judge it.

Names are imported when they are first used: a training process that imports only
`chaoslab.probe`, or a node that runs only `chaoslab.agent`, loads nothing of the harness.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaoslab import bounds as bounds, faults as faults
    from chaoslab.bounds import (
        Verdict as Verdict,
    )
    from chaoslab.errors import (
        AgentError as AgentError,
        BoundExceeded as BoundExceeded,
        ChaoslabError as ChaoslabError,
        ClusterError as ClusterError,
        HarnessError as HarnessError,
        InvalidScenario as InvalidScenario,
        NotAvailable as NotAvailable,
        NotProven as NotProven,
    )
    from chaoslab.options import (
        Options as Options,
    )
    from chaoslab.report import (
        Report as Report,
    )
    from chaoslab.runner import (
        run as run,
    )
    from chaoslab.scenario import (
        NEVER as NEVER,
        Job as Job,
        RestartPolicy as RestartPolicy,
        Scenario as Scenario,
        on_failure as on_failure,
    )
    from chaoslab.schedule import (
        Injection as Injection,
        after as after,
        agent_of as agent_of,
        at_step as at_step,
        between as between,
        container_of as container_of,
        during_save as during_save,
        everywhere as everywhere,
        node as node,
        on_event as on_event,
        one_rank as one_rank,
        rank as rank,
        ranks as ranks,
        store as store,
        volume as volume,
        when_healed as when_healed,
        while_recovering as while_recovering,
    )

__version__ = "0.1.0"

_HOMES = {
    "chaoslab.bounds": ("Verdict",),
    "chaoslab.errors": (
        "AgentError",
        "ClusterError",
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
        "container_of",
        "during_save",
        "everywhere",
        "node",
        "on_event",
        "one_rank",
        "rank",
        "ranks",
        "store",
        "volume",
        "when_healed",
        "while_recovering",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("bounds", "faults")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"chaoslab.{name}")
    if name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'chaoslab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["__version__", *_MODULES, *_HOME_OF]
