"""What the README shows is true: its code runs as it stands."""

import re
from pathlib import Path

from chaoslab import (
    Injection,
    Job,
    Options,
    Scenario,
    Verdict,
    at_step,
    bounds,
    faults,
    rank,
    run,
)

ROOT = Path(__file__).resolve().parents[2]


def code_of_readme() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_first_example_is_a_scenario() -> None:
    """It can be pasted: names are imported, values are taken."""
    names: dict = {}
    exec(code_of_readme()[0], names)
    assert isinstance(names["DISCONNECT"], Scenario)


def test_the_smallest_job_can_be_judged(tmp_path) -> None:
    """It runs on two nodes, is stopped for a moment, and is known to be back."""
    script = tmp_path / "train.py"
    script.write_text(code_of_readme()[1].replace("...  # train", "dist.barrier()"))
    stop = Injection(fault=faults.Stop(duration_s=1), on=rank(1), at=at_step(200))
    scenario = Scenario(
        job=Job(script=str(script), nodes=2, steps=3000, limit_s=60),
        schedule=[stop],
        bounds=[bounds.recovers_within(10), bounds.finishes()],
    )
    report = run(scenario, options=Options(reports=tmp_path / "reports", kernel="host"))
    assert report.verdict is Verdict.PASSED


def test_every_fault_and_bound_that_is_named_exists() -> None:
    """The tables name what there is, and leave nothing out."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tables = "\n".join(line for line in text.splitlines() if line.startswith("| `"))
    named = set(re.findall(r"`([A-Za-z_]+)(?:\(|`)", tables))
    families = {"Fault", "NetworkFault", "NetemFault", "ProcessFault"}
    all_faults = {
        name
        for name, value in vars(faults).items()
        if isinstance(value, type) and issubclass(value, faults.Fault)
    }
    all_bounds = {
        name
        for name in bounds.__all__
        if getattr(getattr(bounds, name), "__annotations__", {}).get("return") == "Bound"
    }
    assert len(all_bounds) > 9
    assert all_faults - families <= named
    assert all_bounds - {"from_data"} <= named
    assert {name for name in named if name[0].isupper() and "_" not in name} <= all_faults
