"""Report: all that a run came to, as one value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from chaoslab.bounds import Findings, Verdict
from chaoslab.measure import Measurement, find
from chaoslab.scenario import Scenario


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What `chaoslab.run` returns.

    run_id, name: of the run and of its scenario. directory: where the report lies. findings:
    verdict, judgements, measurements, doubts. seed: drew the random targets. versions: what
    the run was made with. replay: the command that runs it again (empty: not known).
    twin_source: where the twin's result came from. wall_s: how long it all took, the twin
    included. endings: how the ranks ended (empty: all finished). notes: what went wrong in
    writing the report.
    """

    run_id: str
    name: str
    directory: Path
    scenario: Scenario
    findings: Findings
    seed: int
    versions: Mapping[str, str]
    replay: str = ""
    twin_source: str = "none"
    wall_s: float = 0.0
    endings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Give the verdict."""
        return self.findings.verdict

    def measurement(self, name: str, injection: int | None = None) -> Measurement:
        """Give one measurement. Raises: KeyError when there is none of that name."""
        return find(self.findings.measurements, name, injection)

    @property
    def explanation(self) -> str:
        """Say why the verdict is what it is, what is missing, and how to run it again."""
        from chaoslab.report.table import explain  # noqa: PLC0415 - the table shows reports

        return explain(self)
