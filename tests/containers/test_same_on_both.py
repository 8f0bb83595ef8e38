"""One scenario on both backends: the same verdict, and a recovery that cannot be told apart."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from chaoslab import Options, Scenario, Verdict, run
from chaoslab.cluster.containers.engine import Engine
from chaoslab.report import Report, Variant, write_variants
from scenarios.test_hard_disconnect import DISCONNECT
from scenarios.test_kill_during_save import KILL

RUNS = 5
SCENARIOS = {"kill-in-save": KILL, "disconnect": DISCONNECT}


def apart(here: list[float], there: list[float]) -> str:
    """Say how the medians differ by more than twice the wider spread; empty: they do not."""
    spread = max(max(one) - min(one) for one in (here, there))
    difference = abs(statistics.median(here) - statistics.median(there))
    if difference <= 2 * spread:
        return ""
    return f"medians {difference:.2f} s apart, twice the spread is {2 * spread:.2f} s"


@pytest.mark.netem(needed=False)
def test_what_is_apart_is_told_from_what_is_not() -> None:
    """A second more in each run is found; the same figures with one that is slow are not."""
    figures = [1.4, 1.5, 1.6, 1.5, 1.4]
    assert apart(figures, [figure + 1 for figure in figures])
    assert apart(figures, [*figures[1:], 1.8]) == ""


@pytest.mark.nightly
@pytest.mark.netem(needed=False)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_does_the_same_on_containers(name: str, engine: Engine, tmp_path: Path) -> None:  # noqa: ARG001
    """Five runs on each, in turn, so that a machine that slows down slows both."""
    rows: list[Variant] = []
    recoveries: dict[str, list[float]] = {"namespaces": [], "docker": []}
    for turn in range(RUNS):
        for backend, figures in recoveries.items():
            rows.append(Variant(name=f"{backend} {turn + 1}", report=once(name, backend, tmp_path)))
            value = rows[-1].report.measurement("recovery_s", 0).value
            assert isinstance(value, float)
            figures.append(value)
    table = write_variants(tmp_path, f"both-backends-{name}", rows)
    print(f"\n{table.read_text()}")
    assert apart(*recoveries.values()) == ""


def once(name: str, backend: str, reports: Path) -> Report:
    """Run a scenario; `run` raises for any other verdict."""
    scenario: Scenario = SCENARIOS[name]
    image = "host" if backend == "docker" else ""
    options = Options(backend=backend, image=image, kernel="host", reports=reports)
    report = run(scenario, options=options)
    assert report.verdict is Verdict.PASSED
    return report
