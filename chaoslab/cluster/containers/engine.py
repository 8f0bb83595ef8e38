"""The engine: one connection, every call with a limit, every failure in words.

Everything made carries labels, by which it is found again and removed; nothing else is touched.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import docker
import docker.errors
import requests.exceptions

from chaoslab.cluster.containers.identity import this_harness
from chaoslab.errors import ClusterError, NotAvailable

RUN_LABEL: Final = "org.chaoslab.run"
"""Label of all that a run makes; its value is the run's id."""

ENGINE_LABEL: Final = "org.chaoslab"
"""Label of all that chaoslab makes."""

HARNESS_LABEL: Final = "org.chaoslab.harness"
"""Label of the same; its value names the process that made it (see `identity`)."""

ACTIVE_RUNS: Final[set[str]] = set()
"""The runs of this process that are not over. What is left of others is left behind."""

_LIMITS: Final = {"memory": "MemoryLimit", "pids": "PidsLimit"}
"""Source: GET /info of the Docker Engine API."""

CALL_LIMIT_S: Final = 60
REMOVE_LIMIT_S: Final = 30.0
_REMOVE_POLL_S: Final = 0.1

FAILURES: Final = (docker.errors.DockerException, requests.exceptions.RequestException, OSError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class About:
    """What an engine is. cgroup: "1" or "2". is_local: it shares this machine's file system.

    unbounded: what it cannot limit, since its kernel lacks that control group ("memory", "pids"); a
    limit that is asked for is dropped then, without an error.
    """

    version: str
    kernel: str
    cgroup: str
    storage: str
    system: str
    is_local: bool
    unbounded: tuple[str, ...] = ()

    def versions(self) -> dict[str, str]:
        """Give what a report says of it."""
        cgroup = ", ".join([self.cgroup, *(f"no limit of {what}" for what in self.unbounded)])
        return {
            "engine": f"{self.version} ({self.system})",
            "engine_kernel": self.kernel,
            "engine_cgroup": cgroup,
            "engine_storage": self.storage,
        }


class Engine:
    """A connection to the Docker engine that DOCKER_HOST names, this machine's by default.

    Its calls are synchronous; `call` runs one in a thread.
    """

    def __init__(self) -> None:
        """Connect. Raises: NotAvailable with what to do when no engine answers."""
        try:
            self.client = docker.from_env(timeout=CALL_LIMIT_S)
            self._info = self.client.info()
        except FAILURES as problem:
            raise NotAvailable(_why_no_engine(problem)) from problem
        self.api = self.client.api

    async def call(self, what: str, function: Callable[..., Any], *args: Any, **fields: Any) -> Any:
        """Make one call to the engine in a thread. Raises: ClusterError naming `what`.

        One that is cancelled is waited for all the same: what it makes must be there to be found
        when everything is removed.
        """
        bound = functools.partial(function, *args, **fields)
        task = asyncio.ensure_future(asyncio.to_thread(bound))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task})
            if task.exception() is None and hasattr(task.result(), "close"):
                task.result().close()
            raise
        except FAILURES as problem:
            raise ClusterError(f"the engine: {what}: {explain(problem)}") from problem

    def stream(self, method: str, path: str, *names: str, **given: Any) -> Any:
        """Ask for a stream; give the response. The answer has a limit, the stream has none.

        The SDK's own `attach_socket` and `events` wait for an answer without limit (docker 7.2).
        """
        ask = getattr(self.api, f"_{method}")
        response = ask(self.api._url(path, *names), stream=True, timeout=CALL_LIMIT_S, **given)  # noqa: SLF001
        self.api._disable_socket_timeout(self.api._get_raw_response_socket(response))  # noqa: SLF001
        return response

    @functools.cached_property
    def about(self) -> About:
        """Tell what this engine is."""
        info = self._info
        return About(
            version=str(info.get("ServerVersion")),
            kernel=str(info.get("KernelVersion")),
            cgroup=str(info.get("CgroupVersion") or "1"),
            storage=str(info.get("Driver")),
            system=str(info.get("OperatingSystem")),
            is_local=self._shares_files(),
            unbounded=tuple(name for name, key in _LIMITS.items() if self._info.get(key) is False),
        )

    def _shares_files(self) -> bool:
        """Tell whether a path means the same file there as here: the same running kernel.

        Docker Desktop's engine is behind a local socket, too, but in a machine of its own.
        """
        return bool(
            self.api.base_url.startswith(("http+docker://local", "http://localhost", "http://127."))
            and self._info.get("KernelVersion") == os.uname().release
            and self._info.get("Name") == os.uname().nodename
        )

    def close(self) -> None:
        """Close the connection; twice is harmless."""
        self.client.close()


def explain(problem: Exception) -> str:
    """Word what the SDK raised, without its address and its HTTP."""
    if isinstance(problem, docker.errors.APIError) and problem.explanation:
        return str(problem.explanation)
    if isinstance(problem, requests.exceptions.Timeout):
        return f"no answer within {CALL_LIMIT_S} s"
    if isinstance(problem, requests.exceptions.ConnectionError):
        return f"it cannot be reached (any more): {problem}"
    return str(problem)


def _why_no_engine(problem: Exception) -> str:
    address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    text = str(problem)
    if "Permission denied" in text or isinstance(problem, PermissionError):
        hint = "join its group (`sudo usermod -aG docker $USER`, then log in again)"
    elif Path("/.dockerenv").exists():
        hint = "give this container the engine's socket (-v /var/run/docker.sock:...)"
    else:
        hint = (
            "start one (`sudo systemctl start docker`, or Docker Desktop), or install it "
            "(`sudo apt-get install docker.io`), or name another by DOCKER_HOST"
        )
    return f"no Docker engine answers at {address}: {text}; {hint}"


def labels(run_id: str) -> dict[str, str]:
    """Give the labels of what a run makes."""
    return {ENGINE_LABEL: "1", RUN_LABEL: run_id, HARNESS_LABEL: this_harness()}


def fresh_name(run_id: str, what: str) -> str:
    """Give a name for something of a run; names are for people, labels for finding."""
    return f"chaoslab-{run_id}-{what}-{uuid.uuid4().hex[:6]}"


def remove_run(engine: Engine, run_id: str) -> list[str]:
    """Remove everything of a run, running or not. Returns what could not be removed, in words.

    In an order that works: containers, then what they used. What is gone already is no problem. The
    engine takes its time to let go of what a container used: it is asked again until a limit.
    """
    api, filters = engine.api, {"label": [f"{RUN_LABEL}={run_id}"]}
    kinds: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
        (
            lambda: api.containers(all=True, filters=filters),
            lambda one: api.remove_container(one["Id"], force=True, v=True),
        ),
        (lambda: api.networks(filters=filters), lambda one: api.remove_network(one["Id"])),
        (
            lambda: api.volumes(filters=filters)["Volumes"] or [],
            lambda one: api.remove_volume(one["Name"], force=True),
        ),
    ]
    deadline_s = time.monotonic() + REMOVE_LIMIT_S
    try:
        for listed, remove in kinds:
            problems = _remove_all(listed, remove)
            while problems:
                if time.monotonic() > deadline_s:
                    return problems
                time.sleep(_REMOVE_POLL_S)
                problems = _remove_all(listed, remove)
    except FAILURES as problem:  # it does not answer: asking on would only take long
        return [explain(problem)]
    return []


def _remove_all(listed: Callable[[], Any], remove: Callable[[Any], Any]) -> list[str]:
    """Remove what is listed; give what is still there, in words. Raises what the SDK does."""
    found = listed()
    refused = {}
    for one in found:
        try:
            remove(one)
        except docker.errors.NotFound:
            continue
        except docker.errors.APIError as problem:
            refused[one.get("Id") or one["Name"]] = explain(problem)
    left = {one.get("Id") or one["Name"]: one for one in (listed() if found else [])}
    return [refused.get(name, f"{name} is still there") for name in left]
