"""The agent's two file descriptors: lines in, lines out, neither of which can block it."""

from __future__ import annotations

import json
import os
from typing import Final

from chaoslab.agent.errors import bad_request

LINE_LIMIT_BYTES: Final = 1 << 20
"""A request with a distribution table of 12288 entries takes 90 kB."""

_READ_BYTES: Final = 1 << 16
_WRITE_BYTES: Final = 4096  # PIPE_BUF: a writable pipe takes it whole, without blocking


class Channel:
    """JSON lines over two file descriptors, with a limit on the length of a line."""

    def __init__(self, stdin_fd: int, stdout_fd: int) -> None:
        self.stdin_fd, self.stdout_fd = stdin_fd, stdout_fd
        self.closed = False
        self._buffer = bytearray()
        self._skipping = False
        self._out = bytearray()

    def read(self) -> list[bytes | None]:
        """Read what is there and return the whole lines; None stands for one that was too long."""
        try:
            data = os.read(self.stdin_fd, _READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self.closed = True
        self._buffer += data
        lines: list[bytes | None] = []
        *whole, rest = self._buffer.split(b"\n")
        for line in whole:
            too_long = self._skipping or len(line) > LINE_LIMIT_BYTES
            lines.append(None if too_long else bytes(line))
            self._skipping = False
        self._buffer = rest
        if len(rest) > LINE_LIMIT_BYTES:
            self._skipping = True
            self._buffer = bytearray()
        return lines

    def write(self, value: dict[str, object]) -> None:
        """Queue one line."""
        self._out += json.dumps(value).encode() + b"\n"

    @property
    def has_output(self) -> bool:
        """Whether lines wait to be written."""
        return bool(self._out)

    def flush_some(self) -> None:
        """Write a piece that cannot block; a reader that has gone closes the channel."""
        try:
            written = os.write(self.stdout_fd, self._out[:_WRITE_BYTES])
            del self._out[:written]
        except BlockingIOError:
            return
        except OSError:
            self.closed = True
            self._out.clear()


def parse_request(line: bytes | None) -> dict[str, object]:
    """Return the request on a line.

    Raises:
        AgentError: too long, no JSON, or no object.
    """
    if line is None:
        raise bad_request(f"a line of over {LINE_LIMIT_BYTES} bytes: want a shorter request")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"{line[:80]!r}: want one JSON object a line; {error}") from error
    if not isinstance(found, dict):
        raise bad_request(f"{line[:80]!r}: want a JSON object")
    return found
