"""Hand-written histories: a run told in events, whole or with one thing changed.

Three ranks, 20 steps of 0.1 s; step k ends at 1 + 0.1 k s. Rank 0 saves at steps 5, 10, 15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Any

from chaoslab.faults import ConnectionReset, Kill, NodeLoss, PacketLoss, SilentDrop
from chaoslab.history import Event, History
from chaoslab.measure import Expectation, ExpectedInjection

RANKS = 3
STEPS = 20
DIGESTS = {
    "parameters": "p" * 64,
    "optimizer": "o" * 64,
    "random_state": "r" * 64,
    "sample_order": "s" * 64,
}

Story = list[Event]


def event(t_s: float, kind: str, rank: int | None = None, **fields: Any) -> Event:
    node = fields.pop("node", None)
    incarnation = fields.pop("incarnation", None)
    return Event(
        t_s=round(t_s, 6),
        kind=kind,
        rank=rank,
        node=node,
        incarnation=incarnation,
        fields=MappingProxyType(fields),
    )


def step_end_s(step: int, rank: int, base_s: float = 1.0) -> float:
    return base_s + 0.1 * step + 0.001 * rank


def opening(ranks: Iterable[int] = range(RANKS)) -> Story:
    story = [event(0.0, "run_started", run="r1", seed=7), event(0.1, "nodes_ready")]
    story.append(event(0.15, "process_started", pid=99, store=True))
    for rank in ranks:
        story += [
            event(0.2, "process_started", rank, pid=100 + rank, incarnation=0),
            event(0.3, "rank_started", rank, incarnation=0),
            event(0.9, "group_ready", rank, generation=1, world_size=RANKS),
        ]
    return story


def steps(first: int, last: int, *, base_s: float = 1.0, ranks: Iterable[int] = range(3)) -> Story:
    story = []
    for rank in ranks:
        for step in range(first, last + 1):
            story.append(event(step_end_s(step, rank, base_s), "step", rank, step=step, loss=1.0))
            if rank == 0 and step % 5 == 0:
                t_s = step_end_s(step, rank, base_s)
                story.append(event(t_s + 0.01, "save_begun", rank, step=step))
                story.append(event(t_s + 0.03, "save_committed", rank, step=step, path=f"s{step}"))
    return story


def ending(t_s: float, ranks: Iterable[int] = range(3)) -> Story:
    story = []
    for rank in ranks:
        story += [
            event(t_s, "result", rank, step=STEPS, **DIGESTS),
            event(t_s + 0.05, "rank_exited", rank, status=0, incarnation=0),
            event(t_s + 0.1, "process_exited", rank, status=0, pid=100 + rank, incarnation=0),
        ]
    story.append(event(t_s + 0.2, "process_exited", pid=99, status=-15, store=True))
    story.append(event(t_s + 0.3, "run_ended", reason="every rank exited"))
    return story


def twin_story() -> Story:
    """Tell of a run without faults."""
    return opening() + steps(1, STEPS) + ending(3.1)


def fault_events(bitten_s: float, index: int = 0, **fields: Any) -> Story:
    """Tell of a fault's begin and its proof, 10 ms later."""
    return [
        event(bitten_s + 0.001, "injected", injection=index, begun_t_s=bitten_s, **fields),
        event(bitten_s + 0.01, "effective", injection=index, effect="seen", evidence={"n": 1}),
    ]


def healed(t_s: float, index: int = 0) -> Event:
    return event(t_s, "healed", injection=index, evidence={"n": 2})


# --- a rank is killed at 1.85 s, after step 8; the job restores step 5 -------------------------


def kill_story() -> Story:
    """Tell of a kill from which the job recovers."""
    story = opening() + steps(1, 8) + fault_events(1.85, fault="Kill", ranks=[2])
    story.append(event(1.855, "process_exited", 2, status=-9, incarnation=0))
    for rank, seen_s in ((0, 1.90), (1, 1.95)):
        story += [
            event(seen_s, "failure_seen", rank, error="RuntimeError", message="closed by peer"),
            event(seen_s + 0.1, "torn_down", rank),
            event(seen_s + 0.11, "backoff", rank, attempt=1, wait_s=0.2),
            event(seen_s + 0.31, "attempt", rank, what="store", ok=True),
        ]
    story.append(event(2.4, "process_started", 2, pid=202, incarnation=1))
    story.append(event(2.5, "rank_started", 2, incarnation=1))
    story.append(event(2.6, "attempt", 2, what="store", ok=True, incarnation=1))
    for rank in range(RANKS):
        story.append(event(3.0 + 0.025 * rank, "group_ready", rank, generation=2, world_size=3))
        story.append(event(3.1 + 0.05 * rank, "restored", rank, step=5, verified=True))
    return story + steps(6, STEPS, base_s=2.7) + ending(4.8)


def kill_expected() -> Expectation:
    kill = ExpectedInjection.of(
        0, Kill(), ranks=(2,), code="Kill()", on="rank(2)", at="AtStep(step=8)"
    )
    return Expectation(world_size=RANKS, steps=STEPS, injections=(kill,))


# --- 20 % loss from 1.85 s to 4.85 s: TCP hides it, steps 9 and 10 take long -------------------


def loss_story() -> Story:
    """Tell of a loss that the job rides out: nobody notices a failure."""
    story = opening() + steps(1, 8) + fault_events(1.85, fault="PacketLoss")
    for rank in range(RANKS):
        story += [event(3.0, "step", rank, step=9), event(4.5, "step", rank, step=10)]
    story += [healed(4.85), event(4.51, "save_committed", 0, step=10, path="s10")]
    return story + steps(11, STEPS, base_s=4.0) + ending(6.1)


def loss_expected() -> Expectation:
    fault = PacketLoss(ratio=0.2, duration_s=3.0)
    loss = ExpectedInjection.of(0, fault, ranks=(2,), code="PacketLoss(...)", at="AtStep(step=8)")
    return Expectation(world_size=RANKS, steps=STEPS, injections=(loss,))


# --- a silent cut from 1.85 s on: every rank notices after 1 s, and the circuit opens ----------


def circuit_story(status: int = 75) -> Story:
    """Tell of a job that gives up for good, in order."""
    story = opening() + steps(1, 8) + fault_events(1.85, fault="SilentDrop")
    for rank in range(RANKS):
        story += [
            event(2.85 + 0.01 * rank, "failure_seen", rank, error="RuntimeError"),
            event(2.95 + 0.01 * rank, "torn_down", rank),
            event(3.0, "backoff", rank, attempt=1, wait_s=0.5),
            event(3.2 + 0.15 * rank, "attempt", rank, what="store", ok=False),
            event(3.5, "backoff", rank, attempt=2, wait_s=1.0),
            event(3.8 + 0.25 * rank, "attempt", rank, what="store", ok=False),
            event(4.5, "circuit_opened", rank, reason="two attempts failed"),
            event(4.6 + 0.1 * rank, "process_exited", rank, status=status, incarnation=0),
        ]
    return [*story, event(5.0, "run_ended", reason="every rank exited")]


def circuit_expected() -> Expectation:
    cut = ExpectedInjection.of(
        0, SilentDrop(), ranks=(2,), code="SilentDrop()", at="AtStep(step=8)"
    )
    return Expectation(world_size=RANKS, steps=STEPS, injections=(cut,))


# --- 20 % loss from 1.85 s on, for good: two more steps get through before it is felt ----------


def lasting_loss_story() -> Story:
    """Tell of a job that fails 1 s after the loss began, restores step 2, and gets there."""
    story = opening() + steps(1, 10) + fault_events(1.85, fault="PacketLoss")
    for rank in range(RANKS):
        story += [
            event(3.0 + 0.01 * rank, "failure_seen", rank, error="RuntimeError"),
            event(3.1 + 0.01 * rank, "torn_down", rank),
            event(3.15, "backoff", rank, attempt=1, wait_s=0.1),
            event(3.3, "attempt", rank, what="store", ok=True),
            event(3.5, "group_ready", rank, generation=2, world_size=RANKS),
            event(3.6, "restored", rank, step=2, verified=True),
        ]
    return story + steps(3, STEPS, base_s=3.5) + ending(5.6)


def lasting_loss_ends_story() -> Story:
    """Tell of one that gives up in order instead."""
    story = [e for e in lasting_loss_story() if e.t_s < 3.2]
    story += [event(4.6 + 0.1 * r, "process_exited", r, status=75) for r in range(RANKS)]
    return [*story, event(5.0, "run_ended", reason="every rank exited")]


def lasting_loss_expected() -> Expectation:
    loss = ExpectedInjection.of(
        0, PacketLoss(ratio=0.2), ranks=(2,), code="PacketLoss(...)", at="AtStep(step=8)"
    )
    return Expectation(world_size=RANKS, steps=STEPS, injections=(loss,))


# --- all 16 ranks lose their connections at 1.85 s, after step 8, and come back together -------

MANY = 16
JITTERED_S = tuple(0.2 + 0.07 * rank for rank in range(MANY))
"""Waits that spread 16 ranks: two in any 100 ms."""
ALIKE_S = (0.2,) * MANY
"""Waits without jitter: all 16 at once."""


def storm_story(waits_s: Iterable[float] = JITTERED_S) -> Story:
    """Tell of 16 ranks that wait so long each and then try the store."""
    ranks = range(MANY)
    story = opening(ranks) + steps(1, 8, ranks=ranks) + fault_events(1.85, fault="ConnectionReset")
    for rank, wait_s in zip(ranks, waits_s, strict=True):
        story += [
            event(1.9 + 0.001 * rank, "failure_seen", rank, error="RuntimeError"),
            event(1.95, "torn_down", rank),
            event(2.0, "backoff", rank, attempt=0, wait_s=wait_s),
            event(2.0 + wait_s, "attempt", rank, what="store", ok=True),
            event(4.0, "group_ready", rank, generation=2, world_size=MANY),
            event(4.1, "restored", rank, step=5, verified=True),
        ]
    return story + steps(6, STEPS, base_s=3.7, ranks=ranks) + ending(5.9, ranks)


def storm_expected() -> Expectation:
    reset = ExpectedInjection.of(
        0, ConnectionReset(), ranks=range(MANY), code="ConnectionReset()", on="everywhere()"
    )
    return Expectation(world_size=MANY, steps=STEPS, injections=(reset,))


# --- rank 2 is killed and nobody notices: the run is given up ----------------------------------


def hang_story() -> Story:
    """Tell of a job that hangs until the harness gives the run up."""
    story = opening() + steps(1, 8) + fault_events(1.85, fault="Kill", ranks=[2])
    story.append(event(1.855, "process_exited", 2, status=-9, incarnation=0))
    story.append(event(30.0, "gave_up", limit_s=30, waiting_for=["rank 0", "rank 1"]))
    story += [event(30.1, "process_exited", rank, status=-9, incarnation=0) for rank in (0, 1)]
    return story


# --- rank 2's node is lost for good: the others go on without it -------------------------------


def node_loss_story() -> Story:
    """Tell of a job that shrinks to two ranks and finishes."""
    story = [e for e in kill_story() if e.rank != 2 or e.t_s < 2.0]
    return [e for e in story if not (e.rank == 2 and e.kind == "result")]


def node_loss_expected() -> Expectation:
    loss = ExpectedInjection.of(0, NodeLoss(), ranks=(2,), code="NodeLoss()", on="node(2)")
    return Expectation(world_size=RANKS, steps=STEPS, injections=(loss,))


def reset_expected() -> Expectation:
    reset = ExpectedInjection.of(0, ConnectionReset(), ranks=(2,), code="ConnectionReset()")
    return Expectation(world_size=RANKS, steps=STEPS, injections=(reset,))


# --- one thing changed ------------------------------------------------------------------------


def without(story: Story, kind: str, rank: int | None = None, after_s: float = 0.0) -> Story:
    """Leave out the events of a kind (of one rank, from a time on)."""
    gone: Callable[[Event], bool] = lambda e: (  # noqa: E731 - reads as one condition
        e.kind == kind and (rank is None or e.rank == rank) and e.t_s >= after_s
    )
    return [e for e in story if not gone(e)]


def silent_after(story: Story, rank: int, t_s: float) -> Story:
    """Leave out everything of a rank from a time on."""
    return [e for e in story if e.rank != rank or e.t_s < t_s]


def changed(story: Story, kind: str, rank: int | None = None, **fields: Any) -> Story:
    """Give the events of a kind (of one rank) other fields."""
    return [
        Event(
            t_s=e.t_s,
            kind=e.kind,
            rank=e.rank,
            node=e.node,
            incarnation=e.incarnation,
            fields=MappingProxyType({**e.fields, **fields}),
        )
        if e.kind == kind and (rank is None or e.rank == rank)
        else e
        for e in story
    ]


def history(story: Story) -> History:
    return History(story)
