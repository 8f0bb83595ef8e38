"""The group of one generation: how a rank in it is woken."""

from __future__ import annotations

import threading
import time

import pytest
from checkpoints import in_a_child
from loopback_job import Store

from chaoslab.resilience import rendezvous
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.errors import StoreError
from chaoslab.resilience.group import Group
from chaoslab.resilience.store import parse_address

TIMEOUT_S = 30.0


@pytest.mark.usefixtures("warmed")
def test_a_rank_that_connects_is_woken_when_the_generation_moves_on(store: Store) -> None:
    """It waits for a peer that has left already: that is told at once, not after the timeout."""

    def connect() -> None:
        client = StoreClient(*parse_address(store.address), timeout_s=TIMEOUT_S)
        rendezvous.advance(client, 0, timeout_s=5)
        mover = threading.Timer(
            0.5, rendezvous.advance, (client.again(timeout_s=5), 1), {"timeout_s": 5}
        )
        mover.start()
        began_s = time.monotonic()
        with pytest.raises((StoreError, RuntimeError)):
            Group(client, number=1, rank=0, world_size=2, timeout_s=TIMEOUT_S)
        took_s = time.monotonic() - began_s
        assert 0.5 <= took_s < TIMEOUT_S / 3, took_s

    assert in_a_child(connect) == (0, "")
