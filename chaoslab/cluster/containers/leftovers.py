"""Leftovers: what runs that were killed have left on an engine; found by label, and removed.

No container of such a run goes on for long: it ends with its stream. Its network and volumes stay,
and a container that was never started; also all of a run whose engine failed when it was to be
removed. Whether a run's harness is gone is known where it ran on
this machine, in this pid namespace; of others it is believed once nothing of the run has been
running for a while.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from typing import Any, Final

from chaoslab.cluster.containers.engine import (
    ACTIVE_RUNS,
    ENGINE_LABEL,
    FAILURES,
    HARNESS_LABEL,
    RUN_LABEL,
    Engine,
    explain,
    remove_run,
)
from chaoslab.cluster.containers.identity import is_gone, this_harness
from chaoslab.errors import ClusterError

YOUNG_S: Final = 120.0
"""What is younger than this may belong to a run that is just being started elsewhere."""

_FRACTION: Final = re.compile(r"\.(\d{1,6})\d*")


@dataclasses.dataclass(kw_only=True)
class _Run:
    """What is there of one run. newest_s: when the newest of it was made, by the engine's clock."""

    harness: str = ""
    is_running: bool = False
    newest_s: float = 0.0


def sweep(engine: Engine) -> list[str]:
    """Remove what runs that were killed have left. Returns what was removed, one line a run.

    Raises: ClusterError when the engine fails.
    """
    try:
        now_s = _seconds(engine.client.info()["SystemTime"])
        found = _runs(engine)
    except FAILURES as problem:
        raise ClusterError(f"the engine: look for leftovers: {explain(problem)}") from problem
    removed = []
    for run_id, run in found.items():
        gone = is_gone(run.harness)
        if run.harness == this_harness():
            gone = run_id not in ACTIVE_RUNS
        old = not run.is_running and now_s - run.newest_s > YOUNG_S
        if gone or (gone is None and old):
            problems = remove_run(engine, run_id)
            said = f": {'; '.join(problems)}" if problems else ""
            removed.append(f"run {run_id} on the Docker engine{said}")
    return removed


def _runs(engine: Engine) -> dict[str, _Run]:
    filters = {"label": [f"{ENGINE_LABEL}=1"]}
    found: dict[str, _Run] = {}
    for container in engine.api.containers(all=True, filters=filters):
        run = _note(found, container.get("Labels"), float(container["Created"]))
        if run is not None and container["State"] in ("running", "paused", "restarting"):
            run.is_running = True
    for network in engine.api.networks(filters=filters):
        _note(found, network.get("Labels"), _seconds(network["Created"]))
    for volume in engine.api.volumes(filters=filters)["Volumes"] or []:
        _note(found, volume.get("Labels"), _seconds(volume["CreatedAt"]))
    return found


def _note(found: dict[str, _Run], labels: dict[str, Any] | None, made_s: float) -> _Run | None:
    run_id = (labels or {}).get(RUN_LABEL)
    if not run_id:
        return None
    run = found.setdefault(run_id, _Run())
    run.harness = run.harness or str((labels or {}).get(HARNESS_LABEL, ""))
    run.newest_s = max(run.newest_s, made_s)
    return run


def _seconds(text: str) -> float:
    """Read the engine's time, which has nanoseconds or none."""
    short = _FRACTION.sub(lambda match: f".{match[1]}", text).replace("Z", "+00:00")
    return dt.datetime.fromisoformat(short).timestamp()
