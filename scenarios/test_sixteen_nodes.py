"""Sixteen nodes; one loses a fifth of its packets, then another one is cut off. Four ways to cope.

The same job is built in four ways, each with one more of the rules: a timeout that is stated,
backoff and recovery, a circuit breaker. `reports/sixteen-nodes-*.md` is the table of what each did.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from chaoslab import (
    BoundExceeded,
    Injection,
    Job,
    RestartPolicy,
    Scenario,
    at_step,
    bounds,
    faults,
    node,
    on_failure,
    run,
    when_healed,
)
from chaoslab.history import History
from chaoslab.measure import NEVER
from chaoslab.options import Options, from_environment
from chaoslab.report import Report, Variant, write_variants
from chaoslab.runner import SESSION

pytestmark = pytest.mark.nightly

TIMEOUT_S = 10
STEP_S = 5.0
"""No step takes that long, on a slow machine either."""

GLOO_DEFAULT_S = 1800.0
"""Source: default_pg_timeout of torch/distributed/constants.py (torch 2.13)."""

FIELD = "field report quoted in this project's issue 3"
LOSSY = Injection(
    fault=faults.Combined(
        parts=(faults.PacketLoss(ratio=0.20), faults.Delay(delay_s=0.01, jitter_s=0.005)),
        direction="egress",
        duration_s=15,
    ),
    on=node(5),
    at=at_step(10),
)
ROWS: list[Variant] = []


def job(script: str, *args: str, limit_s: float, restart: RestartPolicy | None = None) -> Job:
    """Give one variant of the job."""
    return Job(
        script=f"examples/{script}.py",
        nodes=16,
        steps=400,
        args=("--save-every", "10", "--step-floor-s", "0.2", *args),
        limit_s=limit_s,
        restart=restart or RestartPolicy(),
    )


def cut(duration_s: float | None = None) -> Injection:
    """Give the cut of one node, which follows the lossy link."""
    return Injection(fault=faults.SilentDrop(duration_s=duration_s), on=node(9), at=when_healed(0))


def note(name: str, report: Report, field: str, default_timeout_s: float | None = None) -> None:
    """Keep a line for the table."""
    ROWS.append(
        Variant(
            name=name,
            report=report,
            field=field,
            source=FIELD,
            injection=1,
            default_timeout_s=default_timeout_s,
        )
    )


@pytest.fixture(scope="module", autouse=True)
def _table() -> Iterator[None]:
    """Write the table of those variants that ran."""
    yield
    if ROWS:
        path = write_variants(
            from_environment().reports, f"sixteen-nodes-{ROWS[-1].report.run_id}", ROWS
        )
        print(f"\ntable of variants: {path}")  # noqa: T201  the terminal is where it is looked for


PLAIN = Scenario(
    job=job("charlm_plain", limit_s=300),
    schedule=[LOSSY, cut()],
    bounds=[bounds.noticed_within(15, injection=1)],
)
EXPLICIT = Scenario(
    job=job("charlm_plain", "--ddp-timeout-s", str(TIMEOUT_S), limit_s=300),
    schedule=[LOSSY, cut()],
    bounds=[bounds.noticed_within(15, injection=1)],
)
BACKOFF = Scenario(
    job=dataclasses.replace(
        job("charlm", "--timeout-s", str(TIMEOUT_S), "--patience-s", "100000", limit_s=400,
            restart=on_failure(limit=3)),
        steps=40,
    ),
    schedule=[LOSSY, cut(20)],
    bounds=[bounds.noticed_within(15, injection=1), bounds.recovers_within(12, injection=1)],
)  # fmt: skip
BREAKER = Scenario(
    job=job("charlm", "--timeout-s", str(TIMEOUT_S), "--patience-s", "15", limit_s=300,
            restart=on_failure(limit=3)),
    schedule=[LOSSY, cut()],
    bounds=[bounds.noticed_within(15, injection=1), bounds.circuit_opens_within(30, injection=1)],
)  # fmt: skip


def once() -> Options:
    """Give the session's options for one run: each variant is one line of the table."""
    return dataclasses.replace(from_environment(), repeat=1)


def test_plain_ddp_makes_no_progress_until_the_run_is_given_up() -> None:
    """With torch's default timeout nobody notices: the bound is broken, as it must be."""
    with pytest.raises(BoundExceeded, match="noticed_within"):
        run(PLAIN, options=once())
    # It is a line of the table, and no failure of this suite.
    report = SESSION.reports.pop()
    assert isinstance(report, Report)
    assert report.measurement("detect_all_s", 1).value == NEVER
    history = History.load(report.directory / "history.jsonl")
    assert history.of("gave_up"), "the job ended by itself"
    (cut_off,) = (e for e in history.of("effective") if e["injection"] == 1)
    in_flight_s = cut_off.t_s + STEP_S  # one step may be past its collective when the cut comes
    assert not [e for e in history.of("step") if e.t_s > in_flight_s], "progress after the cut"
    note("plain", report, "hangs: 5.2 h until somebody looked", GLOO_DEFAULT_S)


def test_an_explicit_timeout_notices_within_15_s() -> None:
    """Every rank leaves with torch's own error once its collective has timed out."""
    note("explicit timeout", run(EXPLICIT, options=once()), "noticed in 15 s")


def test_backoff_recovers_within_12_s() -> None:
    """The cut heals after 20 s, and all sixteen are back."""
    note("timeout + backoff", run(BACKOFF, options=once()), "recovered in 12 s")


def test_a_breaker_releases_everything_within_30_s() -> None:
    """The cut stays: every survivor gives its hardware back."""
    note("timeout + backoff + breaker", run(BREAKER, options=once()), "released in 30 s")
