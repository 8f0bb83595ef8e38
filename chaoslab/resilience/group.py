"""Group: the life of one generation's process group, and how a waiting rank is woken.

Nothing in torch's API wakes a rank that waits in a gloo collective; ending the reading side of the
process's own gloo sockets does, within milliseconds. So a watcher thread asks the store whether the
generation has moved on, and then cuts this rank loose. It also looks at the sockets: one that a
peer has closed means that the peer is gone, whether or not this rank waits for it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import socket
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import DebugLevel, get_debug_level

from chaoslab.resilience import sockets
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.errors import GroupLost, RendezvousFailed, StoreError
from chaoslab.resilience.rendezvous import GENERATION_KEY, advance
from chaoslab.resilience.torch_store import TorchStore
from chaoslab.resilience.variables import LAZY

NAMES_S = 1.0
"""Limit of telling and learning which rank has which address: it only serves the blame."""

GLOO_TRIES = 5
"""Gloo waits this many times its limit for one connection. Source: Pair::waitUntil, tcp/pair.cc."""

WATCHER_JOIN_S = 0.1
"""A watcher that is just connecting to a store that is cut off ends by itself a little later."""

WATCH_S = 2.0
"""One question of the watcher to the store lasts this long at most."""

WATCH_BACKOFFS = 3
"""So often a watcher that misses the store doubles its wait: it has to hear of a loss soon."""


class Group:
    """The default process group of one generation, over gloo.

    client: the store. number: the generation. timeout_s: limit of every collective, and of each
    connection while the group is formed (one after the other, each with those that its peer waits
    for first). dist.send and dist.recv keep a fifth of it: gloo copies the limit for them when it
    connects. dist.isend(...).wait(limit) and dist.irecv(...).wait(limit) have their own. With
    TORCH_DISTRIBUTED_DEBUG=DETAIL a connection that does not come may cost five times timeout_s.
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
        self._sockets: dict[int, int] | None = None
        self._peers: dict[int, tuple[str, int]] = {}
        self.blamed_rank: int | None = None
        self.silent_ranks: tuple[int, ...] = ()
        if dist.is_initialized():
            raise RuntimeError(
                "torch has a default process group already: want the runner to make it; does the "
                "script call dist.init_process_group()?"
            )
        if os.environ.get(LAZY, "0") not in ("", "0"):
            raise RuntimeError(
                f"{LAZY}={os.environ[LAZY]}: want it unset, a lazy connection ignores the timeout "
                "and cannot be watched"
            )
        self._client = client.again(timeout_s=timeout_s)
        self._watcher = client.again(timeout_s=timeout_s)
        self._before = sockets.connected()
        self._names = sockets.Names(self._watcher, number=number, rank=rank, world_size=world_size)
        self._others = set(range(world_size)) - {rank}
        self._thread = threading.Thread(target=self._watch, name="generation-watcher", daemon=True)
        self._thread.start()
        self._releases, self._released = socket.socketpair()
        self._peer_watcher = threading.Thread(
            target=self._watch_peers, name="peer-watcher", daemon=True
        )
        self._destroyed = threading.Event()
        self._worker = threading.Thread(
            target=_destroy, args=(self._destroyed,), name="group-destroyer", daemon=True
        )
        try:
            # torch keeps the C++ half alone: without this reference the Python half is
            # collected and the first call says "Not implemented" (torch 2.13).
            self._store = _MeetingStore(self._client)
            _start_gloo(self._store, number, rank, world_size, timeout_s)
            self._sockets = self._opened()
        except BaseException:
            self.close(deadline_s=timeout_s)
            raise
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
        for fd, inode in self._opened().items() if self._sockets is None else self._own():
            with contextlib.suppress(OSError), sockets.borrowed(fd) as sock:
                if sockets.inode_of(fd) == inode:
                    sockets.end_reading(sock)

    def close(self, *, deadline_s: float) -> bool:
        """Destroy the group; tell whether that was done within the deadline, in seconds.

        Then a new one may be formed, although an operation that gloo has forgotten may hold up what
        is left of the old one until its timeout; see `has_gone`. The caller has dropped every
        reference to DDP before.
        """
        self.finish()
        self.cut()
        gc.collect()
        self._worker.start()
        is_destroyed = self._destroyed.wait(deadline_s)
        self._client.close()
        self._thread.join(WATCHER_JOIN_S)
        if self._peer_watcher.ident is not None:
            self._peer_watcher.join(WATCHER_JOIN_S)
        for end in (self._releases, self._released):
            end.close()
        return is_destroyed

    def has_gone(self, limit_s: float) -> bool:
        """Wait, after `close`, until nothing of the group is left; tell whether nothing is."""
        self._worker.join(limit_s)
        return not self._worker.is_alive()

    def finish(self) -> None:
        """Stop watching: from now on peers may leave."""
        self._stopped.set()
        self.let_peers_go()
        self._watcher.close()

    def let_peers_go(self) -> None:
        """Take a closed connection for no loss from now on: all work is done. Twice is harmless."""
        with contextlib.suppress(OSError):
            self._released.shutdown(socket.SHUT_RDWR)

    def _watch(self) -> None:
        """Ask whether the generation has moved on, from the first moment of connecting.

        On the way, once all ranks have told their ends, learn them.
        """
        known = str(self.number).encode()
        awaited, misses = self._names.keys, 0
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
                    self._peer_watcher.start()
                    continue
            except StoreError:
                # The store may be away for a while; training goes on without it.
                self._stopped.wait(self._watcher.backoff.wait_s(misses))
                misses = min(misses + 1, WATCH_BACKOFFS)
                continue
            misses = 0
            if moved is not None and not self._stopped.is_set():
                self._lose(f"generation {self.number} has moved on to {moved.decode()}")
                return

    def _watch_peers(self) -> None:
        """Wait until a peer has closed its connection, and tell all ranks of it at once.

        Also while this rank computes and would not meet the peer for a long time.
        """
        poller, told = select.poll(), self._releases.fileno()
        if self._stopped.is_set() or told < 0:  # closed before this thread began
            return
        poller.register(told, select.POLLIN)
        for fd, _ in self._own():
            poller.register(fd, select.POLLRDHUP)
        ready = [fd for fd, _ in poller.poll()]
        if told in ready or self._stopped.is_set() or self.check() is None:
            return
        with (
            contextlib.closing(self._client.again(timeout_s=WATCH_S)) as client,
            contextlib.suppress(StoreError, RendezvousFailed),
        ):
            advance(client, self.number, timeout_s=WATCH_S)

    def _leave_foreign_alone(self) -> None:
        """Drop what a user's own thread opened while the group connected (to a log server, say).

        Where an address is translated on the way, no end is anybody's: then nothing is dropped.
        """
        owners = {fd: self._names.owner(*end) for fd, end in self._peers.items()}
        if self._others <= set(owners.values()):
            self._sockets = {
                fd: inode for fd, inode in self._known() if owners.get(fd) in self._others
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
        self._lost = self._lost or reason
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
        return [(fd, inode) for fd, inode in self._known() if sockets.inode_of(fd) == inode]

    def _known(self) -> list[tuple[int, int]]:
        """Give the group's sockets, none while it still connects."""
        return list((self._sockets or {}).items())

    def _closed_by_peer(self) -> int | None:
        """Give a socket that a peer has closed, or that gloo closed since it found it broken."""
        poller = select.poll()
        for fd, inode in self._known():
            if sockets.inode_of(fd) != inode:
                return fd
            poller.register(fd, select.POLLRDHUP)
        return next((fd for fd, _ in poller.poll(0)), None)


class _MeetingStore(TorchStore):
    """The store under a group: until that has met, each wait has the store's own limit.

    Gloo would give a peer's address no longer than one of its tries.
    """

    has_met = False

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until every key has a value. Raises: StoreTimeout."""
        super().wait(keys, timeout if self.has_met else None)


def _start_gloo(
    store: _MeetingStore, number: int, rank: int, world_size: int, timeout_s: float
) -> None:
    limit = timedelta(seconds=timeout_s)
    store.set_timeout(limit)
    # Nothing wakes a rank that waits for a connection: what gloo makes of the limit given to it has
    # to be the limit, or the others take this rank for an absent one meanwhile. The group that
    # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps cannot be given the whole of it afterwards.
    is_wrapped = get_debug_level() == DebugLevel.DETAIL
    a_try = limit if is_wrapped else limit / GLOO_TRIES
    if not dist.is_initialized():
        # torch names the group by a count, part of every key, and sets it back only when a group
        # is destroyed: after a connect that failed, ranks would look under different names.
        # Source: _process_group_name and destroy_process_group of distributed_c10d.py.
        dist.distributed_c10d._world.group_count = 0  # noqa: SLF001 - there is no public way
    own = dist.PrefixStore(  # type: ignore[attr-defined]
        f"gloo/{number}", store
    )
    hook = sys.excepthook
    try:
        dist.init_process_group("gloo", store=own, rank=rank, world_size=world_size, timeout=a_try)
    finally:
        sys.excepthook = hook  # torch wraps it at each call, and never takes that back
    store.has_met = True
    if not is_wrapped:
        dist.distributed_c10d._set_pg_timeout(limit)  # noqa: SLF001 - there is no public way


def _destroy(destroyed: threading.Event) -> None:
    """Destroy the default group; only then let go of the last reference to it.

    That one waits for what gloo still has in hand, up to the group's timeout, and all the while
    torch would know no other default group (ProcessGroupGloo's destructor, torch 2.13). The same
    goes for groups that the task has made itself.
    """
    held: list[object] = []
    if dist.is_initialized():
        held += dist.distributed_c10d._world.pg_map  # noqa: SLF001 - there is no public way
        with contextlib.suppress(Exception):  # the group is broken: that is why it goes
            dist.destroy_process_group()
    if not dist.is_initialized():
        destroyed.set()
    _release(held)


def _release(held: list[object]) -> None:
    held.clear()
