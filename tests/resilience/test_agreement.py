"""All ranks agree on one generation, whoever dies when; planted defects are found."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from simulated_ranks import Join, Operation, PollingClient, SimulatedClient, World

from chaoslab.resilience import rendezvous
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.existing_store import ExistingStoreClient

RANKS = 3
MOST_STEPS = 5000
"""Operations after which ranks that are left in peace must have agreed: they need about 60."""

CHOICES = st.integers(0, 11)


class Agreement(RuleBasedStateMachine):
    """Ranks join, train, fail, die, come back, are replaced while they live, and give up."""

    join: Join = staticmethod(rendezvous.join)
    client: type[StoreClient] = SimulatedClient

    @initialize(steps=st.lists(st.frozensets(st.integers(1, 4)), min_size=RANKS, max_size=RANKS))
    def start(self, steps: list[frozenset[int]]) -> None:
        self.world = World(RANKS, join=type(self).join, client=self.client)
        self.world.steps = [tuple(sorted(each)) for each in steps]
        for rank in range(RANKS):
            self.world.start(rank)

    @precondition(lambda self: self.world.able())
    @rule(choices=st.lists(CHOICES, min_size=1, max_size=12))
    def go_on(self, choices: list[int]) -> None:
        for choice in choices:
            if able := self.world.able():
                able[choice % len(able)].go_on()

    @precondition(lambda self: self.world.living())
    @rule(choice=CHOICES, how=st.sampled_from(["before", "after", "on its way"]))
    def die(self, choice: int, how: str) -> None:
        living = self.world.living()
        living[choice % len(living)].die(how=how)

    @rule(rank=st.integers(0, RANKS - 1))
    def come_back(self, rank: int) -> None:
        if not self.world.living(rank):
            self.world.start(rank)

    @rule(rank=st.integers(0, RANKS - 1), really=st.sampled_from([False, False, True]))
    def replace_a_living_one(self, rank: int, really: bool) -> None:  # noqa: FBT001
        if really and len(self.world.living(rank)) == 1:
            self.world.start(rank)

    @rule(choice=CHOICES, told=st.booleans())
    def see_a_failure(self, choice: int, told: bool) -> None:  # noqa: FBT001
        training = [p for p in self.world.living() if p.next().name == b"train"]
        if training:
            training[choice % len(training)].see_failure(told=told)

    @precondition(lambda self: self.world.on_their_way)
    @rule(choice=CHOICES)
    def a_late_request_arrives(self, choice: int) -> None:
        late = self.world.on_their_way
        self.world.do(late.pop(choice % len(late)))

    @rule(rank=st.integers(0, RANKS - 1), steps=st.frozensets(st.integers(1, 6)))
    def checkpoints_come_and_go(self, rank: int, steps: frozenset[int]) -> None:
        self.world.steps[rank] = tuple(sorted(steps))

    @rule(choice=CHOICES, really=st.sampled_from([False] * 5 + [True]))
    def patience_ends(self, choice: int, really: bool) -> None:  # noqa: FBT001
        waiting = [p for p in self.world.living() if p.next().name == b"wait_change"]
        if waiting and really:
            waiting[choice % len(waiting)].give_up_waiting()

    def teardown(self) -> None:
        """Left in peace, all end up in one generation, or all go home; then end the threads."""
        if not hasattr(self, "world"):
            return
        try:
            self._settle()
        finally:
            for process in self.world.living():
                process.die(how="before")

    def _settle(self) -> None:
        world = self.world
        for rank in range(RANKS):
            for process in world.living(rank)[1:]:
                process.die(how="before")
            if not world.living(rank):
                world.start(rank)
        while world.on_their_way:
            world.do(world.on_their_way.pop())
        for nth in range(MOST_STEPS):
            able = world.able()
            if not able:
                break
            able[nth % len(able)].go_on()
        else:
            raise AssertionError(f"no agreement after {MOST_STEPS} operations")
        if world.open:
            assert not world.living(), "the circuit is open, and somebody waits"
            return
        doing = {process.rank: process.next() for process in world.living()}
        train = Operation(b"train", (world.generation(),))
        assert doing == dict.fromkeys(range(RANKS), train), doing


class AgreementByPolling(Agreement):
    """The same over a store that must be polled; there is no single operation that waits."""

    client = PollingClient


def check(machine: type[Agreement], examples: int, *, everything: bool = False) -> None:
    """Run the machine. Raises: AssertionError when the agreement breaks.

    everything: also shrink what was found, as one wants it unless the defect is planted.
    """
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            phases=tuple(Phase) if everything else (Phase.generate,),
            print_blob=False,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("machine", [Agreement, AgreementByPolling])
def test_ranks_agree_whoever_dies_when(machine: type[Agreement]) -> None:
    """One member list and one restore step per number, verified by all; in peace, all agree."""
    check(machine, 150, everything=True)


def test_who_comes_as_a_wait_ends_is_not_missing() -> None:
    """A rank whose patience ends just before the last one joins goes on with it.

    Before, it gave the whole job up because of "ranks [] of 3" (found by the machine above).
    """
    world = World(RANKS, join=rendezvous.join, client=SimulatedClient)
    for rank in range(RANKS):
        world.start(rank)
    first, *others = world.processes
    while first.next().name != b"wait_change":
        first.go_on()
    first.give_up_waiting()
    while able := [process for process in others if process in world.able()]:
        able[0].go_on()
    while first.next().name != b"train":
        first.go_on()
    assert [generation.number for _, generation in world.complete] == [1, 1, 1]
    for process in world.living():
        process.die(how="before")


def join_without_looking_at_the_name(client: Any, member: Any, **arguments: Any) -> Any:
    """Take a place that a former process of the rank holds for its own."""
    deadline = rendezvous._Deadline(arguments["patience_s"], 1.0)
    number = rendezvous._entry(client, arguments["after"], deadline)
    while True:
        client.compare_set(f"join/{number}/{member.rank}", b"", member.to_bytes())
        moved_to = rendezvous._wait_for_all(client, number, arguments["world_size"], deadline)
        if moved_to == number:
            members = rendezvous._members(client, number, arguments["world_size"], deadline)
            return rendezvous.Generation(number=number, members=members or ())
        number = moved_to


def join_in_the_present_generation(client: Any, member: Any, **arguments: Any) -> Any:
    """Forget that the present generation is the one that failed."""
    return rendezvous.join(client, member, **{**arguments, "after": 0})


def join_by_overwriting(client: Any, member: Any, **arguments: Any) -> Any:
    """Take the place whoever holds it."""

    class Overwriting:
        def compare_set(self, key: str, expected: bytes, desired: bytes, **limits: Any) -> bytes:
            if key.startswith("join/"):
                client.set(key, desired)
                return desired
            return client.compare_set(key, expected, desired, **limits)

        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

    return rendezvous.join(Overwriting(), member, **arguments)


def join_after_counting_alone(client: Any, member: Any, **arguments: Any) -> Any:
    """Wait for all the places, and not for the generation to move on."""

    class Counting:
        def wait_change(self, key: str, known: bytes, *, or_all: list[str], **_: Any) -> Any:
            while not client.check(or_all):
                if client.wait_change(key, known, or_all=or_all) == b"":
                    break
            return known if client.check(or_all) else client.get(key)

        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

    return rendezvous.join(Counting(), member, **arguments)


def join_and_move_on_unconditionally(client: Any, member: Any, **arguments: Any) -> Any:
    """Write the next number, whatever holds now."""

    class Writing:
        def compare_set(self, key: str, expected: bytes, desired: bytes, **limits: Any) -> bytes:
            if key == rendezvous.GENERATION_KEY:
                client.set(key, desired)
                return desired
            return client.compare_set(key, expected, desired, **limits)

        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

    return rendezvous.join(Writing(), member, **arguments)


@pytest.mark.parametrize(
    ("defect", "found"),
    [
        (join_without_looking_at_the_name, "it is not itself a member"),
        (join_in_the_present_generation, "the same generation twice|it is not itself a member"),
        (join_by_overwriting, "two generations of one number|it is not itself a member"),
        (join_after_counting_alone, "never was whole|somebody waits|opened|no agreement"),
        (join_and_move_on_unconditionally, "down to|closed again"),
    ],
)
def test_a_planted_defect_is_found(defect: Join, found: str) -> None:
    """Each breaks the agreement in some order of events, and the machine finds one."""
    broken = type("Broken", (Agreement,), {"join": staticmethod(defect)})
    with pytest.raises(AssertionError, match=found):
        check(broken, 2000)


def test_asking_in_the_wrong_order_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polling for the number first and for the places afterwards sees what never was."""

    def holds(client: Any, _: bytes, fields: list[bytes], limit_s: float) -> list[bytes] | None:
        key, known, *others = fields
        found = client._call(b"get", [key], limit_s)[0]
        value = found[1:] if found[:1] == b"\1" else b""
        complete = bool(others) and client._call(b"check", others, limit_s) == [b"1"]
        return [value] if value != known or complete else None

    monkeypatch.setattr(ExistingStoreClient, "_holds", holds)
    with pytest.raises(AssertionError, match="it never was whole"):
        check(AgreementByPolling, 2000)
