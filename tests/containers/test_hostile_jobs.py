"""A job that misbehaves costs itself something, never the harness, its record, or the machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

from docker_lab import containers, ran

from chaoslab.cluster.containers.engine import Engine
from chaoslab.cluster.containers.mirror import Mirror
from chaoslab.cluster.containers.recipes import Limits
from chaoslab.cluster.pod import LOG_LIMIT_BYTES

FORK_BOMB = (
    "import os, time\n"
    "made = 0\n"
    "try:\n"
    "    while True:\n"
    "        if os.fork() == 0: time.sleep(60); os._exit(0)\n"
    "        made += 1\n"
    "except OSError as problem: print('after', made, problem.strerror, flush=True)\n"
)
TALKATIVE = "import sys\nfor _ in range(64): sys.stdout.write('x' * (1 << 20))\nprint('the end')\n"


def test_a_fork_bomb_stays_within_its_limit(engine: Engine, tmp_path: Path) -> None:
    """The node's processes reach the limit and no more; they are gone with the node."""
    pids = 40

    async def story() -> tuple[str, int]:
        async with containers(engine, tmp_path, limits=Limits(pids=pids)) as up:
            said = await ran(up, tmp_path, up.inside.python, "-c", FORK_BOMB)
            found = [p for p in await up.cluster.processes() if p["node"] == 0]
            await up.cluster.empty(0)
            async with asyncio.timeout(20):
                while any(
                    p["state"] != "Z" for p in await up.cluster.processes() if p["node"] == 0
                ):
                    await asyncio.sleep(0.05)
            again = await ran(up, tmp_path, "echo", "still here")
            assert again == "still here\n"
            return said, len(found)

    said, count = asyncio.run(story())
    assert "Resource temporarily unavailable" in said
    assert 20 < count < pids


def test_what_a_process_prints_is_passed_on_up_to_a_limit(engine: Engine, tmp_path: Path) -> None:
    """64 MiB of output do not fill the harness's disk; that there was more is told once."""
    cuts: list[tuple[int, str, int]] = []

    async def story() -> str:
        async with containers(engine, tmp_path, cuts=cuts) as up:
            return await ran(up, tmp_path, up.inside.python, "-c", TALKATIVE)

    said = asyncio.run(story())
    assert len(said) == LOG_LIMIT_BYTES
    ((node, name, limit_bytes),) = cuts
    assert (node, name[:6], limit_bytes) == (0, "probe-", LOG_LIMIT_BYTES)


def test_a_node_cannot_name_the_files_that_it_writes(tmp_path: Path) -> None:
    """Only what the harness expects is written, whatever a node's message says."""
    root = tmp_path / "nodes"
    (root / "0").mkdir(parents=True)
    mirror = Mirror(root, lambda *_: None)
    mirror.expect(0, root / "0" / "rank-0.0.log")
    for name in ("../../evil", "/etc/evil", "rank-1.0.log", ""):
        mirror.take(0, {"event": "bytes", "name": name, "data": "evil"})
    mirror.take(1, {"event": "bytes", "name": "rank-0.0.log", "data": "of another node"})
    mirror.take(0, {"event": "bytes", "name": "rank-0.0.log", "data": "\xff\x00 as it was"})
    mirror.close()
    files = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {root / "0" / "rank-0.0.log"}
    assert (root / "0" / "rank-0.0.log").read_bytes() == b"\xff\x00 as it was"
