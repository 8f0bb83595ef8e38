"""Times of an engine elsewhere, and a disk here that is full: planted, and their healthy twins."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from chaoslab.cluster.containers.mirror import Mirror
from chaoslab.cluster.containers.node import Node
from chaoslab.errors import ClusterError
from chaoslab.feed import Feed
from chaoslab.job.tail import EventFile

AWAY_S = 1000.0


class NodeWithClock(Node):
    """A node whose clock is this much ahead of the harness's."""

    def __init__(self, ahead_s: float) -> None:
        super().__init__(None, None, 0, "192.0.2.1")  # type: ignore[arg-type]
        self.ahead_s = ahead_s

    async def ask(self, op: str, **_: Any) -> dict[str, Any]:
        """Tell the time."""
        assert op == "clock"
        return {"t_s": time.monotonic() + self.ahead_s}


@pytest.mark.parametrize("ahead_s", [AWAY_S, -AWAY_S])
def test_times_of_another_machine_are_put_on_this_ones_clock(ahead_s: float) -> None:
    """Answers and events alike, and what has no time stays as it is."""
    node = NodeWithClock(ahead_s)
    asyncio.run(node.measure_clock())
    assert node.offset_s == pytest.approx(-ahead_s, abs=0.1)
    assert node.shifted({"t_s": 5.0 + ahead_s})["t_s"] == pytest.approx(5.0, abs=0.1)
    assert node.shifted({"ok": True}) == {"ok": True}


def test_times_of_this_machine_are_left_alone() -> None:
    """The healthy twin: to the last digit."""
    node = NodeWithClock(0.0)
    asyncio.run(node.measure_clock())
    assert (node.offset_s, node.shifted({"t_s": 5.1})) == (0.0, {"t_s": 5.1})


@pytest.mark.parametrize("offset_s", [0.0, -AWAY_S])
def test_events_of_a_rank_are_shifted_with_its_node(tmp_path: Path, offset_s: float) -> None:
    """Once, and nothing else of them."""
    path = tmp_path / "rank-0.0.jsonl"
    place = '"rank":0,"node":0,"incarnation":0'
    path.write_text(f'{{"t_s":1005.5,"kind":"step",{place},"step":3,"loss":1.5}}\n')
    with contextlib.closing(Feed(tmp_path / "history.jsonl")) as feed:
        EventFile(path, rank=0, node=0, offset_s=offset_s).close(feed)
        (event,) = feed.history.of("step")
    assert (event.t_s, event["step"], event["loss"]) == (1005.5 + offset_s, 3, 1.5)


def test_what_cannot_be_kept_ends_the_run(tmp_path: Path) -> None:
    """A full disk of the harness's own is its error, and no word about the job."""

    async def story() -> None:
        mirror = Mirror(tmp_path, lambda *_: None)
        mirror.expect(0, Path("/dev/full"))
        failed = asyncio.ensure_future(mirror.failed())
        await asyncio.sleep(0)
        mirror.take(0, {"event": "bytes", "name": "full", "data": "x"})
        with pytest.raises(ClusterError, match=r"cannot be kept: .*No space left"):
            await asyncio.wait_for(failed, 5)
        mirror.close()

    asyncio.run(story())
