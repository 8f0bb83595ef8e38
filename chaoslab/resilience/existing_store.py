"""ExistingStoreClient: lets this library use a store that is there already, torchrun's for one.

A torch TCPStore whose host is frozen holds a call for as long as the host is frozen, whatever
timeout it was given, and its `set` returns at once, done or not (torch 2.13). So every call runs
in a thread that can be given up, on a connection of its own, and asks for nothing that blocks;
what is written is read back on the same connection. torch asks the name service about both ends
of each new connection, seconds where that does not answer: connections are kept, and one that
comes too late for its call serves a later one.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, Generic, Self, TypeVar

import torch.distributed as dist

from chaoslab.resilience.backoff import Backoff
from chaoslab.resilience.client import (
    ANSWER_MARGIN_S,
    FIRST_ATTEMPT_S,
    LONGEST_ATTEMPT_S,
    StoreClient,
)
from chaoslab.resilience.errors import StoreError, StoreTimeout
from chaoslab.resilience.torch_connection import Connection, base

LONGEST_POLL_S: Final = 0.1
"""A change is seen after this long at most; each waiting client asks about 20 times a second."""

CONNECT_S: Final = 5.0
"""Limit that torch is given for a connection: a thread that was given up ends after it."""

MOST_CALLS: Final = 16
"""Calls in flight, those given up included: a store that is frozen for long costs no more."""

CLOSED_POLL_S: Final = 0.05
"""Whoever waits for a connection looks this often whether the client has been closed."""

UNWIND_S: Final = 0.2
"""A call that was woken ends within milliseconds; it is awaited this long.

A thread that comes out of torch while the interpreter ends aborts the process: status 134 in
place of the job's own was seen twice in 30 such ends (Python 3.11, torch 2.13).
"""

REPEATABLE: Final = frozenset({b"set", b"get", b"compare_set", b"num_keys", b"ping", b"check"})
"""What may be sent again after a broken connection: done twice it is as if done once."""

T = TypeVar("T")


class ExistingStoreClient(StoreClient):
    """A StoreClient over a torch TCPStore, or a PrefixStore over one.

    store: its address and prefix are used, on connections of its own: it may be in use elsewhere.
    timeout_s: deadline of a call that states none. What differs from the library's own store:
    waiting is polling; `num_keys` counts all keys; `forget` removes nothing, since torch's store
    does not tell its keys (nor limits their number); an `add`, `append` or `delete` whose
    connection broke is not sent again but raises StoreError; when the store's host is lost, so is
    the job; and where the name service is slow, so is the store: torch asks it for the name behind
    each connection's address, the server in its only thread (torch 2.13, seen with strace).

    Raises: TypeError for another kind of store; StoreTimeout when it cannot be reached.
    """

    def __init__(self, store: Any, *, timeout_s: float = 5.0) -> None:
        inner = base(store)
        if not isinstance(inner, dist.TCPStore):  # type: ignore[attr-defined]
            raise TypeError(
                f"ExistingStoreClient({type(inner).__name__}): want a TCPStore, or a PrefixStore "
                "over one; other stores have no address that health checks could use"
            )
        super().__init__(inner.host, inner.port, timeout_s=timeout_s)
        self._slots = threading.BoundedSemaphore(MOST_CALLS)
        self._pending: set[_Call[Any]] = set()
        self._ready: queue.SimpleQueue[Connection | Exception] = queue.SimpleQueue()
        self._pauses = Backoff(base_s=0.002, cap_s=LONGEST_POLL_S, seed=random.getrandbits(32))
        first = self._first_connection(store, timeout_s)
        self._origin = first.store
        if first.remote is not None:
            self.address = first.remote
        self._ready.put(first)

    @classmethod
    def of_torchrun(cls, *, timeout_s: float = 5.0) -> Self:
        """Connect to the store that torchrun's agent hosts, from one of its workers.

        Raises: StoreError outside torchrun, or when its store is not shared with the workers;
        StoreTimeout.
        """
        host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
        shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        if not shared or not host or not port.isdigit():
            raise StoreError(
                f"TORCHELASTIC_USE_AGENT_STORE={os.environ.get('TORCHELASTIC_USE_AGENT_STORE')}, "
                f"MASTER_ADDR={host}, MASTER_PORT={port}: want a worker of torchrun with a shared "
                "store; unset TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
            )
        limit = timedelta(seconds=timeout_s)

        def connect() -> Any:
            _reach(host, int(port), timeout_s)
            return dist.TCPStore(  # type: ignore[attr-defined]
                host, int(port), is_master=False, timeout=limit, wait_for_workers=False
            )

        where = f"store {host}:{port}, connect"
        try:
            store = _Call(connect).within(timeout_s, where)
        except (OSError, dist.DistError) as error:
            raise _as_timeout(where, error) from None
        return cls(store, timeout_s=timeout_s)

    def again(self, *, timeout_s: float) -> Self:
        """Give another client of the same store."""
        client = type(self)(self._origin, timeout_s=timeout_s)
        client.backoff = self.backoff
        return client

    def close(self) -> None:
        """End every connection; calls in progress in other threads fail at once."""
        self._closed.set()
        for call in list(self._pending):
            call.cancel(StoreError("this client has been closed"))
        with contextlib.suppress(queue.Empty):
            while True:
                self._ready.get_nowait()

    def forget(self, prefixes: Sequence[str], *, below: int, timeout_s: float | None = None) -> int:
        """Remove nothing."""
        del prefixes, below, timeout_s
        return 0

    def _call(
        self, operation: bytes, fields: Sequence[bytes], timeout_s: float | None
    ) -> list[bytes]:
        """Do one operation that never waits, with the answer that the library's store gives."""
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        deadline_s, failed = time.monotonic() + limit_s, 0
        name, problem = operation.decode(), "no attempt was made"
        while (left_s := deadline_s - time.monotonic()) > 0:
            if self._closed.is_set():
                raise StoreError(f"{name}: this client has been closed")
            attempt_s = min(FIRST_ATTEMPT_S * 2**failed, LONGEST_ATTEMPT_S)
            self._tell_attempt()
            try:
                answer = self._once(operation, fields, left_s, min(left_s, attempt_s))
            except _TryAgain as error:
                problem = str(error)
                self._pause(failed, deadline_s)
                failed += 1
                continue
            self._suspect = False
            return answer
        raise StoreTimeout(
            f"store {self._where()}, {name}: no answer within {limit_s:.3g} s ({problem}); "
            "is the store running and reachable from here?"
        )

    def _once(
        self, operation: bytes, fields: Sequence[bytes], left_s: float, attempt_s: float
    ) -> list[bytes]:
        """Do it once, on a connection that has not failed. Raises: _TryAgain where that is safe."""
        try:
            connection = self._connection(attempt_s)
        except (dist.DistError, OSError) as error:
            raise _TryAgain(_first_line(error)) from None
        repeatable = operation in REPEATABLE
        name = operation.decode()
        try:
            answer = self._guarded(
                lambda: connection.do(operation, fields),
                attempt_s if repeatable else left_s,
                name,
                connection,
            )
        except (dist.DistError, StoreTimeout) as error:
            if repeatable:
                raise _TryAgain(_first_line(error)) from None
            if isinstance(error, StoreTimeout):
                raise
            raise StoreError(
                f"store {self._where()}, {name}: {_first_line(error)}; it may or may not be done"
            ) from None
        except (ValueError, TypeError, RuntimeError) as error:
            raise StoreError(f"store refused: {_first_line(error)}") from None
        self._ready.put(connection)
        return answer

    def _wait(
        self, operation: bytes, fields: Sequence[bytes], timeout_s: float | None
    ) -> list[bytes] | None:
        """Ask again and again until the condition holds; None when it does not in time."""
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        deadline_s = time.monotonic() + limit_s
        polls = 0
        while True:
            left_s = max(deadline_s - time.monotonic(), ANSWER_MARGIN_S)
            answer = self._holds(operation, fields, left_s)
            if answer is not None:
                return answer
            left_s = deadline_s - time.monotonic() - ANSWER_MARGIN_S
            if left_s <= 0:
                return None
            self._closed.wait(min(self._pauses.wait_s(polls), left_s))
            polls += 1

    def _holds(
        self, operation: bytes, fields: Sequence[bytes], limit_s: float
    ) -> list[bytes] | None:
        """Tell whether what is waited for holds now, as the library's store would answer.

        The other keys are asked for first: they are never deleted, so when the value is read
        afterwards both hold at that moment.
        """
        if operation == b"wait":
            return [] if self._call(b"check", fields, limit_s) == [b"1"] else None
        key, known, *others = fields
        complete = bool(others) and self._call(b"check", others, limit_s) == [b"1"]
        found = self._call(b"get", [key], limit_s)[0]
        value = found[1:] if found[:1] == b"\1" else b""
        return [value] if value != known or complete else None

    def _connection(self, limit_s: float) -> Connection:
        """Give a connection that no other call uses, a new one if need be.

        Raises: StoreTimeout; what connecting raises.
        """
        with contextlib.suppress(queue.Empty):
            while True:
                if isinstance(found := self._ready.get_nowait(), Connection):
                    return found
        deadline_s = time.monotonic() + limit_s
        self._take_slot(limit_s, "connect")
        threading.Thread(
            target=self._connect, args=[limit_s], name="store-call", daemon=True
        ).start()
        while not self._closed.is_set() and (left_s := deadline_s - time.monotonic()) > 0:
            try:
                found = self._ready.get(timeout=min(left_s, CLOSED_POLL_S))
            except queue.Empty:
                continue
            if isinstance(found, Connection):
                return found
            raise found
        raise StoreTimeout(f"no connection within {limit_s:.3g} s")

    def _connect(self, limit_s: float) -> None:
        """Connect, and leave the connection to whoever needs one first; runs in a thread."""
        found: Connection | Exception
        try:
            _reach(*self.address, limit_s)
            found = Connection(self._origin.clone())
        except (OSError, RuntimeError) as error:
            found = error
        finally:
            self._slots.release()
        self._ready.put(found)

    def _take_slot(self, limit_s: float, name: str) -> None:
        if not self._slots.acquire(timeout=limit_s):
            raise StoreTimeout(
                f"store {self._where()}, {name}: {MOST_CALLS} earlier calls have not come back "
                f"within {limit_s:.3g} s; is the store running and reachable from here?"
            )

    def _first_connection(self, store: Any, limit_s: float) -> Connection:
        """Connect, again as long as there is time. Raises: StoreTimeout."""
        deadline_s, failed = time.monotonic() + limit_s, 0
        while True:
            left_s = max(deadline_s - time.monotonic(), 0.001)
            try:
                return self._guarded(partial(_copy_of, store, left_s), left_s, "connect")
            except (OSError, dist.DistError) as error:
                wait_s = self.backoff.wait_s(failed)
                if time.monotonic() + wait_s >= deadline_s:
                    raise _as_timeout(f"store {self._where()}, connect", error) from None
                time.sleep(wait_s)
                failed += 1

    def _guarded(
        self,
        work: Callable[[], T],
        limit_s: float,
        name: str,
        connection: Connection | None = None,
    ) -> T:
        """Run something in a thread, and give it up at the limit. Raises: StoreTimeout."""
        deadline_s = time.monotonic() + limit_s
        where = f"store {self._where()}, {name}"
        self._take_slot(limit_s, name)
        call = _Call(work, at_end=self._slots.release)
        self._pending.add(call)
        try:
            return call.within(max(deadline_s - time.monotonic(), 0.001), where)
        except BaseException:
            if connection is not None:
                connection.cut()
                call.join(UNWIND_S)
            raise
        finally:
            self._pending.discard(call)

    def _where(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"


class _TryAgain(Exception):
    """Nothing was done, or what was done may be done again."""


class _Call(Generic[T]):
    """One call of torch, in a thread of its own."""

    def __init__(self, work: Callable[[], T], at_end: Callable[[], None] | None = None) -> None:
        self._work, self._at_end = work, at_end
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-call", daemon=True)
        self._value: T | None = None
        self._error: BaseException | None = None

    def within(self, limit_s: float, what: str) -> T:
        """Start it and give its result. Raises: StoreTimeout at the limit; what it raises."""
        self._thread.start()
        if not self._over.wait(limit_s):
            raise StoreTimeout(
                f"{what}: no answer within {limit_s:.3g} s; "
                "is the store running and reachable from here?"
            )
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def cancel(self, error: StoreError) -> None:
        """Let whoever waits for it go on with an error."""
        self._error = self._error or error
        self._over.set()

    def join(self, limit_s: float) -> None:
        """Wait for its thread to end."""
        self._thread.join(limit_s)

    def _run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            self._error = self._error or error
        finally:
            del self._work  # and with it the connection, in this thread: to close it may block
            if self._at_end is not None:
                self._at_end()
            self._over.set()


def _reach(host: str, port: int, limit_s: float) -> None:
    """Fail at once where nobody listens: torch would go on trying, deaf to any deadline.

    Raises: OSError.
    """
    with socket.create_connection((host, port), timeout=limit_s):
        pass


def _copy_of(store: Any, limit_s: float) -> Connection:
    """Make a connection of our own whose limit, and that of its copies, is CONNECT_S."""
    _reach(base(store).host, base(store).port, limit_s)
    copy = store.clone()
    copy.set_timeout(timedelta(seconds=CONNECT_S))
    return Connection(copy)


def _as_timeout(where: str, error: Exception) -> StoreTimeout:
    """Word a connection that could not be made as what it means to the caller."""
    if isinstance(error, StoreTimeout):
        return error
    return StoreTimeout(
        f"{where}: {_first_line(error)}; is the store running and reachable from here?"
    )


def _first_line(error: Exception) -> str:
    """Give the message without torch's stack of C++ frames."""
    return str(error).partition("\n")[0]
