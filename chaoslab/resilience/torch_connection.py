"""Connection: one connection to a torch TCPStore, and the operations that never wait on it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import torch.distributed as dist

from chaoslab.resilience import sockets

_FD: Final = re.compile(r"SocketImpl\(fd=(\d+)")
"""How a TCPStore names its socket. Source: SocketImpl::repr, socket.cpp (torch 2.13).

The text also has both ends, by name: torch asks the name service for them, which may take seconds.
"""


class Connection:
    """A torch store with a socket of its own. One thread uses it at a time.

    Make it in a thread that can be given up, for torch asks the name service.
    remote: the address that the socket goes to, None where torch does not tell.
    """

    def __init__(self, store: Any) -> None:
        self.store = store
        self.remote: tuple[str, int] | None = None
        self._nothing = os.urandom(16)
        self._fd, self._inode = -1, None
        match = _FD.search(repr(base(store)))
        if match is not None:
            self._fd = int(match[1])
            self._inode, self.remote = sockets.inode_of(self._fd), sockets.end_of(self._fd)

    def do(self, operation: bytes, fields: Sequence[bytes]) -> list[bytes]:
        """Carry out an operation, with the answer that `table.Table` would give.

        Raises: dist.DistError when the connection breaks; KeyError for an unknown operation.
        """
        return self._operations[operation](self, *fields)

    def cut(self) -> None:
        """Shut the socket down: a thread that waits on it is woken."""
        with contextlib.suppress(OSError), sockets.borrowed(self._fd) as sock:
            if self._inode is not None and sockets.inode_of(self._fd) == self._inode:
                sock.shutdown(socket.SHUT_RDWR)

    def _read(self, key: bytes) -> bytes:
        """Give a value behind a byte that tells whether it has one, without waiting for one.

        compare_set gives back what holds, or the expectation where nothing does; `get` would wait.
        """
        found = bytes(self.store.compare_set(key.decode(), self._nothing, self._nothing))
        return b"\0" if found == self._nothing else b"\1" + found

    def _set(self, *pairs: bytes) -> list[bytes]:
        """Set, then read back: the answer shows that the write before it is done."""
        self.store.multi_set([key.decode() for key in pairs[::2]], list(pairs[1::2]))
        self._read(pairs[0])
        return []

    def _get(self, *keys: bytes) -> list[bytes]:
        return [self._read(key) for key in keys]

    def _check(self, *keys: bytes) -> list[bytes]:
        return [b"1" if self.store.check([key.decode() for key in keys]) else b"0"]

    def _add(self, key: bytes, amount: bytes) -> list[bytes]:
        return [str(self.store.add(key.decode(), int(amount))).encode()]

    def _append(self, key: bytes, more: bytes) -> list[bytes]:
        self.store.append(key.decode(), more)
        self._read(key)
        return []

    def _compare_set(self, key: bytes, expected: bytes, desired: bytes) -> list[bytes]:
        return [bytes(self.store.compare_set(key.decode(), expected, desired))]

    def _delete(self, key: bytes) -> list[bytes]:
        return [b"1" if self.store.delete_key(key.decode()) else b"0"]

    def _count(self) -> list[bytes]:
        return [str(self.store.num_keys()).encode()]

    def _ping(self) -> list[bytes]:
        self.store.check(["ping"])
        return []

    _operations: ClassVar[dict[bytes, Callable[..., list[bytes]]]] = {
        b"set": _set,
        b"get": _get,
        b"check": _check,
        b"add": _add,
        b"append": _append,
        b"compare_set": _compare_set,
        b"delete": _delete,
        b"num_keys": _count,
        b"ping": _ping,
    }


def base(store: Any) -> Any:
    """Give the store under all prefixes."""
    while isinstance(store, dist.PrefixStore):  # type: ignore[attr-defined]
        store = store.underlying_store
    return store
