"""All ranks end up in one generation, whoever dies, comes back or bumps on the way."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, strategies as st

from chaoslab.resilience import rendezvous
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.errors import RendezvousFailed


def member(rank: int, process: str = "", steps: tuple[int, ...] = ()) -> rendezvous.Member:
    return rendezvous.Member(
        rank=rank, process=process or f"process of {rank}", incarnation=0, steps=steps
    )


def join(
    client: StoreClient, who: rendezvous.Member, *, after: int = 0, world_size: int = 3
) -> rendezvous.Generation:
    return rendezvous.join(client, who, world_size=world_size, after=after, patience_s=10)


@given(st.lists(st.frozensets(st.integers(0, 9)), min_size=1, max_size=5))
def test_the_step_to_restore_is_the_newest_that_all_have(sets: list[frozenset[int]]) -> None:
    """Every member has it, and no later one is had by all."""
    step = rendezvous.common_step([tuple(steps) for steps in sets])
    in_all = [n for n in range(10) if all(n in steps for steps in sets)]
    assert step == (max(in_all) if in_all else None)


def test_all_join_one_generation(client: StoreClient) -> None:
    """At the start every rank gets generation 1, all members, and the common step."""
    steps = [(10, 20), (20, 10, 5), (10, 20, 30)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda r: join(client, member(r, steps=steps[r])), range(3)))
    assert {generation.number for generation in found} == {1}
    assert {generation.restore_step for generation in found} == {20}
    assert found[0] == found[1] == found[2]


def test_a_rank_that_slept_through_its_generation_joins_the_next(client: StoreClient) -> None:
    """All were there when it looked, and the store has forgotten it when it reads who they are."""
    ranks, read = range(3), client.multi_get

    def read_late(keys: list[str], **more: float) -> list[bytes | None]:
        if keys == [rendezvous.GENERATION_KEY]:
            return read(keys, **more)
        client.multi_get = read  # type: ignore[method-assign]
        rendezvous.advance(client, 1, timeout_s=5)
        for other in (0, 1):
            client.set(f"join/2/{other}", member(other).to_bytes())
        assert rendezvous.forget_before(client, 2, timeout_s=5) == len(ranks)
        return read(keys, **more)

    client.set(rendezvous.GENERATION_KEY, b"1")
    for other in (0, 1):
        client.set(f"join/1/{other}", member(other).to_bytes())
    client.multi_get = read_late  # type: ignore[assignment,method-assign]
    found = join(client, member(2))
    assert (found.number, [m.rank for m in found.members]) == (2, list(ranks))


def test_many_who_saw_one_failure_move_on_once(client: StoreClient) -> None:
    """Three ranks advance from 1: the generation is 2, not 4."""
    client.set(rendezvous.GENERATION_KEY, b"1")
    with ThreadPoolExecutor(3) as pool:
        moved = list(pool.map(lambda _: rendezvous.advance(client, 1, timeout_s=5), range(3)))
    assert moved == [2, 2, 2]


def test_a_restarted_rank_moves_a_running_generation_on(client: StoreClient) -> None:
    """Its place is taken by its former process, so it bumps, and the others follow."""
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda r: join(client, member(r)), range(3)))
        again = pool.submit(join, client, member(2, "new"))
        assert client.wait_change(rendezvous.GENERATION_KEY, b"1") == b"2"
        others = [pool.submit(join, client, member(r), after=1) for r in range(2)]
        numbers = [each.result(10).number for each in [again, *others]]
    assert numbers == [2, 2, 2]


def test_a_rank_that_dies_while_joining_is_replaced(client: StoreClient) -> None:
    """Those who wait in a generation leave it as soon as a replacement moves it on."""
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(join, client, member(r)) for r in range(2)]
        client.wait(["join/1/0", "join/1/1"])
        client.compare_set("join/1/2", b"", member(2, "dead").to_bytes())  # joined, then died
        assert all(each.result(10).number == 1 for each in waiting)
        late = pool.submit(join, client, member(2, "new"))
        rest = [pool.submit(join, client, member(r), after=1) for r in range(2)]
        found = [each.result(10) for each in [late, *rest]]
    assert {generation.number for generation in found} == {2}
    assert found[0].members[2].process == "new"


def test_a_rank_that_never_comes_is_named(client: StoreClient) -> None:
    """Patience ends with an error that says who is missing."""
    with pytest.raises(RendezvousFailed, match=r"ranks \[1, 2\] of 3"):
        rendezvous.join(client, member(0), world_size=3, after=0, patience_s=0.2)


def test_an_open_circuit_sends_everybody_home(client: StoreClient) -> None:
    """Those who wait and those who come later both get the reason."""
    reasons: list[str] = []

    def wait() -> None:
        try:
            join(client, member(0))
        except rendezvous.CircuitOpenedElsewhere as error:
            reasons.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    client.wait(["join/1/0"])
    rendezvous.open_circuit(client, "node 3 is gone", timeout_s=5)
    waiting.join(10)
    wait()
    assert reasons == ["node 3 is gone"] * 2


def test_ranks_that_are_held_off_again_and_again_give_up(client: StoreClient) -> None:
    """Two processes of one rank push each other out; neither does so beyond its patience."""
    clients = [client.again(timeout_s=5) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        both = [
            pool.submit(
                rendezvous.join,
                own,
                member(0, name),
                world_size=2,
                after=0,
                patience_s=0.5,
            )
            for own, name in zip(clients, ("old", "new"), strict=True)
        ]
        for each in both:
            with pytest.raises(RendezvousFailed):
                each.result(10)
    for own in clients:
        own.close()
