"""Runs inside a guest and prints, as JSON, what the tests of the machine want to know."""

import contextlib
import ctypes
import fcntl
import json
import os
import pty
import resource
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from chaoslab.kernel import host_has_netem, user_mode_linux

NOBODY = 65534


def as_nobody(action: Any) -> bool:
    """Say whether *action* works in a child that is not root."""
    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(Exception):
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            status = 0 if action() else 1
        os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


def ping() -> bool:
    """Say whether an unprivileged ICMP echo to the loopback address is answered."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as link:
        link.settimeout(1.0)
        link.sendto(struct.pack("!BBHHH", 8, 0, 0, 0, 1), ("127.0.0.1", 0))
        try:
            return bool(link.recv(100))
        except TimeoutError:
            return False


def unshare_network() -> bool:
    """Say whether a user and network namespace can be made."""
    return ctypes.CDLL(None).unshare(0x10000000 | 0x40000000) == 0


def device(path: str) -> list[int]:
    """Give the numbers of a character device."""
    number = Path(path).stat().st_rdev
    return [os.major(number), os.minor(number)]


def pseudo_terminal() -> bool:
    """Say whether a pseudo terminal carries bytes."""
    ours, theirs = pty.openpty()
    os.write(theirs, b"x")
    return os.read(ours, 1) == b"x" and os.ttyname(theirs).startswith("/dev/pts/")


def loss() -> dict[str, bool]:
    """Ping with and without a netem that drops everything."""
    before = ping()
    subprocess.run(["tc", "qdisc", "add", "dev", "lo", "root", "netem", "loss", "100%"], check=True)
    during = ping()
    subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], check=True)
    return {"before": before, "during": during, "after": ping()}


def clocks() -> dict[str, float]:
    """Let 2 s of this machine pass, and note what the host's clock showed meanwhile."""
    began_s, wall_s = time.monotonic(), time.time()
    time.sleep(2)
    return {"monotonic_s": time.monotonic() - began_s, "wall_s": time.time(), "from_s": wall_s}


def lo_is_up() -> bool:
    """Say whether lo has the flag IFF_UP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        answer = fcntl.ioctl(link, 0x8913, struct.pack("16sH14x", b"lo", 0))
    return bool(struct.unpack("16sH14x", answer)[1] & 1)


def write_files() -> None:
    """Leave files in the working folder: plain, fsynced, and one never closed."""
    Path("plain.bin").write_bytes(bytes(range(256)) * 16)
    with Path("synced.bin").open("wb") as file:
        file.writelines(os.urandom(1) * (1 << 20) for _ in range(32))
        file.flush()
        os.fsync(file.fileno())
    os.write(os.open("open.bin", os.O_CREAT | os.O_WRONLY), b"never closed")
    Path("plain.bin").replace("renamed.bin")


def main() -> None:
    """Print everything."""
    write_files()
    netem = host_has_netem()
    print(
        json.dumps(
            {
                "uid": os.getuid(),
                "cwd": str(Path.cwd()),
                "argv": [os.fsencode(word).hex() for word in sys.argv[1:]],
                "odd": os.environb[b"ODD"].hex(),
                "environ": dict(os.environ) | {"ODD": ""},
                "netem": [netem.available, netem.reason],
                "nested": user_mode_linux().reason,
                "loss": loss(),
                "ping_nobody": as_nobody(ping),
                "namespace_nobody": as_nobody(unshare_network),
                "lo": lo_is_up(),
                "null": device("/dev/null"),
                "pty": pseudo_terminal(),
                "fd": Path("/dev/fd/0").exists(),
                "shm": os.statvfs("/dev/shm").f_bavail > 0 and os.access("/dev/shm", os.W_OK),
                "tty": os.isatty(1),
                "nofile": resource.getrlimit(resource.RLIMIT_NOFILE),
                "umask": os.umask(0),
                "random": len(os.getrandom(32)),
                "host": socket.gethostname(),
                "links": sorted(name for _, name in socket.if_nameindex()),
                "clocks": clocks(),
            }
        )
    )


if __name__ == "__main__":
    main()
