"""A cluster of containers without a job, for tests that look at what a container may do."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from chaoslab.cluster.containers.engine import Engine
from chaoslab.cluster.containers.images import choose
from chaoslab.cluster.containers.recipes import Limits
from chaoslab.cluster.containers.start import Wanted, start_cluster
from chaoslab.cluster.interface import Up

_NUMBERS = itertools.count()
REPOSITORY = Path(__file__).resolve().parents[2]


@contextlib.asynccontextmanager
async def containers(
    engine: Engine,
    tmp_path: Path,
    *,
    nodes: int = 1,
    exits: list[dict[str, Any]] | None = None,
    cuts: list[tuple[int, str, int]] | None = None,
    limits: Limits | None = None,
) -> AsyncIterator[Up]:
    """Bring nodes up, with this directory for their files."""
    job = tmp_path / "job"
    job.mkdir(exist_ok=True)
    (job / "job.py").write_text("pass\n")
    for node in range(nodes + 1):
        (tmp_path / str(node)).mkdir(exist_ok=True)
    wanted = Wanted(
        run_id=f"test-{tmp_path.name}",
        nodes=nodes,
        images=choose(engine, "host"),
        limits=limits or Limits(),
        cwd=job,
        script=job / "job.py",
        preload=None,
        places=tmp_path,
    )
    told = cuts if cuts is not None else []
    async with start_cluster(
        engine,
        wanted,
        on_exit=(exits if exits is not None else []).append,
        on_agent_event=lambda *_: None,
        on_cut=lambda *cut: told.append(cut),
    ) as up:
        yield up


async def ran(up: Up, tmp_path: Path, *argv: str, node: int = 0, limit_s: float = 30.0) -> str:
    """Run a command in a node's container to its end; give what it printed."""
    key = f"probe-{next(_NUMBERS)}"
    log_path = tmp_path / str(node) / f"{key}.log"
    await up.cluster.start(
        key,
        node,
        list(argv),
        mode="exec",
        env=dict(up.inside.environment),
        cwd="/",
        log=log_path,
        events=None,
    )
    async with asyncio.timeout(limit_s):
        while (await up.cluster.look(key))["state"] is not None:
            await asyncio.sleep(0.01)
    return log_path.read_text()


def everything(engine: Engine) -> list[str]:
    """Name all that chaoslab has made on an engine, but images."""
    filters = {"label": ["org.chaoslab=1"]}
    found = [f"container {c['Names']}" for c in engine.api.containers(all=True, filters=filters)]
    found += [f"network {n['Name']}" for n in engine.api.networks(filters=filters)]
    volumes = engine.api.volumes(filters=filters)["Volumes"] or []
    return found + [f"volume {v['Name']}" for v in volumes]
