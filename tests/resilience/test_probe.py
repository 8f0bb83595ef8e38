"""The probe writes whole lines, never raises, and holds exactly where it is told."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chaoslab import probe


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let this process's probe write to a file of its own."""
    path = tmp_path / "events.jsonl"
    monkeypatch.setenv("CHAOSLAB_EVENTS", str(path))
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("CHAOSLAB_NODE", "1")
    monkeypatch.setenv("CHAOSLAB_INCARNATION", "2")
    probe._reset()
    yield path
    os.close(fd) if (fd := probe._state["fd"]) >= 0 else None
    probe._reset()


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def in_a_child(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_an_event_says_who_and_when(events: Path) -> None:
    """A line holds time, rank, node, incarnation, kind and the fields."""
    before_s = time.monotonic()
    probe.emit("step", step=7, loss=0.5)
    (event,) = read(events)
    assert before_s - 0.001 <= event.pop("t_s") <= time.monotonic() + 0.001
    place = {"rank": 3, "node": 1, "incarnation": 2}
    assert event == {"kind": "step", "step": 7, "loss": 0.5, **place}


def test_without_a_file_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that runs without the harness pays nothing and writes nothing."""
    monkeypatch.delenv("CHAOSLAB_EVENTS", raising=False)
    probe._reset()
    probe.emit("step", step=1)
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_writes_to_its_own_file(events: Path, tmp_path: Path) -> None:
    """The file is chosen by the process that writes, not by the one that it came from."""
    probe.emit("rank_started")
    own = tmp_path / "child.jsonl"

    def child() -> None:
        os.environ |= {"CHAOSLAB_EVENTS": str(own), "RANK": "9"}
        probe.emit("rank_started")

    assert in_a_child(child) == 0
    assert [event["rank"] for event in read(own)] == [9]
    assert [event["rank"] for event in read(events)] == [3]


def test_lines_of_many_threads_stay_whole(events: Path) -> None:
    """One write an event: threads never cut each other's lines."""
    threads = [
        threading.Thread(target=lambda: [probe.emit("step", step=n) for n in range(200)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read(events)) == 800


def test_a_full_disk_loses_events_and_tells_how_many(events: Path) -> None:
    """Events that did not fit are counted; the line that was cut does not spoil the next."""

    def child() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        probe.emit("step", step=1)
        room_bytes = events.stat().st_size + 20
        resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, resource.RLIM_INFINITY))
        for step in (2, 3, 4):
            probe.emit("step", step=step)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        probe.emit("step", step=5)

    assert in_a_child(child) == 0
    lines = events.read_text().splitlines()
    told = [json.loads(line) for line in lines if line.endswith("}")]
    assert [(e["kind"], e.get("step"), e.get("count")) for e in told] == [
        ("step", 1, None),
        ("events_lost", None, 3),
        ("step", 5, None),
    ]


def test_an_odd_field_never_reaches_the_job(events: Path) -> None:
    """What JSON cannot hold is told by its repr; what has no repr is a lost event."""

    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

    probe.emit("step", loss={1, 2})
    probe.emit("step", loss=Odd())
    probe.emit("step", step=2)
    assert [event["kind"] for event in read(events)] == ["step", "events_lost", "step"]


def test_an_unwritable_path_never_reaches_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that does not exist costs the events."""
    monkeypatch.setenv("CHAOSLAB_EVENTS", str(tmp_path / "missing" / "events"))
    probe._reset()
    probe.emit("step", step=1)
    probe._reset()


def test_a_watched_file_passes_everything_through(events: Path) -> None:
    """Without a hold the wrapped file gets the same bytes in the same calls."""
    file = io.BytesIO()
    watched = probe.watched(file)
    assert [watched.write(b""), watched.write(b"abc"), watched.write(memoryview(b"de"))] == [
        0,
        3,
        2,
    ]
    assert (watched.writes, watched.written_bytes) == (3, 5)
    assert file.getvalue() == watched.getvalue() == b"abcde"
    assert not events.exists()


def hold(monkeypatch: pytest.MonkeyPatch, **where: Any) -> None:
    monkeypatch.setenv("CHAOSLAB_HOLD", json.dumps([{"point": "save", **where}]))


def write_in_thread(watched: Any, chunks: list[bytes]) -> threading.Thread:
    thread = threading.Thread(target=lambda: [watched.write(chunk) for chunk in chunks])
    thread.start()
    return thread


def until(condition: Callable[[], bool], awaited: str) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s, f"waited for {awaited}"
        time.sleep(0.001)


def test_a_hold_tears_the_file_in_the_middle_of_a_write(
    events: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the told write half of its bytes are written; then nothing moves until released."""
    hold(monkeypatch, nth=2, at_write=2)
    probe.watched(io.BytesIO()).write(b"first save")
    path = tmp_path / "shard"
    with path.open("wb") as raw:
        thread = write_in_thread(probe.watched(raw), [b"aaaa", b"bbbbbb", b"cc"])
        until(lambda: events.exists() and bool(read(events)), "the hold")
        (event,) = read(events)
        told = {key: event[key] for key in ("kind", "point", "nth", "write_index", "bytes")}
        assert told == {"kind": "held", "point": "save", "nth": 2, "write_index": 1, "bytes": 7}
        assert path.read_bytes() == b"aaaabbb"
        Path(f"{events}.release").touch()
        thread.join(10)
    assert path.read_bytes() == b"aaaabbbbbbcc"


def test_a_ratio_counts_by_the_bytes_of_the_save_before(
    events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """at_ratio 0.5 of 8 bytes holds in the write that reaches byte 4."""
    hold(monkeypatch, nth=2, at_ratio=0.5)
    monkeypatch.setattr(probe, "HOLD_LIMIT_S", 0.0)
    for _ in range(2):
        watched = probe.watched(io.BytesIO())
        for _ in range(4):
            watched.write(b"xx")
    kinds = [(e["kind"], e["nth"], e["write_index"]) for e in read(events)]
    assert kinds == [("held", 2, 1), ("hold_expired", 2, 1)]


def test_a_ratio_of_nothing_holds_nothing(events: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first save has none before it, so a ratio cannot be reached."""
    hold(monkeypatch, nth=1, at_ratio=0.5)
    probe.watched(io.BytesIO()).write(b"xx")
    assert not events.exists()


@pytest.mark.parametrize("told", ["{", '{"point": 1}', '[{"nth": 1}]', "[7]"])
def test_a_malformed_hold_is_told_and_holds_nothing(
    told: str, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job goes on; the harness learns that its hold was not understood."""
    monkeypatch.setenv("CHAOSLAB_HOLD", told)
    assert probe.watched(io.BytesIO()).write(b"xx") == 2
    assert [event["kind"] for event in read(events)] == ["malformed"]


def test_the_probe_imports_only_what_every_python_has() -> None:
    """It adds neither torch nor any other part of chaoslab to the process."""
    code = (
        "import sys, chaoslab.probe; print([m for m in sys.modules if m.startswith('chaoslab.')])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "['chaoslab.probe']"
    assert len(Path(probe.__file__).read_text().splitlines()) <= 100
