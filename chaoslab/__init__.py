"""chaoslab: break a distributed PyTorch job on purpose, measure how it recovers, judge it.

Names are imported when they are first used: a training process that imports only
`chaoslab.probe`, or a node that runs only `chaoslab.agent`, loads nothing of the harness.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaoslab import (
        bounds as bounds,
    )
    from chaoslab import (
        faults as faults,
    )
    from chaoslab.bounds import (
        Verdict as Verdict,
    )
    from chaoslab.errors import (
        BoundExceeded as BoundExceeded,
    )
    from chaoslab.errors import (
        ChaoslabError as ChaoslabError,
    )
    from chaoslab.errors import (
        HarnessError as HarnessError,
    )
    from chaoslab.errors import (
        InvalidScenario as InvalidScenario,
    )
    from chaoslab.errors import (
        NotAvailable as NotAvailable,
    )
    from chaoslab.errors import (
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
    )
    from chaoslab.scenario import (
        Job as Job,
    )
    from chaoslab.scenario import (
        RestartPolicy as RestartPolicy,
    )
    from chaoslab.scenario import (
        Scenario as Scenario,
    )
    from chaoslab.scenario import (
        on_failure as on_failure,
    )
    from chaoslab.schedule import (
        Injection as Injection,
    )
    from chaoslab.schedule import (
        after as after,
    )
    from chaoslab.schedule import (
        agent_of as agent_of,
    )
    from chaoslab.schedule import (
        at_step as at_step,
    )
    from chaoslab.schedule import (
        between as between,
    )
    from chaoslab.schedule import (
        during_save as during_save,
    )
    from chaoslab.schedule import (
        everywhere as everywhere,
    )
    from chaoslab.schedule import (
        node as node,
    )
    from chaoslab.schedule import (
        on_event as on_event,
    )
    from chaoslab.schedule import (
        one_rank as one_rank,
    )
    from chaoslab.schedule import (
        rank as rank,
    )
    from chaoslab.schedule import (
        ranks as ranks,
    )
    from chaoslab.schedule import (
        store as store,
    )
    from chaoslab.schedule import (
        when_healed as when_healed,
    )
    from chaoslab.schedule import (
        while_recovering as while_recovering,
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
