"""The conductor's outer half: from a scenario to its report, or to the error that it deserves.

It alone knows every stage: cluster, job, injection, measurement, bounds, report.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ipaddress
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from chaoslab import bounds, naming, platforms, versions
from chaoslab.cluster.containers import leftovers
from chaoslab.cluster.scratch import Scratch, scratch_directory, scratch_root, sweep
from chaoslab.conduct import Execution, execute
from chaoslab.errors import (
    BoundExceeded,
    HarnessError,
    InvalidScenario,
    NeedsNetem,
    NotAvailable,
    NotProven,
)
from chaoslab.history import History
from chaoslab.inject.placement import check, place
from chaoslab.measure import Expectation, ExpectedInjection
from chaoslab.options import Options, from_environment
from chaoslab.report import Report, keep_record, write_report
from chaoslab.scenario import Job, Scenario, check_files
from chaoslab.schedule import describe
from chaoslab.session import Session, twin_key

_NOWHERE: Final = ipaddress.IPv4Address("198.18.0.1")
"""The first address of nobody's network, for tests of networks. Source: RFC 2544."""

SESSION: Final = Session()
"""The one session of this process: `run` is a plain function, so that @given can call it."""


def run(scenario: Scenario, *, options: Options | None = None) -> Report:
    """Run a scenario and judge it.

    options: how (None: from the CHAOS_* environment variables, which pytest's --chaos-*
    options set). Every repeat runs, also after one that did not pass. Returns the report of the
    last. Raises: BoundExceeded when a bound is broken; NotProven when something that a judgement
    needs is missing; InvalidScenario and NotAvailable before anything starts; HarnessError when
    the harness fails.
    """
    __tracebackhide__ = True
    chosen = options or from_environment()
    script = check_files(scenario, Path.cwd())
    expectation(scenario, chosen)  # refuses what no run could be judged by
    _check_machine(scenario, chosen)
    sweep(chosen.reports)
    if chosen.backend == "docker":
        leftovers.sweep(SESSION.engine())
    reports = []
    try:
        for _ in range(chosen.repeat):
            reports.append(_run_once(scenario, chosen, script))
            SESSION.reports.append(reports[-1])
    except KeyboardInterrupt:
        SESSION.close()  # now: what pytest does with it may take seconds
        raise
    _raise_verdict(reports)
    return reports[-1]


def _check_machine(scenario: Scenario, options: Options) -> None:
    """Refuse now what would be refused at the end of a run. Raises: NotAvailable."""
    # On Docker it is the engine's kernel that counts: the agent is asked before the job starts.
    own_kernel = options.backend == "namespaces"
    if own_kernel and "netem" in scenario.needs and not SESSION.netem.available:
        raise NeedsNetem(
            f"this scenario needs netem: {SESSION.netem.reason}: "
            f"{platforms.mending('netem', platforms.of_this_machine())}; or run with "
            "--chaos-kernel=uml (or, for pytest, with --chaos-kernel=auto and the test marked "
            "@pytest.mark.netem)"
        )
    try:
        options.reports.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=options.reports):
            pass
    except OSError as problem:
        raise NotAvailable(
            f"--chaos-reports={options.reports}: no report can be written there: {problem}"
        ) from problem


def _run_once(scenario: Scenario, options: Options, script: Path) -> Report:
    name = naming.scenario_name(scenario)
    run_id = naming.new_run_id(name)
    began_s = time.monotonic()
    twin_source, twin = "none", None
    if any(bound.needs_twin for bound in scenario.bounds):
        twin_source, twin = _twin(scenario, options, script)
    with _scratch(run_id, options, script) as scratch:
        history = _executed(scenario, options, script, scratch)
        findings = bounds.judge(history, expectation(scenario, options), scenario.bounds, twin)
        return write_report(
            options.reports,
            run_id=run_id,
            name=name,
            scenario=scenario,
            findings=findings,
            history=history,
            logs=scratch.nodes,
            seed=options.seed,
            versions=versions.of_a_run(options, SESSION.engine_of(options)),
            replay=naming.replay_command(options),
            twin_source=twin_source,
            twin=twin,
            wall_s=time.monotonic() - began_s,
        )


def _executed(
    scenario: Scenario,
    options: Options,
    script: Path,
    scratch: Scratch,
    needs: frozenset[str] = frozenset(),
) -> History:
    """Execute the job once. needs: what else the nodes must be capable of."""
    execution = Execution(
        run_id=scratch.run_id,
        job=scenario.job,
        schedule=tuple(scenario.schedule),
        needs=scenario.needs | needs,
        script=script,
        cwd=Path.cwd(),
        seed=options.seed,
        owner=_owner(script),
    )
    return asyncio.run(execute(execution, SESSION.backend(options), scratch))


@contextlib.contextmanager
def _scratch(run_id: str, options: Options, script: Path) -> Iterator[Scratch]:
    """Make a run's scratch directory, guarded; where the harness fails, keep its record."""
    SESSION.guard(scratch_root(run_id))
    SESSION.guard(options.reports / f".{run_id}.partial")
    with (
        scratch_directory(run_id, owner=_owner(script)) as scratch,
        _record_kept(options, scratch),
    ):
        yield scratch


@contextlib.contextmanager
def _record_kept(options: Options, scratch: Scratch) -> Iterator[None]:
    """Where the harness fails, keep what was recorded until then, and say where it is."""
    try:
        yield
    except HarnessError as problem:
        try:
            kept = keep_record(
                options.reports,
                run_id=scratch.run_id,
                problem=str(problem),
                history=scratch.history,
                logs=scratch.nodes,
            )
        except HarnessError as second:
            problem.add_note(str(second))
        else:
            problem.add_note(f"recorded until then: {kept}")
        raise


def _twin(scenario: Scenario, options: Options, script: Path) -> tuple[str, History]:
    """Give the history of the same job without faults, run once per session and job."""
    key = twin_key(scenario.job, script, options)
    if key in SESSION.twins:
        source, twin = SESSION.twins[key]
        return f"cached from {source}", twin
    run_id = naming.new_run_id("twin")
    fault_free = dataclasses.replace(scenario, schedule=(), bounds=(bounds.finishes(),))
    with _scratch(run_id, options, script) as scratch:
        # What the faults need is refused now, and not after the twin has run.
        twin = _executed(fault_free, options, script, scratch, needs=scenario.needs)
        _check_finished(twin, scenario.job)
    SESSION.twins[key] = (run_id, twin)
    return f"run as {run_id}", twin


def _check_finished(twin: History, job: Job) -> None:
    finished = {
        e.rank for e in twin.of("process_exited") if e.rank is not None and e["status"] == 0
    }
    if len(finished) < job.world_size:
        missing = sorted(set(range(job.world_size)) - finished)
        raise HarnessError(
            f"the fault-free twin did not finish: ranks {missing} did not exit with status 0; "
            "without a twin the result of the run under faults cannot be judged"
        )


def expectation(scenario: Scenario, options: Options) -> Expectation:
    """Give what is expected of a run apart from its history."""
    job = scenario.job
    nowhere = [str(_NOWHERE + node) for node in range(job.nodes + 1)]
    entries = []
    for nth, injection in enumerate(scenario.schedule):
        placed = place(injection, job=job, addresses=nowhere, seed=options.seed, nth=nth)
        check(placed, injection)
        on_links = {
            rank
            for link in placed.links
            if link.node < job.nodes
            for rank in job.ranks_of(link.node)
        }
        entries.append(
            ExpectedInjection.of(
                nth,
                injection.fault,
                ranks=sorted(on_links | set(placed.ranks)),
                code=describe(injection.fault),
                on=describe(injection.on),
                at=describe(injection.at),
            )
        )
    expected = Expectation(world_size=job.world_size, steps=job.steps, injections=tuple(entries))
    if not expected.ranks:
        raise InvalidScenario(
            f"NodeLoss on every one of Job(nodes={job.nodes}), as --chaos-seed={options.seed} "
            "draws them: want a node that stays, since of a lost one nothing is expected"
        )
    return expected


def _owner(script: Path) -> tuple[int, int] | None:
    """Tell whom ranks run as: the owner of the script where the harness is root, else itself."""
    if os.geteuid() != 0:
        return None
    status = script.stat()
    return (status.st_uid, status.st_gid) if status.st_uid != 0 else None


def _raise_verdict(reports: Sequence[Report]) -> None:
    __tracebackhide__ = True
    for verdict, error in (
        (bounds.Verdict.FAILED, BoundExceeded),
        (bounds.Verdict.UNKNOWN, NotProven),
    ):
        told = next((report for report in reports if report.verdict is verdict), None)
        if told is not None:
            bad = sum(report.verdict is not bounds.Verdict.PASSED for report in reports)
            several = f"{bad} of {len(reports)} runs did not pass; the first:\n"
            raise error((several if len(reports) > 1 else "") + told.explanation)
