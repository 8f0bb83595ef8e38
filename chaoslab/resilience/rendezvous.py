"""Rendezvous: how all ranks agree on one generation, and on the checkpoint it starts from.

The store holds one number, the generation. A rank that sees a failure moves it from g to g + 1
(the same move by several ranks happens once), joins the new one, and waits until all have.
A rank of a generation that has moved on leaves it. A restarted rank that finds its place in
the present generation taken by its former process moves the generation on, too. When the job
gives up, the number becomes `open:REASON` for good, and everybody leaves.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence

from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.errors import RendezvousFailed

GENERATION_KEY = "generation"
OPEN = "open:"
LAST_WORD_S = 0.2
"""At the deadline a call may still last this long, to say which ranks are missing."""


OF_GENERATIONS = ("join", "sockets", "exit", "gloo")
"""What is kept by generation: keys NAME/GENERATION/..."""


class CircuitOpenedElsewhere(RendezvousFailed):
    """Another rank has given up for the whole job; the message is its reason."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """One rank's entry in a generation.

    process: a name that no other process has. steps: the checkpoints that this rank verified.
    address: where its node is reached, if known.
    """

    rank: int
    process: str
    incarnation: int
    steps: tuple[int, ...]
    address: str | None = None

    def to_bytes(self) -> bytes:
        """Give the entry as stored."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Member:
        """Read a stored entry."""
        value = json.loads(data)
        return cls(**{**value, "steps": tuple(value["steps"])})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """A complete generation: its number and every member, by rank."""

    number: int
    members: tuple[Member, ...]

    @property
    def restore_step(self) -> int | None:
        """The newest step whose checkpoint every member verified, None for a fresh start."""
        return common_step([member.steps for member in self.members])


def common_step(steps_of_members: Sequence[Sequence[int]]) -> int | None:
    """Give the highest step that is in every list, None when there is none."""
    lists = [set(steps) for steps in steps_of_members]
    return max(set.intersection(*lists), default=None) if lists else None


def read_generation(value: bytes | None) -> int:
    """Read the generation's number, 0 before the first. Raises: CircuitOpenedElsewhere."""
    text = (value or b"0").decode()
    if text.startswith(OPEN):
        raise CircuitOpenedElsewhere(text.removeprefix(OPEN))
    return int(text)


def advance(client: StoreClient, failed: int, *, timeout_s: float) -> int:
    """Move the generation on from the failed one, once for all ranks; give the present one.

    Raises: StoreTimeout; CircuitOpenedElsewhere.
    """
    expected = str(failed).encode() if failed else b""
    now = client.compare_set(
        GENERATION_KEY, expected, str(failed + 1).encode(), timeout_s=timeout_s
    )
    return read_generation(now)


def open_circuit(client: StoreClient, reason: str, *, timeout_s: float) -> None:
    """Tell every rank that the job gives up. Raises: StoreTimeout."""
    client.set(GENERATION_KEY, f"{OPEN}{reason}".encode(), timeout_s=timeout_s)


def forget_before(client: StoreClient, number: int, *, timeout_s: float) -> int:
    """Remove what the store keeps of generations before this one, in which all are.

    Without it a job that recovers often would fill the store. Gives the number of keys removed.
    Raises: StoreTimeout.
    """
    return client.forget(OF_GENERATIONS, below=number, timeout_s=timeout_s)


def join(
    client: StoreClient,
    member: Member,
    *,
    world_size: int,
    after: int,
    patience_s: float,
    last_word_s: float = LAST_WORD_S,
) -> Generation:
    """Join the first generation later than `after` in which all ranks come together.

    after: the generation that this process saw fail, 0 for none. patience_s: how long to wait
    in all; last_word_s: how long a call may last even at its end.

    Raises: RendezvousFailed naming the ranks that are missing; StoreTimeout;
    CircuitOpenedElsewhere.
    """
    deadline = _Deadline(patience_s, last_word_s)
    number = _entry(client, after, deadline)
    while True:
        place = f"join/{number}/{member.rank}"
        held = client.compare_set(place, b"", member.to_bytes(), timeout_s=deadline.left_s())
        if Member.from_bytes(held).process != member.process:
            moved_to = advance(client, number, timeout_s=deadline.left_s())
        else:
            moved_to = _wait_for_all(client, number, world_size, deadline)
            if moved_to == number:
                members = _members(client, number, world_size, deadline)
                if members is not None:
                    return Generation(number=number, members=members)
                moved_to = _entry(client, number, deadline)
        if deadline.is_over():
            raise RendezvousFailed(
                f"generations {after + 1} to {moved_to}: the job moved on each time before all "
                f"had joined; does a second process run as rank {member.rank}, or as another?"
            )
        number = moved_to


def _entry(client: StoreClient, after: int, deadline: _Deadline) -> int:
    """Give the generation to join: the present one, moved on if it is the failed one."""
    present = read_generation(client.get(GENERATION_KEY, timeout_s=deadline.left_s()))
    if present > after:
        return present
    return advance(client, present, timeout_s=deadline.left_s())


def _wait_for_all(client: StoreClient, number: int, world_size: int, deadline: _Deadline) -> int:
    """Wait until all have joined or the generation has moved on; give the present generation.

    Raises: RendezvousFailed at the deadline.
    """
    keys = [f"join/{number}/{rank}" for rank in range(world_size)]
    known = str(number).encode()
    value = client.wait_change(GENERATION_KEY, known, or_all=keys, timeout_s=deadline.left_s())
    if value is not None:
        return read_generation(value)
    entries = client.multi_get(keys, timeout_s=deadline.left_s())
    missing = [rank for rank, entry in enumerate(entries) if entry is None]
    if not missing:  # the last of them came just as the wait was ending
        return read_generation(client.get(GENERATION_KEY, timeout_s=deadline.left_s()))
    raise RendezvousFailed(
        f"generation {number}: ranks {missing} of {world_size} did not join in time; "
        "are they running, and do they reach the store?"
    )


def _members(
    client: StoreClient, number: int, world_size: int, deadline: _Deadline
) -> tuple[Member, ...] | None:
    """Read the members of a complete generation; None when it is past, and forgotten, by now."""
    keys = [f"join/{number}/{rank}" for rank in range(world_size)]
    entries = client.multi_get(keys, timeout_s=deadline.left_s())
    members = tuple(Member.from_bytes(entry) for entry in entries if entry is not None)
    return members if len(members) == world_size else None


class _Deadline:
    """A point in time; at its very end there is still time to read a healthy store's answer."""

    def __init__(self, limit_s: float, last_word_s: float) -> None:
        self._end_s, self._last_word_s = time.monotonic() + limit_s, last_word_s

    def is_over(self) -> bool:
        return time.monotonic() > self._end_s

    def left_s(self) -> float:
        return max(self._end_s - time.monotonic(), self._last_word_s)
