"""Store: a small rendezvous store in a process of its own. Stdlib only, never imports torch.

Run it with `python -m chaoslab.resilience.store --listen HOST:PORT`; it prints one line,
`listening HOST:PORT`, when ready. Port 0 lets the system choose. It keeps everything in
memory and ends on SIGTERM. It has no access control: let only the job's network reach it.
"""

from __future__ import annotations

import argparse
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Final

from chaoslab import probe
from chaoslab.resilience import frames
from chaoslab.resilience.errors import StoreError
from chaoslab.resilience.table import OK, REFUSED, TIMEOUT, Table

MAX_CONNECTIONS: Final = 4096
OTHER_DESCRIPTORS: Final = 32
"""What the process has open beside its connections, generously."""

MAX_WAIT_S: Final = 600.0
READ_BYTES: Final = 256 * 1024
LOAD_EVENT_EVERY_S: Final = 1.0


class _Connection:
    """One client: what it sent so far, what it has yet to receive, what it waits for."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.received = bytearray()
        self.unsent = b""
        self.wanted = selectors.EVENT_READ
        self.used_s = time.monotonic()
        self.waits_until_s: float | None = None
        self.waits_for: tuple[bytes, Sequence[bytes]] = (b"", ())


class StoreServer:
    """The store's server: one thread, one selector, bounded in connections and memory.

    host, port: where to listen. events: emit `store_load` (requests, connections opened, keys)
    once a second while there is traffic.

    Raises this process's limit of open files as far as it may: a rank takes three connections.
    """

    def __init__(self, host: str, port: int, *, events: bool = False) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=512)
        self._listener.setblocking(False)  # noqa: FBT003
        self.address = (host, int(self._listener.getsockname()[1]))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._stopper, stopping = socket.socketpair()
        self._selector.register(stopping, selectors.EVENT_READ)
        self._most_connections = _connections_allowed()
        self._connections: set[_Connection] = set()
        self._waiting: set[_Connection] = set()
        self._table = Table()
        self._stopped = False
        self._events = events
        self._load = {"requests": 0, "opened": 0}
        self._load_due_s = time.monotonic() + LOAD_EVENT_EVERY_S

    def stop(self) -> None:
        """Ask `serve` to return; safe in a signal handler."""
        self._stopped = True
        self._stopper.send(b"x")  # a select that a signal interrupts is resumed by Python

    def serve(self) -> None:
        """Answer requests until `stop`."""
        while not self._stopped:
            for key, _ in self._selector.select(self._pause_s()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data in self._connections:  # not dropped a moment ago
                    self._attend(key.data)
            self._expire(time.monotonic())
        for connection in list(self._connections):
            self._drop(connection)
        self._selector.close()
        self._listener.close()

    def _pause_s(self) -> float:
        """Give the time until the next waiting client's limit; a second at most."""
        due_s = min((c.waits_until_s or 0.0 for c in self._waiting), default=float("inf"))
        return max(0.0, min(1.0, due_s - time.monotonic()))

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # gone again, or out of descriptors: those who wait are still served
            return
        if len(self._connections) >= self._most_connections:
            self._drop(min(self._connections - self._waiting, key=lambda c: c.used_s, default=None))
        if len(self._connections) >= self._most_connections:
            sock.close()
            return
        self._load["opened"] += 1
        _configure(sock)
        connection = _Connection(sock)
        self._connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _attend(self, connection: _Connection) -> None:
        """Send what is left over, else receive and answer; a broken connection is dropped."""
        try:
            if connection.unsent:
                self._send(connection, b"")
                return
            data = connection.socket.recv(READ_BYTES)
            if not data:
                self._drop(connection)
                return
            connection.used_s = time.monotonic()
            connection.received += data
            if len(connection.received) > frames.MAX_FRAME_BYTES + READ_BYTES:
                self._drop(connection)  # sends on while it is waiting for an answer
                return
            self._take_frame(connection)
        except BlockingIOError:
            return
        except (OSError, StoreError):
            self._drop(connection)

    def _take_frame(self, connection: _Connection) -> None:
        """Answer the first whole frame; one request at a time, so later bytes wait."""
        received, header = connection.received, frames.LENGTH.size
        if connection.waits_until_s is not None or len(received) < header:
            return
        size = frames.body_bytes(bytes(received[:header]))
        if len(received) < header + size:
            return
        body = bytes(received[header : header + size])
        del received[: header + size]
        self._load["requests"] += 1
        try:
            self._answer(connection, frames.unpack(body))
        except StoreError as error:
            self._send(connection, frames.pack([REFUSED, str(error).encode()]))

    def _answer(self, connection: _Connection, request: list[bytes]) -> None:
        if len(request) < 2:  # noqa: PLR2004 - the two below
            raise StoreError(f"request of {len(request)} fields: want a name and an operation")
        name, operation, *arguments = request
        if operation in (b"wait", b"wait_change"):
            self._wait(connection, operation, arguments)
            return
        answer = self._table.once(name, operation, arguments)
        self._send(connection, frames.pack([OK, *answer]))
        self._wake()

    def _wait(self, connection: _Connection, operation: bytes, arguments: list[bytes]) -> None:
        """Note what the client waits for: [limit_s, key...] or [limit_s, key, known, other...].

        The second ends when the key's value is not the known one, or when all others have one.
        """
        try:
            limit_s = float(arguments[0])
        except (ValueError, IndexError):
            limit_s = -1.0
        if not 0 <= limit_s <= MAX_WAIT_S:
            raise StoreError(f"{operation.decode()}: want a limit of 0 to {MAX_WAIT_S} s first")
        if operation == b"wait_change" and len(arguments) < 3:  # noqa: PLR2004 - see docstring
            raise StoreError("wait_change: want a limit, a key and the value that is known")
        connection.waits_for = (operation, arguments[1:])
        connection.waits_until_s = time.monotonic() + limit_s
        self._waiting.add(connection)
        self._wake()

    def _wake(self) -> None:
        """Answer every waiting client whose condition now holds."""
        for connection in [c for c in self._waiting if self._holds(*c.waits_for)]:
            self._release(connection, OK)

    def _holds(self, operation: bytes, arguments: Sequence[bytes]) -> bool:
        if operation == b"wait":
            return self._table.has_all(arguments)
        key, known, *others = arguments
        changed = (self._table.get(key) or b"") != known
        return changed or (bool(others) and self._table.has_all(others))

    def _expire(self, now_s: float) -> None:
        for connection in [c for c in self._waiting if (c.waits_until_s or 0.0) <= now_s]:
            self._release(connection, TIMEOUT)
        if self._events and now_s >= self._load_due_s:
            if any(self._load.values()):
                probe.emit("store_load", **self._load, connections=len(self._connections))
            self._load = {"requests": 0, "opened": 0}
            self._load_due_s = now_s + LOAD_EVENT_EVERY_S

    def _release(self, connection: _Connection, status: bytes) -> None:
        self._waiting.discard(connection)
        connection.waits_until_s = None
        answer = [status]
        if status == OK and connection.waits_for[0] == b"wait_change":
            answer.append(self._table.get(connection.waits_for[1][0]) or b"")
        try:
            self._send(connection, frames.pack(answer))
        except OSError:
            self._drop(connection)

    def _send(self, connection: _Connection, data: bytes) -> None:
        """Send what the socket takes; the rest goes when it can, before anything is read."""
        connection.unsent += data
        try:
            sent = connection.socket.send(connection.unsent)
        except BlockingIOError:
            sent = 0
        connection.unsent = connection.unsent[sent:]
        wanted = selectors.EVENT_WRITE if connection.unsent else selectors.EVENT_READ
        if wanted != connection.wanted:
            connection.wanted = wanted
            self._selector.modify(connection.socket, wanted, connection)

    def _drop(self, connection: _Connection | None) -> None:
        if connection is None or connection not in self._connections:
            return
        self._connections.discard(connection)
        self._waiting.discard(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()


def _connections_allowed() -> int:
    """Raise the limit of open files as far as needed and allowed; give the connections it admits.

    Beyond it `accept` would fail again and again, and nobody new could come in.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    unlimited = soft == resource.RLIM_INFINITY
    return MAX_CONNECTIONS if unlimited else max(min(MAX_CONNECTIONS, soft - OTHER_DESCRIPTORS), 1)


def _configure(sock: socket.socket) -> None:
    """Answer at once, and find out within about 40 s that a client's host is gone."""
    sock.setblocking(False)  # noqa: FBT003
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 5)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def parse_address(text: str) -> tuple[str, int]:
    """Read HOST:PORT (an IPv6 host in square brackets). Raises: ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"address {text!r}: want HOST:PORT, for example 10.0.0.1:29500")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - as documented: all interfaces


def main() -> int:
    """Run the store from the command line."""
    parser = argparse.ArgumentParser(prog="chaoslab.resilience.store", description=__doc__)
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--events", action="store_true", help="tell the load in CHAOSLAB_EVENTS")
    options = parser.parse_args()
    try:
        server = StoreServer(*parse_address(options.listen), events=options.events)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"--listen {options.listen}: {error}; is the port in use?\n")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    signal.signal(signal.SIGINT, lambda *_: server.stop())
    sys.stdout.write(f"listening {server.address[0]}:{server.address[1]}\n")
    sys.stdout.flush()
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
