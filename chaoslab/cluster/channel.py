"""A channel: JSON lines over a stream socket, one answer per request, plus events."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
from collections.abc import Callable
from typing import Any

from chaoslab.errors import HarnessError

LINE_LIMIT_BYTES = 1 << 24
_CLOSE_LIMIT_S = 5.0


class Channel:
    """One end of a conversation with a lab or an agent; use `open_channel` to make one.

    on_event is called with each line that is no answer; on_end when the other side is gone.
    """

    def __init__(
        self,
        name: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_event: Callable[[dict[str, Any]], None],
    ) -> None:
        self._name = name
        self._reader = reader
        self._writer = writer
        self._on_event = on_event
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.ended = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._read())

    async def request(self, op: str, *, limit_s: float, **fields: Any) -> dict[str, Any]:
        """Send one request and wait for its answer.

        limit_s: seconds to wait. Raises: HarnessError when no answer came or the other side is
        gone; an answer with ok=False is returned, since its meaning is the caller's.
        """
        number = next(self._ids)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            if self.ended.is_set():
                raise HarnessError(f"{self._name} is gone: {op!r} cannot be asked")
            line = json.dumps({"id": number, "op": op} | fields).encode() + b"\n"
            self._writer.write(line)
            async with asyncio.timeout(limit_s):
                await self._writer.drain()
                return await future
        except TimeoutError as problem:
            raise HarnessError(f"{self._name} gave no answer to {op!r} in {limit_s} s") from problem
        except ConnectionError as problem:
            raise HarnessError(f"{self._name} is gone: {problem}") from problem
        finally:
            self._waiting.pop(number, None)

    def expect(self, number: int, future: asyncio.Future[dict[str, Any]]) -> None:
        """Take the answer to a request that was sent by other means under this number."""
        self._waiting[number] = future

    async def _read(self) -> None:
        try:
            while line := await self._reader.readline():
                self._take(json.loads(line))
        except (ConnectionError, ValueError):  # a stream cut off in a line has ended as well
            pass
        finally:
            self.ended.set()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionError(f"{self._name} closed its stream"))

    def _take(self, message: dict[str, Any]) -> None:
        future = self._waiting.get(message.get("id", -1))
        if future is not None and not future.done():
            future.set_result(message)
        elif "event" in message:
            self._on_event(message)

    async def close(self) -> None:
        """End the conversation; twice is harmless."""
        self._writer.close()
        try:
            async with asyncio.timeout(_CLOSE_LIMIT_S):
                await self._writer.wait_closed()
        except TimeoutError:  # the other side is stopped and reads nothing: what waits is dropped
            self._writer.transport.abort()
        except ConnectionError:
            pass
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self.ended.set()


async def open_channel(
    name: str, end: socket.socket, on_event: Callable[[dict[str, Any]], None]
) -> Channel:
    """Make a channel of a connected socket. name: for messages, such as "agent of node 2"."""
    end.setblocking(False)  # noqa: FBT003  the socket module has no keyword for it
    reader, writer = await asyncio.open_connection(sock=end, limit=LINE_LIMIT_BYTES)
    return Channel(name, reader, writer, on_event)
