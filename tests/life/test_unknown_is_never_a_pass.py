"""UNKNOWN is never a pass: real runs in which something that a judgement needs is missing."""

import dataclasses
import re
import signal

import pytest

from chaoslab import (
    BoundExceeded,
    HarnessError,
    Injection,
    Job,
    NotAvailable,
    NotProven,
    Options,
    Scenario,
    Verdict,
    at_step,
    bounds,
    faults,
    node,
    on_event,
    on_failure,
    rank,
    run,
)
from chaoslab.bounds import Bound
from chaoslab.history import History
from chaoslab.kernel import Availability
from chaoslab.runner import SESSION

pytestmark = pytest.mark.netem(needed=False)

JOB = Job(script="tests/trainers/counter.py", nodes=2, steps=200, limit_s=60)
"""Two seconds: a fault at step 20 bites before the end on a machine that is busy, too."""
STOP = Injection(fault=faults.Stop(duration_s=0.2), on=rank(1), at=at_step(20))


@pytest.fixture
def options(tmp_path):
    return Options(reports=tmp_path / "reports", kernel="host")


def scenario(*injections, args=(), promises=None, job=JOB):
    return Scenario(
        job=dataclasses.replace(job, args=args),
        schedule=injections,
        bounds=promises or [bounds.recovers_within(20)],
    )


def test_the_healthy_twin_passes(options) -> None:
    """With all its evidence the same run is PASSED."""
    report = run(scenario(STOP), options=options)
    assert report.verdict is Verdict.PASSED


def test_a_fault_whose_effect_was_not_seen_is_unknown(options) -> None:
    """A silent drop of traffic that nobody sends has not bitten: the message says so."""
    quiet = Injection(
        fault=faults.SilentDrop(duration_s=6, ports=(4321,), direction="ingress"),
        on=node(1),
        at=at_step(20),
    )
    job = dataclasses.replace(JOB, steps=1000)
    with pytest.raises(NotProven, match="no drop counted on ingress"):
        run(scenario(quiet, job=job), options=options)


def test_a_rank_whose_events_stop_is_unknown(options) -> None:
    """A rank that goes on without a word cannot be judged: the message names it."""
    with pytest.raises(NotProven, match=r"its events stop after step 30"):
        run(scenario(STOP, args=("--silent-after", "30")), options=options)


def test_a_checker_that_crashes_is_unknown(options) -> None:
    """A bound that raises decides nothing: the message says that it crashed."""

    def crash(*_):
        raise ZeroDivisionError("planted")

    promises = [bounds.recovers_within(20), Bound(name="planted", check=crash)]
    with pytest.raises(NotProven, match=r"checker crashed: ZeroDivisionError: planted"):
        run(scenario(STOP, promises=promises), options=options)


def test_a_job_that_ends_before_its_trigger_is_unknown(options) -> None:
    """No fault was injected, so nothing was proven: the message says which trigger it was."""
    late = Injection(fault=faults.Kill(), on=rank(1), at=on_event("circuit_opened"))
    with pytest.raises(NotProven, match="trigger"):
        run(scenario(late), options=options)


def test_a_damaged_record_is_unknown(options) -> None:
    """A line that is no event leaves a doubt, whatever the bounds say."""
    with pytest.raises(NotProven, match="is no event"):
        run(scenario(STOP, args=("--garbage-at", "30")), options=options)


def test_an_orphan_is_a_leak(options) -> None:
    """A process that outlives its rank breaks the bound, and no other."""
    promises = [bounds.recovers_within(20), bounds.leaves_nothing_behind()]
    with pytest.raises(BoundExceeded, match="leaves_nothing_behind") as caught:
        run(scenario(STOP, args=("--orphan",), promises=promises), options=options)
    assert "FAILED   recovers_within" not in str(caught.value)


def test_a_fault_that_this_kernel_lacks_is_refused_before_any_rank_starts(options) -> None:
    """The refusal names what is missing; where the kernel has it, the same fault is taken."""
    seeded = Injection(
        fault=faults.PacketLoss(ratio=0.5, seed=1, duration_s=0.2), on=node(1), at=at_step(5)
    )
    try:
        run(scenario(seeded, job=dataclasses.replace(JOB, steps=300)), options=options)
    except NotAvailable as refused:
        assert "netem" in str(refused)  # noqa: PT017  either branch is checked
        assert not list(options.reports.glob("*"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class NotYet(faults.LinkDown):
    """A fault that no kernel has."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Name a capability that no agent knows."""
        return (*super().needs, "not_yet")


@pytest.mark.parametrize("promise", [bounds.recovers_within(20), bounds.same_result_as_twin()])
def test_a_capability_that_is_not_there_is_refused_before_any_rank_starts(
    options, tmp_path, promise
) -> None:
    """Also before the twin's ranks; the healthy twin of this test is every other one here."""
    touched = tmp_path / "touched"
    lacking = Injection(fault=NotYet(duration_s=1), on=node(1), at=at_step(5))
    args = ("--touch", str(touched))
    with pytest.raises(NotAvailable, match="this scenario needs not_yet"):
        run(scenario(lacking, args=args, promises=[promise]), options=options)
    assert not touched.exists()
    assert not list(options.reports.glob("*"))


def test_a_signal_that_is_handled_is_seen_to_be(options) -> None:
    """The kernel's masks say so; the process goes on."""
    usr1 = Injection(fault=faults.Signal(signal=signal.SIGUSR1), on=rank(1), at=at_step(20))
    report = run(scenario(usr1, args=("--catch", str(int(signal.SIGUSR1)))), options=options)
    (effective,) = History.load(report.directory / "history.jsonl").of("effective")
    assert "handled_by_the_process" in str(effective["effect"])


def test_a_signal_that_is_ignored_is_unknown(options) -> None:
    """It was delivered, and had no effect: the message says which it was."""
    usr1 = Injection(fault=faults.Signal(signal=signal.SIGUSR1), on=rank(1), at=at_step(20))
    with pytest.raises(NotProven, match="ignores SIGUSR1"):
        run(scenario(usr1, args=("--ignore", str(int(signal.SIGUSR1)))), options=options)


@pytest.mark.parametrize(("limit", "delay_s"), [(0, 0.0), (2, 0.4)])
def test_a_rank_is_started_again_so_often_and_after_so_long(options, limit, delay_s) -> None:
    """And no more: the job has failed then, and says with which status."""
    job = dataclasses.replace(JOB, restart=on_failure(limit=limit, delay_s=delay_s))
    with pytest.raises(BoundExceeded, match="exited with status 1"):
        run(scenario(args=("--crash",), promises=[bounds.finishes()], job=job), options=options)
    history = History.load(SESSION.reports[-1].directory / "history.jsonl")
    for index in range(JOB.nodes):
        starts = [e.t_s for e in history.of("process_started", rank=index)]
        ends = [e.t_s for e in history.of("process_exited", rank=index)]
        assert len(starts) == len(ends) == limit + 1
        pauses = [start - end for end, start in zip(ends, starts[1:], strict=False)]
        assert all(delay_s <= pause < delay_s + 3 for pause in pauses)


@pytest.mark.parametrize(("pid", "what"), [(2, "agent-0"), (6, "store")])
def test_an_agent_or_a_store_that_dies_by_itself_is_the_harness_own_error(
    options, pid, what
) -> None:
    """No verdict follows from a run whose own parts failed; its record is kept and named.

    The pids are those of the run's own pid namespace: the lab is 1, then come three agents,
    whoever wires them, and the store.
    """
    args = ("--kill-at", "30", "--kill-pid", str(pid))
    with pytest.raises(HarnessError, match=rf"{what} ended by itself, status -9") as caught:
        run(scenario(STOP, args=args), options=options)
    (kept,) = options.reports.iterdir()
    assert caught.value.__notes__ == [f"recorded until then: {kept}"]
    assert what in (kept / "problem.txt").read_text()
    history = History.load(kept / "history.jsonl")
    assert history.of("step")
    assert not history.of("run_ended")
    assert list(kept.glob("logs/**/*.log"))


def test_a_restart_that_the_harness_cannot_make_is_its_own_error(options) -> None:
    """A node's directory that is gone: the job is not blamed for a rank that cannot begin."""
    job = dataclasses.replace(JOB, restart=on_failure(limit=1, delay_s=0))
    with pytest.raises(HarnessError, match=r"a restart failed: .*could not begin") as caught:
        run(scenario(STOP, args=("--wreck-at", "30"), job=job), options=options)
    assert caught.value.__notes__


def test_a_twin_that_does_not_finish_is_the_harness_own_error(options) -> None:
    """Without a twin there is nothing to compare with: said, with the twin's record kept."""
    promises = [bounds.recovers_within(20, injection=0), bounds.same_result_as_twin()]
    args = ("--wreck-at", "30")
    with pytest.raises(HarnessError, match=r"twin did not finish: ranks \[0\]") as caught:
        run(scenario(STOP, args=args, promises=promises), options=options)
    assert "twin" in caught.value.__notes__[0]


def test_three_jobs_that_never_reach_a_trigger_are_told_apart(options) -> None:
    """A crash, a hang and a job without events: each message names its own cause."""
    cases = {
        "crash": (("--crash",), r"exited with status 1 .*rank-0.*RuntimeError: planted crash"),
        "hang": (("--hang",), r"still there when the run was given up after 4(\.0)? s"),
        "mute": (
            ("--silent-after", "0"),
            r"after step 0 of 200, and yet it exited with status 0",
        ),
    }
    job = dataclasses.replace(JOB, limit_s=4)
    for name, (args, _) in cases.items():
        with pytest.raises(NotProven, match=r"\(no rank told of a step\)") as caught:
            run(scenario(STOP, args=args, job=job), options=options)
        text = " ".join(str(caught.value).split())
        matching = [other for other, (_, told) in cases.items() if re.search(told, text)]
        assert matching == [name], text


def test_every_repeat_runs_and_the_count_is_told(options) -> None:
    """A scenario that fails once in a while is known by how often it fails."""
    thrice = dataclasses.replace(options, repeat=3)
    with pytest.raises(NotProven, match="3 of 3 runs did not pass"):
        run(scenario(STOP, args=("--silent-after", "30")), options=thrice)
    assert len(list(options.reports.iterdir())) == 3


def test_reports_that_cannot_be_written_are_refused_before_anything_starts(tmp_path) -> None:
    """A file where the directory should be: said at once, and by the option's name."""
    (tmp_path / "file").touch()
    nowhere = Options(reports=tmp_path / "file", kernel="host")
    with pytest.raises(NotAvailable, match=r"--chaos-reports=.*no report can be written"):
        run(scenario(STOP), options=nowhere)


def test_a_fault_without_a_window_is_not_said_to_be_healed_during_the_run(options) -> None:
    """Its taking down at the end of the run is told as that."""
    drop = Injection(fault=faults.SilentDrop(), on=node(1), at=at_step(20))
    job = dataclasses.replace(JOB, steps=400)
    report = run(scenario(drop, promises=[bounds.finishes()], job=job), options=options)
    history = History.load(report.directory / "history.jsonl")
    (healed,) = history.of("healed")
    assert healed["why"] == "it had no window: taken down with the run"


def test_a_scenario_that_needs_netem_is_refused_with_what_mends_it(options, monkeypatch) -> None:
    """Before anything starts: what is missing, the platform's command, and the other kernel."""
    lacking = Availability(available=False, reason="this kernel has no sch_netem")
    monkeypatch.setattr(SESSION, "netem", lacking)
    loss = Injection(fault=faults.PacketLoss(ratio=0.1, duration_s=1), on=node(1), at=at_step(5))
    with pytest.raises(NotAvailable, match=r"no sch_netem.*sch_netem.*--chaos-kernel=uml"):
        run(scenario(loss), options=options)
