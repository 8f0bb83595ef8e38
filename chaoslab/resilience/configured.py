"""Configured: an environment and a timeout that have been set, can be checked and be undone."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import MappingProxyType, TracebackType
from typing import Any, Self

import torch.distributed as dist

from chaoslab.resilience import variables as v
from chaoslab.resilience.errors import ConfigurationDiffers, DeprecatedVariable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configured:
    """What has been configured. As a context manager it is undone at the end.

    timeout: give it to `init_process_group`. environment: what was set, by name. replaced: what
    these names, and deprecated ones, were before; None for not set. longest_s: from the start of
    a collective that never ends to the error or, with NCCL, the end of the process.
    """

    backend: str
    timeout: timedelta
    environment: Mapping[str, str]
    replaced: Mapping[str, str | None]
    longest_s: float

    def check(self) -> None:
        """Compare what is in force, in the environment and in the default group, if there is one.

        Raises: ConfigurationDiffers.
        """
        wanted = {
            name: self.environment.get(name) for name in {**self.replaced, **self.environment}
        }
        seen = {name: v.read_back(name) for name in wanted}
        differences = [
            f"{name}: want {wanted[name]}, found {value}"
            for name, value in sorted(seen.items())
            if value != wanted[name]
        ]
        if dist.is_initialized():
            differences += self._differences_of_group()
        if differences:
            raise ConfigurationDiffers(
                f"{self.backend}: {'; '.join(differences)}. Was it changed since, or was the "
                "group made without timeout=?"
            )

    def restore(self) -> None:
        """Put the environment back; what others changed since is theirs and stays."""
        for name, former in self.replaced.items():
            if os.environ.get(name) != self.environment.get(name):
                continue
            if former is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = former

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.restore()

    def _differences_of_group(self) -> list[str]:
        timeouts = dict(_timeouts_of_group())
        if self.backend not in timeouts:
            return [f"default group: want {self.backend}, found {sorted(timeouts)}"]
        found = timeouts[self.backend]
        if found != self.timeout:
            return [f"timeout of the default group: want {self.timeout}, found {found}"]
        return []


def apply(
    backend: str, timeout: timedelta, values: Mapping[str, str], *, longest_s: float
) -> Configured:
    """Change the environment and read it back; on an error it is as before."""
    old = v.found() if backend == "nccl" else {}
    replaced = {name: os.environ.get(name) for name in (*values, *old)}
    configured = Configured(
        backend=backend,
        timeout=timeout,
        environment=MappingProxyType(dict(values)),
        replaced=MappingProxyType(replaced),
        longest_s=longest_s,
    )
    try:
        for name in old:
            warnings.warn(
                f"{name} is deprecated: use {v.deprecated()[name]}", DeprecatedVariable, 3
            )
            del os.environ[name]
        os.environ.update(values)
        configured.check()
    except BaseException:
        _put_back(replaced)
        raise
    return configured


def _put_back(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _timeouts_of_group() -> Iterator[tuple[str, timedelta | None]]:
    """Give the timeout of each backend of the default group; torch has no public way (2.13)."""
    group: Any = dist.group.WORLD
    for device in group._device_types:  # noqa: SLF001 - see above
        backend = group._get_backend(device)  # noqa: SLF001
        backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
        yield backend.name(), getattr(backend.options, "_timeout", None)
