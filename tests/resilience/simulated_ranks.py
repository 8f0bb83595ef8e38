"""Ranks that run the real rendezvous, one store operation at a time, in an order that is chosen.

Each process of a rank is a thread that stops before every operation on the store until it is told
to go on, to fail, or to die. Only one of them ever runs, so a run is repeated exactly by the same
choices. The store's table is the real one; time stands still.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

from chaoslab.resilience import rendezvous
from chaoslab.resilience.backoff import Backoff
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.existing_store import ExistingStoreClient
from chaoslab.resilience.table import Table

FOR_EVER_S = 1e9
LIMIT_S = 30.0
"""A thread that does not come to its next operation within this is stuck: the test fails."""

Join = Callable[..., rendezvous.Generation]


class Died(BaseException):
    """The process ends here, as by SIGKILL."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """What a process is about to do: on the store, or b"train" and b"pause"."""

    name: bytes
    fields: tuple[bytes, ...] = ()


class World:
    """A store, the processes of all ranks, and the requests of dead ones that are on their way."""

    def __init__(self, size: int, *, join: Join, client: type[StoreClient]) -> None:
        self.size, self.join, self.client = size, join, client
        self.table = Table()
        self.processes: list[Process] = []
        self.on_their_way: list[Operation] = []
        self.steps: list[tuple[int, ...]] = [()] * size
        self.complete: list[tuple[Process, rendezvous.Generation]] = []
        self.present = 0  # the highest number that the store has held
        self.open = False
        self.whole: set[int] = set()  # numbers that all had joined while they were the present one

    def start(self, rank: int) -> None:
        """Start a process of a rank, whether or not one lives."""
        process = Process(self, rank, f"{rank}/{len(self.processes)}")
        self.processes.append(process)
        process.start()

    def living(self, rank: int | None = None) -> list[Process]:
        return [p for p in self.processes if p.pending is not None and rank in (None, p.rank)]

    def able(self) -> list[Process]:
        """Give the processes whose next operation would not wait."""
        return [process for process in self.living() if self.can(process.next())]

    def can(self, operation: Operation) -> bool:
        """Tell whether an operation would be answered now."""
        if operation.name == b"train":
            return self.generation() != operation.fields[0]
        if operation.name != b"wait_change":
            return True
        key, known, *others = operation.fields
        changed = (self.table.get(key) or b"") != known
        return changed or (bool(others) and self.table.has_all(others))

    def do(self, operation: Operation) -> list[bytes]:
        """Carry out an operation as the store does, and watch the generation."""
        if operation.name in (b"train", b"pause"):
            return []
        if operation.name == b"wait_change":
            return [self.table.get(operation.fields[0]) or b""]
        if operation.name == b"check":
            return [b"1" if self.table.has_all(operation.fields) else b"0"]
        answer = self.table.do(operation.name, operation.fields)
        self._watch()
        return answer

    def generation(self) -> bytes:
        return self.table.get(rendezvous.GENERATION_KEY.encode()) or b""

    def _watch(self) -> None:
        """Hold: a number never goes down, and what is open stays open. Raises: AssertionError."""
        value = self.generation().decode()
        if value.startswith(rendezvous.OPEN):
            self.open = True
            return
        assert not self.open, f"the circuit was closed again by {value!r}"
        assert int(value or 0) >= self.present, f"from {self.present} down to {value!r}"
        self.present = int(value or 0)
        places = [f"join/{self.present}/{rank}".encode() for rank in range(self.size)]
        if self.table.has_all(places):
            self.whole.add(self.present)

    def completed(self, process: Process, generation: rendezvous.Generation) -> None:
        """Hold each complete generation against all that came before. Raises: AssertionError."""
        members = generation.members
        assert [member.rank for member in members] == list(range(self.size))
        assert members[process.rank] == process.declared, "it is not itself a member"
        for other, earlier in self.complete:
            if earlier.number == generation.number:
                assert earlier == generation, "two generations of one number"
                assert other is not process, "the same generation twice"
        common = set.intersection(*(set(member.steps) for member in members))
        assert generation.restore_step == max(common, default=None)
        assert generation.number > process.after
        assert generation.number in self.whole, "it never was whole while it was the present one"
        assert not process.answered_when_open, "joined after the circuit had opened"
        self.complete.append((process, generation))


class Process:
    """One process of a rank: joins, trains until it sees a failure or is told, joins again."""

    def __init__(self, world: World, rank: int, name: str) -> None:
        self.world, self.rank, self.name = world, rank, name
        self.pending: Operation | None = None
        self.after = 0
        self.answered_when_open = False
        self.declared: rendezvous.Member | None = None
        self.problem: BaseException | None = None
        self._answer: list[bytes] | None = []
        self._dies = False
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=f"rank {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._until_stopped()

    def next(self) -> Operation:
        assert self.pending is not None
        return self.pending

    def go_on(self) -> None:
        """Do the next operation and run up to the one after it."""
        operation = self.next()
        asks = operation.fields == (rendezvous.GENERATION_KEY.encode(),)
        if operation.name == b"wait_change" or asks:
            self.answered_when_open = self.world.open
        self._resume(self.world.do(operation))

    def give_up_waiting(self) -> None:
        """Let the patience of a process that waits come to its end."""
        self._resume(None)

    def see_failure(self, *, told: bool) -> None:
        """Let a process that trains see a failure by itself; it tells it, or cannot just now."""
        self._resume([b"told" if told else b"untold"])

    def die(self, *, how: str) -> None:
        """Die before the next operation, after it, or with its request on its way."""
        operation = self.next()
        if operation.name not in (b"train", b"pause", b"wait_change"):
            if how == "after":
                self.world.do(operation)
            elif how == "on its way":
                self.world.on_their_way.append(operation)
        self._dies = True
        self._resume([])

    def perform(self, operation: Operation) -> list[bytes] | None:
        """Stop before an operation; give its answer. The client calls it, in this thread."""
        self.pending = operation
        self._stopped.release()
        self._go.acquire()
        self.pending = None
        if self._dies:
            raise Died
        return self._answer

    def _resume(self, answer: list[bytes] | None) -> None:
        self._answer = answer
        self._go.release()
        self._until_stopped()

    def _until_stopped(self) -> None:
        assert self._stopped.acquire(timeout=LIMIT_S), f"rank {self.name} is stuck"
        if self.problem is not None:
            raise self.problem

    def _run(self) -> None:
        try:
            self._live(self.world.client.__new__(self.world.client))
        except Died:
            pass
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            self.problem = error
        finally:
            self._stopped.release()

    def _live(self, client: Any) -> None:
        """Do what the runner does: live a generation, tell of a failure that is news, join."""
        client.process = self
        client.prepare()
        try:
            while True:
                generation = self._join(client)
                self.world.completed(self, generation)
                self.after = generation.number
                if self.rank == 0:
                    rendezvous.forget_before(client, generation.number, timeout_s=1)
                seen = self.perform(Operation(b"train", (str(self.after).encode(),)))
                if seen == [b"told"]:
                    rendezvous.advance(client, self.after, timeout_s=1)
        except rendezvous.CircuitOpenedElsewhere:
            return
        except rendezvous.RendezvousFailed as error:
            self._check_reason(str(error))
            rendezvous.open_circuit(client, str(error), timeout_s=1)

    def _check_reason(self, reason: str) -> None:
        assert "ranks []" not in reason, "gave up although nobody was missing"

    def _join(self, client: StoreClient) -> rendezvous.Generation:
        self.declared = rendezvous.Member(
            rank=self.rank, process=self.name, incarnation=0, steps=self.world.steps[self.rank]
        )
        return self.world.join(
            client,
            self.declared,
            world_size=self.world.size,
            after=self.after,
            patience_s=FOR_EVER_S,
        )


class SimulatedClient(StoreClient):
    """The library's own store: it answers a wait itself, in one step."""

    process: Process

    def prepare(self) -> None:
        self.timeout_s = FOR_EVER_S

    def _call(
        self, operation: bytes, fields: Sequence[bytes], timeout_s: float | None
    ) -> list[bytes]:
        del timeout_s
        return self.process.perform(Operation(operation, tuple(fields))) or []

    def _wait(
        self, operation: bytes, fields: Sequence[bytes], timeout_s: float | None
    ) -> list[bytes] | None:
        del timeout_s
        return self.process.perform(Operation(operation, tuple(fields)))


class PollingClient(ExistingStoreClient):
    """A store that is asked again and again: others may act between two questions."""

    process: Process

    def prepare(self) -> None:
        self.timeout_s = FOR_EVER_S
        self._pauses = Backoff()
        self._closed = self  # type: ignore[assignment]

    def wait(self, *_: object, **__: object) -> None:  # stands in for an Event's
        self.process.perform(Operation(b"pause"))

    def _call(
        self, operation: bytes, fields: Sequence[bytes], timeout_s: float | None
    ) -> list[bytes]:
        del timeout_s
        return self.process.perform(Operation(operation, tuple(fields))) or []
