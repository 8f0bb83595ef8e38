"""torch.distributed works over this library's store alone."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from loopback_job import Store

from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.errors import StoreTimeout
from chaoslab.resilience.store import parse_address
from chaoslab.resilience.torch_store import TorchStore


def test_a_gloo_group_needs_no_other_store(store: Store, warmed: None) -> None:  # noqa: ARG001
    """Two processes meet through it and sum a tensor."""
    pids = []
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                torch.set_num_threads(1)
                own = TorchStore(StoreClient(*parse_address(store.address)))
                dist.init_process_group(
                    "gloo", store=own, rank=rank, world_size=2, timeout=timedelta(seconds=10)
                )
                total = torch.full((3,), float(rank + 1))
                dist.all_reduce(total)
                dist.barrier()
                status = 0 if total.tolist() == [3.0] * 3 else 2
            finally:
                os._exit(status)
        pids.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0, 0]


def test_it_does_what_torchs_own_store_does(client: StoreClient) -> None:
    """The same calls on a HashStore and on this one give the same answers, prefixed or not."""
    answers = []
    for inner in (dist.HashStore(), TorchStore(client)):
        own = dist.PrefixStore("p", inner)
        own.set("a", "1")
        told = [own.get("a"), own.add("n", 2), own.add("n", 3), own.check(["a"]), own.check(["z"])]
        told += [own.compare_set("c", "", "x"), own.compare_set("c", "y", "z"), own.get("c")]
        own.append("a", "23")
        own.multi_set(["k", "l"], ["m", "n"])
        told += [own.get("a"), own.multi_get(["k", "l"]), own.delete_key("k"), own.delete_key("k")]
        own.wait(["a", "l"])
        told += [own.num_keys() - inner.num_keys()]
        answers.append([bytes(item) if isinstance(item, bytes) else item for item in told])
    assert answers[0] == answers[1]


def test_a_wait_keeps_to_the_timeout_that_torch_gives(client: StoreClient) -> None:
    """Both the store's own timeout and the one of a single wait."""
    own = TorchStore(client)
    own.set_timeout(timedelta(seconds=0.1))
    with pytest.raises(StoreTimeout):
        own.get("never")
    with pytest.raises(StoreTimeout):
        own.wait(["never"], timedelta(seconds=0.1))
