"""Group: the life of one generation's process group, and how a waiting rank is woken.

Nothing in torch's API wakes a rank that waits in a gloo collective; ending the reading side of the
process's own gloo sockets does, within milliseconds. So a watcher thread asks the store whether the
generation has moved on, and then cuts this rank loose. It also looks at the sockets: one that a
peer has closed means that the peer is gone, whether or not this rank waits for it.
"""

from __future__ import annotations

import contextlib
import gc
import select
import socket
import threading
from datetime import timedelta

import torch.distributed as dist

from chaoslab.resilience import sockets
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.errors import GroupLost, StoreError
from chaoslab.resilience.rendezvous import GENERATION_KEY
from chaoslab.resilience.torch_store import TorchStore

NAMES_S = 1.0
"""Limit of telling and learning which rank has which address: it only serves the blame."""

WATCHER_JOIN_S = 0.1
"""A watcher that is just connecting to a store that is cut off ends by itself a little later."""

WATCH_S = 2.0
"""One question of the watcher to the store lasts this long at most."""


class Group:
    """The default process group of one generation, over gloo.

    client: the store. number: the generation. timeout_s: limit of every collective.
    silent_ranks: those that did not acknowledge what was sent to them, when last looked, at most
    WATCH_S ago. The connections of groups that the task makes itself (dist.new_group) are neither
    watched nor cut: a rank that waits in one waits out that group's own timeout.
    """

    def __init__(
        self, client: StoreClient, *, number: int, rank: int, world_size: int, timeout_s: float
    ) -> None:
        self.number, self.timeout_s = number, timeout_s
        self._lost: str | None = None
        self._stopped = threading.Event()
        self._sockets: dict[int, int] = {}
        self._peers: dict[int, tuple[str, int]] = {}
        self.blamed_rank: int | None = None
        self.silent_ranks: tuple[int, ...] = ()
        self._client = client.again(timeout_s=timeout_s)
        self._watcher = client.again(timeout_s=timeout_s)
        self._before = sockets.connected()
        self._names = sockets.Names(self._watcher, number=number, rank=rank, world_size=world_size)
        self._others = set(range(world_size)) - {rank}
        self._thread = threading.Thread(target=self._watch, name="generation-watcher", daemon=True)
        self._thread.start()
        try:
            # torch keeps the C++ half alone: without this reference the Python half is
            # collected and the first call says "Not implemented" (torch 2.13).
            self._store = TorchStore(self._client)
            _start_gloo(self._store, number, rank, world_size, timeout_s)
        except BaseException:
            self.close(deadline_s=timeout_s)
            raise
        self._sockets = self._opened()
        self._peers = {fd: end for fd in self._sockets if (end := sockets.end_of(fd))}
        with contextlib.suppress(StoreError):  # costs the blame, not the group
            self._names.publish(self._sockets, timeout_s=NAMES_S)

    @property
    def lost(self) -> str | None:
        """Say why the group is lost, None while it is whole. Costs no system call."""
        return self._lost

    def check(self) -> str | None:
        """Say why the group is lost, None while it is whole; looks at the sockets."""
        if self._lost is None and (fd := self._closed_by_peer()) is not None:
            peer = self._peers.get(fd)
            self.blamed_rank = self._names.owner(*peer) if peer else None
            self._lose("a peer closed its connection")
        return self._lost

    def blame(self, message: str) -> int | None:
        """Find the rank whose address an error of gloo names, None where that is not known.

        It is the other end of the connection that broke: not always the rank that failed first.
        """
        match = sockets.ADDRESS.search(message)
        if match is None:
            return None
        # gloo prints the port as it is in memory. Source: Address::str of gloo's tcp/address.cc.
        port = socket.ntohs(int(match[2]))
        return self._names.owner(match[1].removeprefix("::ffff:"), port)

    def raise_if_lost(self) -> None:
        """Raise GroupLost when the group is lost."""
        if self._lost is not None:
            raise GroupLost(self._lost)

    def cut(self) -> None:
        """Let this process's own gloo sockets read their end: whoever waits on them is woken."""
        for fd, inode in self._own() if self._sockets else self._opened().items():
            with contextlib.suppress(OSError), sockets.borrowed(fd) as sock:
                if sockets.inode_of(fd) == inode:
                    sockets.end_reading(sock)

    def close(self, *, deadline_s: float) -> bool:
        """Destroy the group; tell whether that was done within the deadline, in seconds.

        The caller has dropped every reference to DDP before.
        """
        self._stopped.set()
        self._watcher.close()
        self.cut()
        gc.collect()
        worker = threading.Thread(target=_destroy, name="group-destroyer", daemon=True)
        worker.start()
        worker.join(deadline_s)
        self._client.close()
        self._thread.join(WATCHER_JOIN_S)
        return not worker.is_alive()

    def finish(self) -> None:
        """Stop watching: from now on peers may leave."""
        self._stopped.set()
        self._watcher.close()

    def _watch(self) -> None:
        """Ask whether the generation has moved on, from the first moment of connecting.

        On the way, once all ranks have told their ends, learn them.
        """
        known = str(self.number).encode()
        awaited = self._names.keys
        while not self._stopped.is_set():
            self._look()
            try:
                moved = self._watcher.wait_change(
                    GENERATION_KEY, known, or_all=awaited, timeout_s=WATCH_S
                )
                if awaited and moved == known:
                    awaited = []
                    self._names.learn(timeout_s=NAMES_S)
                    self._leave_foreign_alone()
                    continue
            except StoreError:
                # The store may be away for a while; training goes on without it.
                self._stopped.wait(self._watcher.backoff.wait_s(0))
                continue
            if moved is not None and not self._stopped.is_set():
                self._lose(f"generation {self.number} has moved on to {moved.decode()}")
                return

    def _leave_foreign_alone(self) -> None:
        """Drop what a user's own thread opened while the group connected (to a log server, say).

        Where an address is translated on the way, no end is anybody's: then nothing is dropped.
        """
        owners = {fd: self._names.owner(*end) for fd, end in self._peers.items()}
        if self._others <= set(owners.values()):
            self._sockets = {
                fd: inode for fd, inode in self._sockets.items() if owners.get(fd) in self._others
            }

    def _look(self) -> None:
        """Note which peers do not acknowledge what this rank sends them; see `is_unanswered`."""
        self.silent_ranks = tuple(
            rank
            for fd, _ in self._own()
            if sockets.is_unanswered(fd)
            and (end := self._peers.get(fd)) is not None
            and (rank := self._names.owner(*end)) is not None
        )

    def _lose(self, reason: str) -> None:
        self._lost = reason
        self._client.close()  # a rank that is still connecting waits on the store
        self.cut()

    def _opened(self) -> dict[int, int]:
        """Give the sockets opened since this group began, less those to the store.

        Only so are a user's own connections (a log server's, say) left alone.
        """
        return {
            fd: inode
            for fd, inode in sockets.connected().items()
            if self._before.get(fd) != inode
            and (sockets.end_of(fd) or ())[:2] != self._client.address
        }

    def _own(self) -> list[tuple[int, int]]:
        """Give those of the group's sockets that are still open, not reused for another."""
        return [(fd, inode) for fd, inode in self._sockets.items() if sockets.inode_of(fd) == inode]

    def _closed_by_peer(self) -> int | None:
        """Give a socket that a peer has closed, or that gloo closed since it found it broken."""
        poller = select.poll()
        for fd, inode in self._sockets.items():
            if sockets.inode_of(fd) != inode:
                return fd
            poller.register(fd, select.POLLRDHUP)
        return next((fd for fd, _ in poller.poll(0)), None)


def _start_gloo(
    store: TorchStore, number: int, rank: int, world_size: int, timeout_s: float
) -> None:
    limit = timedelta(seconds=timeout_s)
    store.set_timeout(limit)
    if not dist.is_initialized():
        # torch names the group by a count, part of every key, and sets it back only when a group
        # is destroyed: after a connect that failed, ranks would look under different names.
        # Source: _process_group_name and destroy_process_group of distributed_c10d.py.
        dist.distributed_c10d._world.group_count = 0  # noqa: SLF001 - there is no public way
    own = dist.PrefixStore(  # type: ignore[attr-defined]
        f"gloo/{number}", store
    )
    dist.init_process_group("gloo", store=own, rank=rank, world_size=world_size, timeout=limit)


def _destroy() -> None:
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):  # the group is broken: that is why it goes
            dist.destroy_process_group()
