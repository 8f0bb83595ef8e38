"""FaultTolerantRunner: runs a training task to its end through lost peers, cuts and restarts.

One life of a generation: all ranks join it, restore the newest checkpoint that all of them have,
and train. When a peer is lost, the rank tears its group down, waits a little, checks its own
health, and begins the next life. The number of ranks is fixed. What is no communication failure
is the user's error, and is raised at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
import uuid
from typing import NoReturn

from chaoslab import probe
from chaoslab.resilience import failures, health, layout, leaving, rendezvous, state
from chaoslab.resilience.backoff import Backoff
from chaoslab.resilience.breaker import CIRCUIT_OPEN_STATUS, CircuitBreaker
from chaoslab.resilience.checkpoint import AtomicCheckpointManager
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.errors import (
    CheckpointError,
    CheckpointWriteFailed,
    CircuitOpen,
    GroupLost,
    RendezvousFailed,
    SaveTimedOut,
    StoreError,
)
from chaoslab.resilience.group import Group
from chaoslab.resilience.limits import Limits
from chaoslab.resilience.task import Task, saved_state, state_of_task

FINISHED_KEY = "finished"
SHORTEST_S = 0.05
GONE_S = 0.5
"""How long a rank that gives up waits for what is left of its groups before it ends anyhow."""

FORGET_S = 1.0
"""Limit of tidying the store up after a recovery."""


class FaultTolerantRunner:
    """Runs a task on a fixed number of ranks through failures, until its last step.

    client: the store. rank, world_size: this process's place. checkpoints: where state is kept.
    save_every_steps: how often; the last step is always saved. incarnation: how often this rank
    has been restarted; a restarted rank waits for patience_s, not for start_patience_s.
    any_world_size: go on from a checkpoint of another number of ranks, too: all of the task's state
    but what is under PER_RANK is the same on every rank; random states then begin as after `reset`.

    Raises: ValueError for values out of range.
    """

    def __init__(
        self,
        *,
        client: StoreClient,
        rank: int,
        world_size: int,
        checkpoints: AtomicCheckpointManager,
        save_every_steps: int,
        limits: Limits | None = None,
        backoff: Backoff | None = None,
        incarnation: int = 0,
        any_world_size: bool = False,
    ) -> None:
        if not 0 <= rank < world_size or save_every_steps < 1 or incarnation < 0:
            raise ValueError(
                f"FaultTolerantRunner(rank={rank}, world_size={world_size}, save_every_steps="
                f"{save_every_steps}, incarnation={incarnation}): want 0 <= rank < world_size, "
                "save_every_steps >= 1, incarnation >= 0"
            )
        self.limits = limits or Limits()
        self.rank, self.world_size = rank, world_size
        self.incarnation = incarnation
        self.save_every_steps = save_every_steps
        self.any_world_size = any_world_size
        self._client, self.checkpoints = client, checkpoints
        self._backoff = backoff or Backoff.for_world(world_size, rank=rank)
        self._breaker = CircuitBreaker(
            patience_s=self.limits.patience_s,
            attempts=self.limits.attempts,
            healthy_steps=self.limits.healthy_steps,
        )
        self._process = uuid.uuid4().hex
        self._group: Group | None = None
        self._going: list[Group] = []
        self._number = 0
        self._attempt = ""
        self._failed_saves = 0
        self._refused: list[str] = []
        self._own_interface = "GLOO_SOCKET_IFNAME" not in os.environ

    def run(self, task: Task, *, steps: int) -> None:
        """Train until this many steps are done; on return the task holds the final state.

        Raises: CircuitOpen (a SystemExit with status 75) when the job gives up; whatever the
        task raises that is no communication failure; ValueError for less than one step;
        CheckpointError where all checkpoints are of another number of ranks.
        """
        if steps < 1:
            raise ValueError(f"run(steps={steps}): want at least 1")
        probe.emit("rank_started", pid=os.getpid(), world_size=self.world_size)
        try:
            self._run(task, steps)
        finally:
            # The interpreter's end must not meet a thread that is about to take its lock in C++.
            self._until_gone(self.limits.destroy_s)

    def _run(self, task: Task, steps: int) -> None:
        while (failure := self._live(task, steps)) is not None:
            self._breaker.failed(time.monotonic())
            probe.emit("failure_seen", generation=self._number, **dataclasses.asdict(failure))
            with contextlib.suppress(StoreError, RendezvousFailed):
                if self._number and failure.is_news:
                    rendezvous.advance(self._client, self._number, timeout_s=0.5)
            if not self._tear_down(task):
                reason = f"the group was not destroyed within {self.limits.destroy_s} s"
                self._give_up(f"{reason}; the failure before: {failure.message}", stuck=True)
            self._recover(failure)
        self._tear_down(task)

    def _live(self, task: Task, steps: int) -> failures.Failure | None:
        """Live one generation; None when the last step is done and all ranks may leave."""
        try:
            if self._is_finished(task, steps):
                return None
            generation = self._join()
            self._group = self._connect(generation)
            self._train(task, generation, steps)
            self._leave(steps)
        except Exception as error:
            failure = failures.of(error, self._group)
            if failure is None:
                self._cut()
                raise
            return failure
        except BaseException:
            self._cut()  # peers need not wait out their timeout for a rank that is leaving
            raise
        return None

    def _join(self) -> rendezvous.Generation:
        member = self._member()
        first = self._number == 0 and self.incarnation == 0
        if self._number == 0 and self.incarnation > 0:
            self._client.suspect()  # a restarted rank connects again, too
        now_s = time.monotonic()
        patience_s = self.limits.start_patience_s if first else self._breaker.left_s(now_s)
        try:
            generation = rendezvous.join(
                self._client,
                member,
                world_size=self.world_size,
                after=self._number,
                patience_s=patience_s,
            )
        except rendezvous.CircuitOpenedElsewhere as error:
            self._give_up(f"another rank gave up: {error}", tell=False)
        except (RendezvousFailed, StoreError) as error:
            self._give_up(str(error))
        self._breaker.gathered()  # before they connect: on a lossy link they may have to try again
        probe.emit("gathered", generation=generation.number)
        return generation

    def _member(self) -> rendezvous.Member:
        """Survey the checkpoints and make this rank's entry.

        Raises: CheckpointError where training would begin anew beside another job's checkpoints.
        """
        survey = self.checkpoints.survey(any_world_size=self.any_world_size)
        others = [i for i in survey.refused if layout.is_of_other_size(i.path, self.world_size)]
        if others and not survey.steps and not self.any_world_size:
            raise CheckpointError(
                f"{others[0].reason}: this job would begin anew beside it; give "
                "any_world_size=True to go on from it, or another directory"
            )
        reasons = [item.reason for item in survey.refused]
        for reason in reasons:
            if reason not in self._refused:
                self._say(f"refuses a checkpoint: {reason}")
        self._refused = reasons
        return rendezvous.Member(
            rank=self.rank,
            process=self._process,
            incarnation=self.incarnation,
            steps=survey.steps,
            address=health.address_towards(self._client.address),
        )

    def _connect(self, generation: rendezvous.Generation) -> Group:
        self._number = generation.number
        # Now, and not at each save: a store that is away then is no reason to stop training.
        self._attempt = f"g{self._number}-{self._run_name()}"
        address = health.address_towards(self._client.address)
        interface = health.interface_of(address) if address else None
        if self._own_interface and interface is not None:
            # Else gloo resolves the host's name, which may give an address of another network.
            os.environ["GLOO_SOCKET_IFNAME"] = interface
        group = Group(
            self._client,
            number=generation.number,
            rank=self.rank,
            world_size=self.world_size,
            timeout_s=self.limits.timeout_s,
        )
        probe.emit("group_ready", generation=generation.number, world_size=self.world_size)
        if self.rank == 0:
            with contextlib.suppress(StoreError):  # the next generation does it as well
                rendezvous.forget_before(self._client, generation.number, timeout_s=FORGET_S)
        return group

    def _train(self, task: Task, generation: rendezvous.Generation, steps: int) -> None:
        group = self._present_group()
        step = self._restore(task, generation.restore_step)
        while step < steps:
            group.raise_if_lost()
            loss = task.step(step + 1)
            step += 1
            probe.emit("step", step=step, loss=loss)
            self._breaker.stepped(step)
            if step % self.save_every_steps == 0 or step == steps:
                self._save(task, step, is_last=step == steps)

    def _restore(self, task: Task, step: int | None) -> int:
        """Bring the task to a checkpoint, or to its beginning; give the steps done by then."""
        saved = None
        if step is not None:
            saved = self.checkpoints.load(step, any_world_size=self.any_world_size)
        task.reset()
        if saved is not None:
            task.load_state_dict(state_of_task(saved))
        if self._group is not None:
            task.attach()
        own = (saved or {}).get(state.PER_RANK)
        if own is not None:  # last, since building DDP may draw random numbers
            state.set_random_states(own["random"])
        probe.emit("restored", step=step or 0, verified=saved is not None, refused=self._refused)
        return step or 0

    def _save(self, task: Task, step: int, *, is_last: bool) -> None:
        """Save; a failed save is survived a few times in a row, but not the last one.

        Raises: CheckpointError.
        """
        group = self._present_group()
        content = saved_state(task.state_dict())
        try:
            self.checkpoints.save(step, content, attempt=self._attempt, should_stop=group.check)
        except CheckpointError as error:
            mine = isinstance(error, CheckpointWriteFailed)
            if group.check() is not None and not (mine and is_last):
                raise GroupLost(f"{group.lost} (while saving step {step})") from error
            if isinstance(error, SaveTimedOut):
                # A peer that said nothing for so long is lost: do not wait for it a second time.
                raise GroupLost(f"{error} (while saving step {step})") from error
            self._failed_saves += 1
            probe.emit(
                "save_failed", step=step, error_type=type(error).__name__, message=str(error)
            )
            if is_last or self._failed_saves > self.limits.failed_saves:
                raise
        else:
            self._failed_saves = 0

    def _leave(self, steps: int) -> None:
        """Wait until every rank has done its last step, so that none dies of another's leaving.

        When a rank was lost at the very end, its replacement moves the generation on, and the
        others come back to help it. When none comes, this rank's work is done all the same.
        """
        group, known = self._present_group(), str(self._number).encode()
        group.let_peers_go()
        keys = [f"exit/{self._number}/{rank}" for rank in range(self.world_size)]
        try:
            self._client.set(keys[self.rank], b"1")
            value = self._client.wait_change(
                rendezvous.GENERATION_KEY, known, or_all=keys, timeout_s=self.limits.patience_s
            )
        except StoreError as error:
            probe.emit("exit_alone", message=str(error))
            value = None
        if value not in (None, known):
            raise GroupLost("the generation has moved on at the exit barrier")
        group.finish()
        if value == known:
            with contextlib.suppress(StoreError):
                self._client.set(FINISHED_KEY, str(steps).encode())

    def _is_finished(self, task: Task, steps: int) -> bool:
        """Tell whether the others have finished and left; then only load the final state.

        A store that has served another job before may tell of that one's end.
        """
        if self.incarnation == 0:
            return False
        try:
            value = self._client.get(FINISHED_KEY, timeout_s=self.limits.timeout_s)
        except StoreError:
            return False
        if value is None or int(value) < steps:
            return False
        if int(value) not in self.checkpoints.survey().steps:
            return False
        self._restore(task, int(value))
        return True

    def _tear_down(self, task: Task) -> bool:
        """Destroy the group; tell whether that came to its end within the limit."""
        task.detach()
        if self._group is None:
            return True
        done = self._group.close(deadline_s=self.limits.destroy_s)
        probe.emit("torn_down", generation=self._number, ok=done)
        if done:
            self._until_gone(0.0)  # none is kept longer than it has to be
            self._going.append(self._group)
            self._group = None
        return done

    def _until_gone(self, limit_s: float) -> bool:
        """Wait until nothing is left of the groups of the past; tell whether nothing is."""
        end_s = time.monotonic() + limit_s
        self._going = [g for g in self._going if not g.has_gone(end_s - time.monotonic())]
        return not self._going

    def _recover(self, failure: failures.Failure) -> None:
        """Back off, then check this node's health, until it is fit or the circuit opens."""
        attempt = max(self._breaker.failures - 1, 0)
        unfit = ""
        while True:
            reason = self._breaker.reason(time.monotonic())
            if reason is not None:
                self._give_up(f"{reason}{unfit}; the last failure: {failure.message}")
            left_s = self._breaker.left_s(time.monotonic())
            most_s = max(left_s / 4, SHORTEST_S)  # the rest is for the others to come
            wait_s = self._backoff.wait_s(attempt, most_s=most_s)
            probe.emit("backoff", attempt=attempt, wait_s=round(wait_s, 6))
            time.sleep(wait_s)
            self._client.suspect()
            found = health.check(
                self._client,
                timeout_s=min(self.limits.timeout_s, left_s + 0.1),
                silent_ranks=failure.silent_ranks,
            )
            probe.emit("health_checked", **dataclasses.asdict(found))
            if found.ok:
                return
            unfit = f"; {found.reason}"
            attempt += 1

    def _give_up(self, reason: str, *, tell: bool = True, stuck: bool = False) -> NoReturn:
        """Open the circuit: say why, tell the others, destroy the group, leave.

        tell: the others do not know yet. stuck: a thread hangs in torch, which could hold up the
        interpreter's own end. Raises: CircuitOpen.
        """
        leaving.leave_within(self.limits.exit_s + self.limits.teardown_s)
        probe.emit("circuit_opened", reason=reason)
        self._say(f"gives up: {reason}")
        if tell:
            with contextlib.suppress(StoreError):
                rendezvous.open_circuit(
                    self._client, reason, timeout_s=min(1.0, self.limits.exit_s)
                )
        if self._group is not None and not stuck:
            stuck = not self._group.close(deadline_s=self.limits.teardown_s)
        if stuck or not self._until_gone(GONE_S):
            leaving.leave_now()
        self._client.close()
        leaving.free_accelerators()
        raise CircuitOpen(reason, CIRCUIT_OPEN_STATUS)

    def _say(self, what: str) -> None:
        """Tell whoever reads this rank's standard error; one that is gone keeps nothing here."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"chaoslab.resilience: rank {self.rank} {what}\n")
            sys.stderr.flush()

    def _run_name(self) -> str:
        """Give a name that all ranks of this store's job share and no other job has."""
        mine = uuid.uuid4().hex[:8].encode()
        held = self._client.compare_set("run", b"", mine, timeout_s=self.limits.timeout_s)
        return held.decode()

    def _present_group(self) -> Group:
        if self._group is None:
            raise GroupLost("no group has been joined")
        return self._group

    def _cut(self) -> None:
        if self._group is not None:
            self._group.cut()
