"""TorchStore: lets torch.distributed use this library's store in place of TCPStore."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.errors import StoreTimeout


class TorchStore(dist.Store):  # type: ignore[name-defined, misc]
    """A torch.distributed.Store whose calls go through a StoreClient, each with a deadline.

    Give it to `init_process_group(store=...)`, and keep a reference to it as long as the group
    lives. Its timeout is the client's until `set_timeout`.
    """

    def __init__(self, client: StoreClient) -> None:
        super().__init__()  # without this the C++ half does not exist
        self._client = client
        self._timeout_s = client.timeout_s

    def set(self, key: str, value: str | bytes) -> None:
        """Give a key its value."""
        self._client.set(key, _as_bytes(value), timeout_s=self._timeout_s)

    def get(self, key: str) -> bytes:
        """Wait for a key to have a value and give it. Raises: StoreTimeout."""
        self._client.wait([key], timeout_s=self._timeout_s)
        value = self._client.get(key, timeout_s=self._timeout_s)
        if value is None:
            raise StoreTimeout(f"key {key!r}: deleted while it was read")
        return value

    def add(self, key: str, amount: int) -> int:
        """Add to a number and give the sum."""
        return self._client.add(key, amount, timeout_s=self._timeout_s)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until every key has a value. Raises: StoreTimeout."""
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        self._client.wait(keys, timeout_s=limit_s)

    def check(self, keys: Sequence[str]) -> bool:
        """Tell whether every key has a value."""
        return self._client.check(keys, timeout_s=self._timeout_s)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a value if it is the expected one; give the value that holds now."""
        return self._client.compare_set(
            key, _as_bytes(expected), _as_bytes(desired), timeout_s=self._timeout_s
        )

    def delete_key(self, key: str) -> bool:
        """Remove a key; tell whether it was there."""
        return self._client.delete(key, timeout_s=self._timeout_s)

    def num_keys(self) -> int:
        """Count the keys."""
        return self._client.num_keys(timeout_s=self._timeout_s)

    def append(self, key: str, value: str | bytes) -> None:
        """Add bytes to the end of a value."""
        self._client.append(key, _as_bytes(value), timeout_s=self._timeout_s)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait for every key to have a value and give them. Raises: StoreTimeout."""
        self._client.wait(keys, timeout_s=self._timeout_s)
        found = self._client.multi_get(keys, timeout_s=self._timeout_s)
        return [value or b"" for value in found]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Give several keys their values."""
        pairs = {key: _as_bytes(value) for key, value in zip(keys, values, strict=True)}
        self._client.multi_set(pairs, timeout_s=self._timeout_s)

    def has_extended_api(self) -> bool:
        """Tell torch that append, multi_get and multi_set exist."""
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the deadline of every later call."""
        self._timeout_s = timeout.total_seconds()

    # C++ looks these two up by its own names.
    # Source: torch/csrc/distributed/c10d/init.cpp, class PythonStore (torch 2.13).
    deleteKey = delete_key  # noqa: N815
    getNumKeys = num_keys  # noqa: N815


def _as_bytes(value: str | bytes | Sequence[int]) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
