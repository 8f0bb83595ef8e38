"""The engine itself fails: an error of the harness, no verdict on the job; nothing stays behind."""

from __future__ import annotations

import dataclasses
import io
import os
import signal
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from docker_lab import everything
from own_engine import OwnEngine

from chaoslab import (
    HarnessError,
    Injection,
    Options,
    Scenario,
    Verdict,
    at_step,
    bounds,
    faults,
    rank,
    run,
)
from chaoslab.cluster.containers import images, leftovers
from chaoslab.cluster.containers.engine import Engine
from chaoslab.inject.injector import Injector
from scenarios.jobs import CHARLM

pytestmark = pytest.mark.netem(needed=False)

LONG = Scenario(
    job=dataclasses.replace(CHARLM, nodes=2, steps=300),
    schedule=[Injection(fault=faults.Stop(duration_s=0.5), on=rank(1), at=at_step(5))],
    bounds=[bounds.finishes(), bounds.never_restarts()],
)


def options(tmp_path: Path) -> Options:
    return Options(backend="docker", image="host", kernel="host", reports=tmp_path)


def after_the_fault(monkeypatch: pytest.MonkeyPatch, do: Callable[[], None]) -> threading.Thread:
    """Give a thread that does something as soon as the run's fault is healed."""
    healthy, thread = Injector.heal, threading.Thread(target=do)

    async def heal(self, *, cut_short: bool) -> None:  # type: ignore[no-untyped-def]
        await healthy(self, cut_short=cut_short)
        if not cut_short:
            thread.start()

    monkeypatch.setattr(Injector, "heal", heal)
    return thread


def test_an_engine_that_is_restarted_in_mid_run(
    own_engine: OwnEngine,
    fresh_engine: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its containers go with it: said so, in seconds; what it still knows of the run is swept."""

    def restart() -> None:
        own_engine.kill()
        own_engine.start()

    restarting = after_the_fault(monkeypatch, restart)
    began_s = time.monotonic()
    with pytest.raises(HarnessError, match=r"container of node|agent|engine"):
        run(LONG, options=options(tmp_path))
    assert time.monotonic() - began_s < 90
    restarting.join(60)
    assert not restarting.is_alive(), "the engine does not come up again"
    leftovers.sweep(fresh_engine)
    assert everything(fresh_engine) == []


def test_an_engine_without_space_for_the_image(
    full_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's own words, before anything starts."""
    skeleton = images._skeleton()

    def large() -> bytes:
        buffer = io.BytesIO(skeleton)
        with tarfile.open(fileobj=buffer, mode="a") as tar:
            entry = tarfile.TarInfo("large")
            entry.size = 64 << 20
            tar.addfile(entry, io.BytesIO(os.urandom(1 << 20) * 64))
        return buffer.getvalue()

    monkeypatch.setattr(images, "_skeleton", large)
    with pytest.raises(HarnessError, match="no space left on device"):
        run(LONG, options=options(tmp_path))
    assert everything(full_engine) == []


def test_an_engine_that_pauses_costs_no_verdict(
    own_engine: OwnEngine,
    fresh_engine: Engine,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It answers nothing for 3 s: the job runs on, and what it says meanwhile is taken later."""

    def pause() -> None:
        own_engine.signal(signal.SIGSTOP)
        time.sleep(3)
        own_engine.signal(signal.SIGCONT)

    after_the_fault(monkeypatch, pause)
    assert run(LONG, options=options(tmp_path)).verdict is Verdict.PASSED


@pytest.mark.nightly
def test_an_engine_that_hangs_is_a_fault_of_the_harness(
    own_engine: OwnEngine,
    fresh_engine: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It closes no stream: it is asked now and then, and its silence ends the run."""
    after_the_fault(monkeypatch, lambda: own_engine.signal(signal.SIGSTOP))
    endless = dataclasses.replace(LONG, job=dataclasses.replace(LONG.job, steps=100_000))
    try:
        with pytest.raises(HarnessError, match=r"gave no answer|no answer within"):
            run(endless, options=options(tmp_path))
    finally:
        own_engine.signal(signal.SIGCONT)
    deadline_s = time.monotonic() + 30
    while everything(fresh_engine):
        assert time.monotonic() < deadline_s
        leftovers.sweep(fresh_engine)
        time.sleep(0.2)
