"""An attachment: a container's standard streams, carried by the engine, as a channel.

The engine puts both output streams into one, in frames: a byte for the stream, three unused, four
for the length, then the bytes. Source: Docker Engine API, "Attach to a container", stream format.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from typing import Any, Final

from chaoslab.cluster.channel import LINE_LIMIT_BYTES, Channel

_FRAME: Final = struct.Struct(">BxxxL")
_STDOUT: Final = 1
_SAID_BYTES: Final = 8000
_PUMP_BYTES: Final = 1 << 16


class Attachment:
    """A container's streams. channel: its standard input and output, as JSON lines."""

    def __init__(
        self, channel: Channel, said: bytearray, task: asyncio.Task[None], held: list[Any]
    ) -> None:
        self.channel = channel
        self._said = said
        self._task = task
        self._held = held

    @property
    def said(self) -> str:
        """Give the end of what it wrote to standard error."""
        return self._said.decode(errors="replace").strip()

    async def close(self) -> None:
        """End the conversation: the container's standard input ends. Twice is harmless."""
        with contextlib.suppress(Exception):  # whatever ended it: it is over now
            await self.channel.close()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        # The response, the SDK's stream of it and the socket in that: closing one leaves the
        # others open (docker 7.2), and the container's standard input with them.
        for end in self._held:
            with contextlib.suppress(OSError):
                end.close()


async def attach(
    name: str, response: Any, raw: Any, on_event: Callable[[dict[str, Any]], None]
) -> Attachment:
    """Make a channel of the engine's answer to an attach, and the SDK's stream of it.

    name: for messages.
    """
    end = _as_socket(raw)
    end.setblocking(False)  # noqa: FBT003  the socket module has no keyword for it
    framed, writer = await asyncio.open_connection(sock=end, limit=LINE_LIMIT_BYTES)
    lines = asyncio.StreamReader(limit=LINE_LIMIT_BYTES)
    said = bytearray()
    task = asyncio.get_running_loop().create_task(_unframe(framed, lines, said))
    held = [response, raw, getattr(raw, "_sock", raw)]
    return Attachment(Channel(name, lines, writer, on_event), said, task, held)


async def _unframe(
    framed: asyncio.StreamReader, lines: asyncio.StreamReader, said: bytearray
) -> None:
    try:
        while True:
            stream, length = _FRAME.unpack(await framed.readexactly(_FRAME.size))
            data = await framed.readexactly(length)
            if stream == _STDOUT:
                lines.feed_data(data)
            else:
                said += data
                del said[:-_SAID_BYTES]
    except (asyncio.IncompleteReadError, OSError):
        pass
    finally:
        lines.feed_eof()


def _as_socket(raw: Any) -> socket.socket:
    """Give a plain socket: the one inside, or one end of a pair that threads pump."""
    inner = getattr(raw, "_sock", raw)
    if isinstance(inner, socket.socket) and not isinstance(inner, ssl.SSLSocket):
        return inner.dup()
    # TLS, or a channel of an SSH connection: neither is for asyncio to read.
    ours, theirs = socket.socketpair()
    if hasattr(inner, "settimeout"):
        inner.settimeout(None)
    pumps = [
        threading.Thread(target=_pump, args=pair, daemon=True)
        for pair in ((inner, theirs), (theirs, inner))
    ]
    for pump in pumps:
        pump.start()
    threading.Thread(target=_close_after, args=(pumps, theirs), daemon=True).start()
    return ours


def _pump(source: Any, sink: Any) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_PUMP_BYTES):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _close_after(pumps: list[threading.Thread], end: socket.socket) -> None:
    for pump in pumps:
        pump.join()
    end.close()
