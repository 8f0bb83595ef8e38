"""Store command: `chaoslab store --listen HOST:PORT`, the rendezvous store as a small service."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from typing import Final

from chaoslab.resilience.store import StoreServer, parse_address

BAD_ADDRESS_STATUS: Final = 2
MAX_PORT: Final = 65_535

_ADVICE: Final = {
    errno.EADDRINUSE: "is another store running there? choose another port, or 0 for a free one",
    errno.EADDRNOTAVAIL: "no interface of this machine has that address; 0.0.0.0 means all",
    errno.EACCES: "ports below 1024 need root; choose a higher one",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--listen",
        required=True,
        metavar="HOST:PORT",
        help="where to listen, an IPv6 host in square brackets; port 0 lets the system choose",
    )
    parser.add_argument(
        "--events", action="store_true", help="tell the load once a second in CHAOSLAB_EVENTS"
    )


def run(listen: str, *, events: bool = False) -> int:
    """Serve until SIGTERM or SIGINT; give the exit status.

    It prints one line, `listening on HOST:PORT`, once clients can connect. Status 2, with the
    reason, when it cannot listen there.
    """
    try:
        server = _server(listen, events=events)
    except ValueError as error:
        sys.stderr.write(f"chaoslab store --listen {listen}: {error}\n")
        return BAD_ADDRESS_STATUS
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    host, port = server.address
    shown = f"[{host}]" if ":" in host else host
    sys.stdout.write(f"listening on {shown}:{port}\n")
    sys.stdout.flush()
    server.serve()
    return 0


def _server(listen: str, *, events: bool) -> StoreServer:
    """Bind. Raises: ValueError with the likely fix."""
    host, port = parse_address(listen)
    if port > MAX_PORT:
        raise ValueError(f"port {port}: want 0 to {MAX_PORT}")
    try:
        return StoreServer(host, port, events=events)
    except OSError as error:
        number = error.errno or 0
        if number < 0:  # socket.create_server hides that it was a gaierror
            raise ValueError(f"{host}: want an IP address or a name that resolves") from None
        advice = _ADVICE.get(number)
        reason = os.strerror(number).lower()
        raise ValueError(f"{reason}; {advice}" if advice else reason) from None
