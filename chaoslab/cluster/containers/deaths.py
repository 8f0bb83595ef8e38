"""Deaths: how the containers of a run ended, from the engine's stream of events.

A container that ends is removed by the engine, so that nobody could ask afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from typing import Any, Final, Self

import docker.errors
import requests.exceptions
import urllib3.exceptions

from chaoslab.cluster.containers.engine import RUN_LABEL, Engine

_TOLD_LIMIT_S: Final = 3.0
_SIGNALS_FROM, _SIGNALS = 128, 64
"""A shell's convention, which the engine follows: 128 and the signal's number."""

_ENDS: Final = (
    docker.errors.DockerException,
    requests.exceptions.RequestException,
    urllib3.exceptions.HTTPError,
    OSError,
    ValueError,
)


class Deaths:
    """Listens from its start to its close, in a thread: one connection for a whole run."""

    def __init__(self, engine: Engine, response: Any) -> None:
        self._response = response
        self._events = engine.api._stream_helper(response, decode=True)  # noqa: SLF001
        self._socket = engine.api._get_raw_response_socket(response)  # noqa: SLF001
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, asyncio.Future[int]] = {}
        self._thread = threading.Thread(target=self._listen, name="container-deaths", daemon=True)
        self._thread.start()

    @classmethod
    async def of(cls, engine: Engine, run_id: str) -> Self:
        """Begin to listen, before the first container starts. Raises: ClusterError."""
        wanted = {"type": ["container"], "event": ["die"], "label": [f"{RUN_LABEL}={run_id}"]}
        response = await engine.call(
            "listen to its events",
            engine.stream,
            "get",
            "/events",
            params={"filters": json.dumps(wanted)},
        )
        return cls(engine, response)

    async def status_of(self, container: str) -> int | None:
        """Give how a container ended: its status, or minus the signal's number; None if untold."""
        try:
            async with asyncio.timeout(_TOLD_LIMIT_S):
                return await asyncio.shield(self._of(container))
        except TimeoutError:
            return None

    async def close(self) -> None:
        """Listen no more; twice is harmless."""
        sock = getattr(self._socket, "_sock", self._socket)  # None once the engine has closed it
        with contextlib.suppress(*_ENDS):
            if sock is not None:
                sock.shutdown(socket.SHUT_RDWR)  # wakes the thread
        await asyncio.to_thread(self._thread.join, _TOLD_LIMIT_S)
        for end in filter(None, (self._response, self._socket, sock)):
            with contextlib.suppress(*_ENDS):
                end.close()

    def _of(self, container: str) -> asyncio.Future[int]:
        return self._known.setdefault(container, self._loop.create_future())

    def _listen(self) -> None:
        # RuntimeError: the loop has been closed meanwhile, so that nobody wants to know.
        with contextlib.suppress(*_ENDS, RuntimeError):
            for event in self._events:
                actor = event.get("Actor") or {}
                code = int((actor.get("Attributes") or {}).get("exitCode", 0))
                is_signal = _SIGNALS_FROM < code <= _SIGNALS_FROM + _SIGNALS
                status = _SIGNALS_FROM - code if is_signal else code
                self._loop.call_soon_threadsafe(self._note, str(actor.get("ID")), status)

    def _note(self, container: str, status: int) -> None:
        future = self._of(container)
        if not future.done():
            future.set_result(status)
