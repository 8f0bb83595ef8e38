"""async_save: copies, returns, and says at the next call how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import RANKS, alone, in_a_child, manager, names, state_of

from chaoslab import probe
from chaoslab.resilience.async_saving import InFlight
from chaoslab.resilience.checkpoint import AtomicCheckpointManager
from chaoslab.resilience.errors import CheckpointWriteFailed, SaveAbandoned, SaveTimedOut

LIMIT_S = 20.0


def until(condition: Callable[[], Any], awaited: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"waited for {awaited}"
        time.sleep(0.002)


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Hold the next save of this process in its fifth write; give what releases it."""
    events = tmp_path / "events.jsonl"
    told = [{"point": "save", "nth": 1, "at_write": 5}]
    monkeypatch.setenv("CHAOSLAB_EVENTS", str(events))
    monkeypatch.setenv("CHAOSLAB_HOLD", json.dumps(told))
    probe._reset()
    release = Path(f"{events}.release")
    yield release.touch
    release.touch()
    probe._reset()


def is_held(tmp_path: Path) -> bool:
    events = tmp_path / "events.jsonl"
    return events.exists() and '"held"' in events.read_text()


def test_what_is_saved_is_the_state_of_the_call(tmp_path: Path, hold: Callable[[], None]) -> None:
    """The call returns before the shard is written; later steps do not reach the copy."""
    saver = alone(tmp_path / "c")
    state = {"weights": torch.zeros(1000), "steps": [1]}
    saver.async_save(1, state)
    until(lambda: is_held(tmp_path), "the hold inside the save")
    state["weights"] += 1
    state["steps"].append(2)
    hold()
    assert saver.wait() == tmp_path / "c" / "step-00000001"
    loaded = saver.load(1)
    assert torch.equal(loaded["weights"], torch.zeros(1000))
    assert loaded["steps"] == [1]
    assert saver.wait() is None


def test_a_save_that_computes_does_not_hold_its_caller_up() -> None:
    """A thread keeps the interpreter's lock for its interval: the caller has returned by then.

    Planted: an interval as long as the limit. Without the start's handshake this lasts so long.
    """
    flight, began_s, returned_s = InFlight(1, lambda: None), 0.0, [0.0]

    def compute() -> Path:
        while time.monotonic() < began_s + 2.0 and not returned_s[0]:
            pass
        return Path(str(bool(returned_s[0])))

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1.0)
    try:
        began_s = time.monotonic()
        flight.start(compute)
        returned_s[0] = time.monotonic()
    finally:
        sys.setswitchinterval(interval_s)
    assert returned_s[0] - began_s < 0.5
    flight.join(LIMIT_S)
    assert flight.outcome() == Path("True")


def test_a_second_save_waits_for_the_first(tmp_path: Path) -> None:
    """One after the other in order, whichever kind the second is; the memory is used again."""
    saver = alone(tmp_path)
    for step in range(1, 6):
        saver.async_save(step, state_of(0, step))
    saver.save(6, state_of(0, 6))
    assert names(tmp_path) == [f"step-0000000{step}" for step in (4, 5, 6)]
    for step in (4, 5, 6):
        assert torch.equal(saver.load(step)["weights"], state_of(0, step)["weights"])


def test_all_ranks_save_in_the_background(tmp_path: Path) -> None:
    """Three ranks, three steps, nobody waits in between: each finds its own part."""
    savers = [manager(tmp_path, rank) for rank in range(RANKS)]

    def train(rank: int) -> None:
        with savers[rank] as saver:
            for step in (1, 2, 3):
                saver.async_save(step, state_of(rank, step), attempt="g1")

    with ThreadPoolExecutor(RANKS) as pool:
        list(pool.map(train, range(RANKS)))
    for rank, saver in enumerate(savers):
        assert saver.survey().steps == (3, 2, 1)
        for step in (1, 2, 3):
            assert torch.equal(saver.load(step)["weights"], state_of(rank, step)["weights"])


def test_a_first_save_that_does_not_end_is_an_error_within_the_deadline(
    tmp_path: Path, hold: Callable[[], None]
) -> None:
    """A disk that hangs stops neither the caller for good nor the save itself."""
    saver = alone(tmp_path / "c", deadline_s=0.2)
    saver.async_save(1, state_of(0, 1))
    until(lambda: is_held(tmp_path), "the hold inside the save")
    for call in (lambda: saver.async_save(2, state_of(0, 2)), lambda: saver.wait(0.1)):
        with pytest.raises(CheckpointWriteFailed, match="step 1 is still in flight after 0"):
            call()
    hold()
    assert saver.wait() == tmp_path / "c" / "step-00000001"


def test_an_error_surfaces_at_the_next_call_once(tmp_path: Path) -> None:
    """Rank 1 never comes: wait() says so, the next wait() has nothing to say."""
    saver = manager(tmp_path, world_size=2, deadline_s=0.1)
    saver.async_save(1, state_of(0, 1))
    with pytest.raises(SaveTimedOut, match="rank-00001"):
        saver.wait()
    assert saver.wait() is None


@pytest.mark.parametrize("kind", ["save", "async_save"])
def test_a_rank_that_reports_an_earlier_error_frees_its_peers_at_once(
    kind: str, tmp_path: Path
) -> None:
    """The error comes in place of the next save, whose other ranks do not wait an hour."""
    late = manager(tmp_path, world_size=2, deadline_s=0.1)
    late.async_save(1, state_of(0, 1))
    until(lambda: threading.active_count() == 1, "the first save to end")
    with pytest.raises(SaveTimedOut):
        getattr(late, kind)(2, state_of(0, 2), attempt="next")
    with pytest.raises(SaveAbandoned, match="rank-00000"):
        manager(tmp_path, 1, world_size=2, deadline_s=3600).save(2, state_of(1, 2), attempt="next")
    assert late.latest() is None


def test_a_user_error_surfaces_as_it_is(tmp_path: Path) -> None:
    """What torch.save cannot pickle is told with its own error."""
    saver = alone(tmp_path)
    saver.async_save(1, {"bad": lambda: None})
    with pytest.raises(Exception, match=r"pickle|local object"):
        saver.close()
    assert saver.latest() is None


def test_a_save_in_flight_is_abandoned_on_request(tmp_path: Path) -> None:
    """A generation is torn down: its save ends at once, quietly; the one before is untouched."""
    saver = manager(tmp_path, world_size=2, deadline_s=3600)
    single = alone(tmp_path)
    single.save(1, state_of(0, 1))
    saver.async_save(2, state_of(0, 2))
    assert saver.abandon("generation 3 is gone")
    assert saver.wait() is None
    assert single.latest() is not None
    single.sweep()
    assert names(tmp_path) == ["step-00000001"]
    assert saver.abandon("nothing is in flight")


def test_the_caller_can_stop_a_save_in_flight_as_well(tmp_path: Path) -> None:
    """should_stop is asked in the background; its reason is the error's."""
    lost: list[str] = []
    saver = manager(tmp_path, world_size=2, deadline_s=3600)
    saver.async_save(1, state_of(0, 1), should_stop=lambda: lost[0] if lost else None)
    lost.append("peer 1 was lost")
    with pytest.raises(SaveAbandoned, match="peer 1 was lost"):
        saver.wait()


def test_a_reason_to_stop_ends_the_wait_for_the_save_before(
    tmp_path: Path, hold: Callable[[], None]
) -> None:
    """The caller is let go with its own reason; the save in flight goes on."""
    saver = alone(tmp_path / "c")
    saver.async_save(1, state_of(0, 1))
    until(lambda: is_held(tmp_path), "the hold inside the save")
    with pytest.raises(SaveAbandoned, match="step 1 to end: generation moved on"):
        saver.async_save(2, state_of(0, 2), should_stop=lambda: "generation moved on")
    hold()
    assert saver.wait() == tmp_path / "c" / "step-00000001"


def test_a_shard_is_abandoned_while_it_is_being_written(
    tmp_path: Path, hold: Callable[[], None]
) -> None:
    """Not only a wait for peers ends: so does the writing, at the next block."""
    saver = alone(tmp_path / "c")
    saver.async_save(1, {"weights": torch.ones(4_000_000)})
    until(lambda: is_held(tmp_path), "the hold inside the save")
    assert not saver.abandon("no longer wanted", limit_s=0)
    hold()
    with pytest.raises(SaveAbandoned, match="no longer wanted"):
        saver.wait()
    assert saver.latest() is None
    saver.save(1, {"weights": torch.ones(10)})
    assert names(tmp_path / "c") == ["step-00000001"]


def test_close_waits_and_a_block_that_fails_abandons(tmp_path: Path) -> None:
    """As a context manager it commits on the way out, unless the way out is an error."""
    with alone(tmp_path) as saver:
        saver.async_save(1, state_of(0, 1))
    assert names(tmp_path) == ["step-00000001"]
    pair = manager(tmp_path, world_size=2, deadline_s=3600)
    with contextlib.suppress(KeyError), pair:
        pair.async_save(2, state_of(0, 2))
        raise KeyError
    assert pair.wait() is None
    assert threading.active_count() == 1


def test_no_thread_runs_but_during_a_save(tmp_path: Path) -> None:
    """Neither import nor construction starts one, so that a process may fork."""
    saver = alone(tmp_path)
    assert threading.active_count() == 1
    saver.async_save(1, state_of(0, 1))
    saver.wait()
    assert threading.active_count() == 1


def test_a_forked_child_does_not_wait_for_its_parents_save(
    tmp_path: Path, hold: Callable[[], None]
) -> None:
    """The child has no such thread: it sees none in flight, and saves on its own."""
    saver = alone(tmp_path / "c")
    saver.async_save(1, state_of(0, 1))
    until(lambda: is_held(tmp_path), "the hold inside the save")

    def child() -> None:
        os.environ.pop("CHAOSLAB_HOLD")
        assert saver.wait() is None
        saver.async_save(2, state_of(0, 2), attempt="child")
        assert saver.wait(LIMIT_S) == tmp_path / "c" / "step-00000002"

    assert in_a_child(child) == (0, "")
    hold()
    assert saver.wait() == tmp_path / "c" / "step-00000001"
    assert names(tmp_path / "c") == ["step-00000001", "step-00000002"]


def test_a_forked_child_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    """What an abandoned save leaves can be swept although a child of that moment lives on."""
    saver = manager(tmp_path, world_size=2, deadline_s=3600)
    saver.async_save(1, state_of(0, 1))
    work = tmp_path / ".tmp-step-00000001-solo"
    until((work / "rank-00000.pt.note").exists, "the shard")
    read, write = os.pipe()
    begun, begin = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.write(begin, b".")
        os.read(read, 1)  # until the parent is done
        os._exit(0)
    os.close(read)
    os.read(begun, 1)  # the child has run what fork makes it run: until then it has the lock too
    assert saver.sweep() == []
    assert saver.abandon("over")
    assert saver.sweep() == [work]
    os.close(write)
    os.waitpid(pid, 0)
    os.close(begun)
    os.close(begin)


def test_a_process_that_ends_waits_for_its_save(tmp_path: Path) -> None:
    """A script that forgets to wait still commits its last checkpoint."""
    script = (
        "import sys, torch\n"
        "from chaoslab.resilience import AtomicCheckpointManager\n"
        "saver = AtomicCheckpointManager(sys.argv[1], rank=0, world_size=1)\n"
        "saver.async_save(7, {'weights': torch.ones(3_000_000)})\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=60)
    found = AtomicCheckpointManager(tmp_path, rank=0, world_size=1).latest()
    assert found is not None
    assert found.step == 7
