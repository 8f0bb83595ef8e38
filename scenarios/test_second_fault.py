"""A second fault hits while the job recovers from the first: it recovers, or gives up in order.

Rank 2 is killed; then, in each phase of the recovery, something else goes wrong. Each phase is
made long enough to be hit, and each test looks into the record whether it was.
"""

import dataclasses

import pytest

from chaoslab import (
    Injection,
    Job,
    Scenario,
    at_step,
    between,
    bounds,
    faults,
    node,
    on_event,
    on_failure,
    rank,
    run,
    store,
)
from chaoslab.history import Event, History
from chaoslab.report import Report
from chaoslab.schedule import Target, Trigger
from scenarios.jobs import CHARLM

pytestmark = pytest.mark.nightly

VICTIM, SURVIVORS = 2, 3
FIRST = Injection(fault=faults.Kill(), on=rank(VICTIM), at=at_step(50))
ALL_HAVE_NOTICED = on_event("failure_seen", nth=SURVIVORS)
ALL_BACK_OFF = on_event("backoff", nth=SURVIVORS)
ALL_HAVE_CHECKED = on_event("health_checked", nth=SURVIVORS)
# Four ranks form the first group: the eighth to be ready is the last of the second one.
ALL_HAVE_GATHERED_AGAIN = on_event("gathered", nth=8)
ALL_ARE_READY_AGAIN = on_event("group_ready", nth=8)
ALL_HAVE_RESTORED_AGAIN = on_event("restored", nth=8)
RECOVERS = [
    bounds.recovers_within(12, injection=1),
    bounds.keeps_acknowledged(),
    bounds.same_result_as_twin(),
]
GIVES_UP = [bounds.circuit_opens_within(15, injection=1), bounds.leaves_nothing_behind()]

LONG_TEARDOWN = dataclasses.replace(CHARLM, args=(*CHARLM.args, "--detach-floor-s", "1"))
LONG_RESTORE = dataclasses.replace(CHARLM, args=(*CHARLM.args, "--restore-floor-s", "1"))
LONG_RENDEZVOUS = dataclasses.replace(CHARLM, restart=on_failure(limit=3, delay_s=1.5))
LONG_BACKOFF = dataclasses.replace(CHARLM, args=(*CHARLM.args, "--backoff-s", "3"))
IMPATIENT = ("--patience-s", "6")
TWO_APART = faults.SilentDrop(duration_s=12)


def second(
    fault: faults.Fault, on: Target, at: Trigger, job: Job, promises: list[bounds.Bound]
) -> Scenario:
    """Give the scenario of one second fault."""
    return Scenario(
        job=job, schedule=[FIRST, Injection(fault=fault, on=on, at=at)], bounds=promises
    )


CUT_FOR_GOOD = second(
    faults.LinkDown(),
    node(1),
    ALL_BACK_OFF,
    dataclasses.replace(LONG_BACKOFF, args=(*LONG_BACKOFF.args, *IMPATIENT)),
    GIVES_UP,
)


def record(report: Report) -> tuple[History, Event]:
    """Give a run's record, and the moment of the second injection in it."""
    history = History.load(report.directory / "history.jsonl")
    (injected,) = (e for e in history.of("injected") if e["injection"] == 1)
    return history, injected


def in_teardown(report: Report, victim: int) -> bool:
    """Tell whether a rank was tearing its group down when the second fault hit."""
    history, hit = record(report)
    kinds = ("failure_seen", "torn_down")
    seen, done = ([e for e in history.of(k, rank=victim) if e.t_s <= hit.t_s] for k in kinds)
    return (len(seen), len(done)) == (1, 0)


def in_health_check(report: Report) -> bool:
    """Tell whether every survivor began its first check while the second fault was in force."""
    history, hit = record(report)
    (healed,) = (e for e in history.of("healed") if e["injection"] == 1)
    first = {e.rank: e for e in reversed(history.of("backoff")) if e.rank != VICTIM}
    begun = [e.t_s + e["wait_s"] for e in first.values()]
    return len(begun) == SURVIVORS and all(hit.t_s < t_s < healed.t_s for t_s in begun)


def in_backoff(report: Report, victim: int) -> bool:
    """Tell whether a rank was backing off when the second fault hit."""
    history, hit = record(report)
    return any(e.t_s <= hit.t_s < e.t_s + e["wait_s"] for e in history.of("backoff", rank=victim))


def in_rendezvous(report: Report) -> bool:
    """Tell whether all survivors were waiting for rank 2 when the second fault hit."""
    history, hit = record(report)
    checked = [e for e in history.of("health_checked") if e.t_s <= hit.t_s]
    early = [e for e in history.of("group_ready") if e.t_s <= hit.t_s and e["generation"] > 1]
    back = [e for e in history.of("rank_started", rank=VICTIM) if e.t_s <= hit.t_s]
    return (len(checked), len(early), len(back)) == (SURVIVORS, 0, 1)


def in_connecting(report: Report, victim: int) -> bool:
    """Tell whether a rank was connecting to the others in the recovery when the last fault hit."""
    history = History.load(report.directory / "history.jsonl")
    hit = history.of("injected")[-1]
    kinds = ("gathered", "group_ready")
    gathered, ready = (
        [e["generation"] for e in history.of(k, rank=victim) if e.t_s <= hit.t_s] for k in kinds
    )
    return len(gathered) > 1 and gathered[-1] not in ready


def in_restore(report: Report, victim: int) -> bool:
    """Tell whether a rank was restoring when the second fault hit."""
    history, hit = record(report)
    ready = [e for e in history.of("group_ready", rank=victim) if e.t_s <= hit.t_s]
    restored = [e for e in history.of("restored", rank=victim) if e.t_s <= hit.t_s]
    return (len(ready), len(restored)) == (2, 1)


def in_first_step(report: Report, victim: int) -> bool:
    """Tell whether a rank was in its first step after the restore when the second fault hit."""
    history, hit = record(report)
    restored = [e for e in history.of("restored", rank=victim) if e.t_s <= hit.t_s]
    steps = history.of("step", rank=victim)
    again = [e for e in steps if restored[-1].t_s < e.t_s <= hit.t_s]
    return (len(restored), len(again)) == (2, 0)


def test_a_rank_killed_while_it_tears_its_group_down() -> None:
    """A survivor dies before the others have let go of their groups: both ranks are replaced."""
    report = run(second(faults.Kill(), rank(1), ALL_HAVE_NOTICED, LONG_TEARDOWN, RECOVERS))
    assert in_teardown(report, 1)


def test_a_store_frozen_during_the_health_check() -> None:
    """Every survivor's check waits for a store that does not answer: none takes it for lost."""
    freeze = faults.Stop(duration_s=5)
    report = run(second(freeze, store(), ALL_BACK_OFF, LONG_BACKOFF, RECOVERS))
    assert in_health_check(report)


def test_a_rank_killed_in_its_first_step_after_the_restore() -> None:
    """A recovery that was all but done begins anew, from the same checkpoint."""
    report = run(second(faults.Kill(), rank(1), ALL_HAVE_RESTORED_AGAIN, CHARLM, RECOVERS))
    assert in_first_step(report, 1)


def test_two_nodes_that_reach_the_store_and_not_each_other() -> None:
    """All gather, and two cannot connect: a timeout later they try again, until they can."""
    scenario = second(TWO_APART, between(1, 3), ALL_HAVE_CHECKED, LONG_RENDEZVOUS, RECOVERS)
    report = run(scenario)
    history, hit = record(report)
    (healed,) = (e for e in history.of("healed") if e["injection"] == 1)
    meanwhile = [e for e in history.of("failure_seen") if hit.t_s < e.t_s < healed.t_s]
    assert {e.rank for e in meanwhile if e["generation"] > 1} >= {1, 3}


def test_a_rank_killed_while_the_others_connect() -> None:
    """It has met the others at the store, and two of these wait for a connection of their own."""
    cut = Injection(fault=TWO_APART, on=between(1, 3), at=ALL_HAVE_CHECKED)
    third = Injection(fault=faults.Kill(), on=rank(0), at=ALL_HAVE_GATHERED_AGAIN)
    scenario = Scenario(job=LONG_RENDEZVOUS, schedule=[FIRST, cut, third], bounds=RECOVERS)
    report = run(scenario)
    assert in_connecting(report, 1) or in_connecting(report, 3)


def test_a_rank_killed_while_it_restores() -> None:
    """The group of the recovery loses a rank before its first step: the next one holds."""
    report = run(second(faults.Kill(), rank(1), ALL_ARE_READY_AGAIN, LONG_RESTORE, RECOVERS))
    assert in_restore(report, 1)


def test_a_rank_killed_while_it_waits_for_the_others() -> None:
    """Its place in the generation is taken by a dead process: its successor moves all on."""
    report = run(second(faults.Kill(), rank(1), ALL_HAVE_CHECKED, LONG_RENDEZVOUS, RECOVERS))
    assert in_rendezvous(report)


def test_a_store_frozen_during_the_rendezvous() -> None:
    """No call to the store hangs: the ranks wait it out and meet when it goes on."""
    freeze = faults.Stop(duration_s=4)
    report = run(second(freeze, store(), ALL_HAVE_CHECKED, LONG_RENDEZVOUS, RECOVERS))
    assert in_rendezvous(report)


def test_a_node_cut_off_during_the_backoff() -> None:
    """The node's health check fails until its link is back; the others wait for it."""
    cut = faults.LinkDown(duration_s=4)
    report = run(second(cut, node(1), ALL_BACK_OFF, LONG_BACKOFF, RECOVERS))
    assert in_backoff(report, 1)


def test_a_node_cut_off_for_good_during_the_backoff() -> None:
    """Nobody waits longer than the patience: all leave with the status that says so."""
    report = run(CUT_FOR_GOOD)
    assert in_backoff(report, 1)


def test_a_store_lost_for_good_during_the_rendezvous() -> None:
    """Without a store nobody can meet: all leave, within their patience."""
    job = dataclasses.replace(LONG_RENDEZVOUS, args=(*LONG_RENDEZVOUS.args, *IMPATIENT))
    # A rank that is started without a store waits for it, too, before it counts its patience.
    promises = [bounds.circuit_opens_within(20, injection=1), bounds.leaves_nothing_behind()]
    report = run(second(faults.Kill(), store(), ALL_HAVE_CHECKED, job, promises))
    assert in_rendezvous(report)
