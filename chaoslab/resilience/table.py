"""Table: the store's keys and values, and what each operation does to them. No I/O."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from chaoslab.resilience.errors import StoreError

MAX_KEYS: Final = 100_000
MAX_VALUE_BYTES: Final = 8 * 1024 * 1024
MAX_TOTAL_BYTES: Final = 512 * 1024 * 1024
REMEMBERED_REQUESTS: Final = 4096
"""How many requests' answers are kept, so that a request that comes again is not done twice."""

_CHANGING: Final = frozenset({b"set", b"add", b"append", b"compare_set", b"delete", b"forget"})

OK, TIMEOUT, REFUSED = b"ok", b"timeout", b"refused"


class Table:
    """The keys of a store. One thread uses it; every operation answers with byte strings."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._total_bytes = 0
        self._answers: OrderedDict[bytes, list[bytes]] = OrderedDict()

    def once(self, name: bytes, operation: bytes, arguments: Sequence[bytes]) -> list[bytes]:
        """Do a request, or repeat the answer to one of the same name.

        A client whose answer was lost sends the request again on a new connection: without
        this an `add` would count twice, and a `set` that a cut delayed would undo a later one.
        """
        if operation not in _CHANGING:
            return self.do(operation, arguments)
        if name not in self._answers:
            self._answers[name] = self.do(operation, arguments)
            if len(self._answers) > REMEMBERED_REQUESTS:
                self._answers.popitem(last=False)
        return self._answers[name]

    def do(self, operation: bytes, arguments: Sequence[bytes]) -> list[bytes]:
        """Do one operation that never waits. Raises: StoreError for one that is refused."""
        work = self._operations.get(operation)
        if work is None:
            raise StoreError(
                f"operation {operation[:40]!r}: want one of {sorted(self._operations)}"
            )
        try:
            return work(self, *arguments)
        except (TypeError, ValueError) as error:
            raise StoreError(
                f"{operation.decode()} with {len(arguments)} fields: {error}"
            ) from None

    def has_all(self, keys: Sequence[bytes]) -> bool:
        """Tell whether every key has a value."""
        return all(key in self._values for key in keys)

    def get(self, key: bytes) -> bytes | None:
        """Give a value, or None."""
        return self._values.get(key)

    def _put(self, key: bytes, value: bytes) -> None:
        if len(value) > MAX_VALUE_BYTES:
            raise ValueError(f"value of {len(value)} bytes: want at most {MAX_VALUE_BYTES}")
        if key not in self._values and len(self._values) >= MAX_KEYS:
            raise ValueError(f"{len(self._values)} keys held: want at most {MAX_KEYS}")
        grown = self._total_bytes + len(value) - len(self._values.get(key, b""))
        if grown > MAX_TOTAL_BYTES:
            raise ValueError(f"{grown} bytes held: want at most {MAX_TOTAL_BYTES}")
        self._total_bytes = grown
        self._values[key] = value

    def _set(self, *pairs: bytes) -> list[bytes]:
        if len(pairs) % 2:
            raise ValueError("want a value for every key")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            self._put(key, value)
        return []

    def _get(self, *keys: bytes) -> list[bytes]:
        """Give, for each key, its value behind a byte that tells whether it has one."""
        found = [self._values.get(key) for key in keys]
        return [b"\0" if value is None else b"\1" + value for value in found]

    def _add(self, key: bytes, amount: bytes) -> list[bytes]:
        self._put(key, str(int(self._values.get(key, b"0")) + int(amount)).encode())
        return [self._values[key]]

    def _append(self, key: bytes, more: bytes) -> list[bytes]:
        self._put(key, self._values.get(key, b"") + more)
        return []

    def _compare_set(self, key: bytes, expected: bytes, desired: bytes) -> list[bytes]:
        """Set when the value is the expected one; a missing key matches an empty expectation.

        Source: torch/csrc/distributed/c10d/HashStore.cpp, compareSet.
        """
        held = self._values.get(key)
        if (held is None and not expected) or held == expected:
            self._put(key, desired)
            return [desired]
        return [expected if held is None else held]

    def _delete(self, key: bytes) -> list[bytes]:
        value = self._values.pop(key, None)
        self._total_bytes -= len(value or b"")
        return [b"0" if value is None else b"1"]

    def _forget(self, below: bytes, *prefixes: bytes) -> list[bytes]:
        """Delete the keys PREFIX/NUMBER/... of every number below one; give how many they were."""
        limit = int(below)
        old = [
            key
            for key in self._values
            if len(parts := key.split(b"/", 2)) > 1
            and parts[0] in prefixes
            and parts[1].isdigit()
            and int(parts[1]) < limit
        ]
        for key in old:
            self._delete(key)
        return [str(len(old)).encode()]

    def _count(self) -> list[bytes]:
        return [str(len(self._values)).encode()]

    def _ping(self) -> list[bytes]:
        return [f"{time.monotonic():.6f}".encode()]

    _operations: ClassVar[dict[bytes, Callable[..., list[bytes]]]] = {
        b"set": _set,
        b"get": _get,
        b"add": _add,
        b"append": _append,
        b"compare_set": _compare_set,
        b"delete": _delete,
        b"forget": _forget,
        b"num_keys": _count,
        b"ping": _ping,
    }
