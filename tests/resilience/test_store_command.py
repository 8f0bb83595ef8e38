"""`chaoslab store` runs a store until it is told to end, or says why it cannot."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaoslab import cli
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.store import parse_address

REPOSITORY = Path(__file__).resolve().parents[2]
START = "import sys; from chaoslab.cli import main; sys.exit(main())"


class Service:
    """The command in a process of its own."""

    def __init__(self, listen: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, "store", "--listen", listen],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()

    def client(self) -> StoreClient:
        return StoreClient(*parse_address(self.line.split()[-1]), timeout_s=5)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Send a signal; give the status and what was still printed."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out, err


@pytest.fixture
def service() -> Iterator[Service]:
    """Run the command on a port that the system chooses."""
    running = Service("127.0.0.1:0")
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_ends_when_told(service: Service, number: int) -> None:
    """One line with the chosen port, a store that works there, and status 0 without a word."""
    assert re.fullmatch(r"listening on 127\.0\.0\.1:[1-9]\d*\n", service.line)
    client = service.client()
    client.set("a", b"1")
    assert client.get("a") == b"1"
    client.close()
    assert service.end(number) == (0, "", "")


def test_it_ends_although_clients_are_waiting(service: Service) -> None:
    """An open connection with a request in it does not hold it up."""
    with socket.create_connection(parse_address(service.line.split()[-1]), timeout=5) as sock:
        sock.sendall(b"\0\0\0\x09")
        assert service.end()[0] == 0


@pytest.mark.parametrize("host", ["[::1]", "127.0.0.1"])
def test_the_line_is_an_address_that_can_be_given_on(host: str) -> None:
    """Also for IPv6, in square brackets."""
    if host == "[::1]" and not Path("/proc/net/if_inet6").exists():
        host = "127.0.0.1"
    running = Service(f"{host}:0")
    assert running.line.startswith(f"listening on {host}:")
    client = running.client()
    assert client.add("n", 1) == 1
    client.close()
    assert running.end()[0] == 0


def test_a_port_that_is_taken_is_told(service: Service, capfd: pytest.CaptureFixture[str]) -> None:
    """The message names the address and what to do; the first store goes on."""
    address = service.line.split()[-1]
    assert cli.main(["store", "--listen", address]) == 2
    told = capfd.readouterr()
    assert f"--listen {address}: address already in use; is another store running" in told.err
    assert told.out == ""
    client = service.client()
    assert client.add("n", 1) == 1
    client.close()


@pytest.mark.parametrize(
    ("listen", "message"),
    [
        ("nonsense", "want HOST:PORT"),
        ("127.0.0.1:x", "want HOST:PORT"),
        ("127.0.0.1:-1", "want HOST:PORT"),
        ("127.0.0.1:70000", "port 70000: want 0 to 65535"),
        ("192.0.2.1:0", "no interface of this machine has that address"),
        ("no-such-host.invalid:0", "want an IP address or a name that resolves"),
    ],
)
def test_an_address_that_cannot_be_is_told(
    listen: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, one line, and nothing on the standard output."""
    assert cli.main(["store", "--listen", listen]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert message in told.err


def test_an_address_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    """A store that anybody can reach is never started by omission."""
    with pytest.raises(SystemExit, match="2"):
        cli.main(["store"])
    assert "--listen" in capsys.readouterr().err


def test_the_command_does_not_import_torch() -> None:
    """It starts at once, also where torch takes seconds."""
    code = (
        "import sys; from chaoslab import cli; "
        "status = cli.main(['store', '--listen', 'nonsense']); "
        "print(status, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert told.stdout.split() == ["2", "False", "False"]
