"""An engine for these tests: the one that is there, or one of their own in namespaces of its own.

Its own network namespace, so that no bridge and no firewall rule of it is ever seen by this
machine; its own pid namespace, so that nothing of it outlives it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker_lab import everything

from chaoslab import kernel_choice
from chaoslab.cluster.containers.engine import Engine
from chaoslab.errors import NotAvailable
from chaoslab.runner import SESSION

START_LIMIT_S = 60.0
OWN_NAMESPACES = [
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
]
PREPARE = """
grep -q ' cgroup ' /proc/self/mounts || {
    mount -t tmpfs cgroup /sys/fs/cgroup
    for name in $(awk '!/^#/ && $4 { print $1 }' /proc/cgroups); do
        mkdir "/sys/fs/cgroup/$name"
        mount -t cgroup -o "$name" cgroup "/sys/fs/cgroup/$name" || rmdir "/sys/fs/cgroup/$name"
    done
}
exec dockerd "$@"
"""
"""Where no init system has mounted the control groups, as in user-mode Linux."""

MODULES = ["bridge", "br_netfilter", "veth", "overlay"]


class OwnEngine:
    """A Docker engine that these tests have started."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.address = f"unix://{root}/docker.sock"
        self._cgroup = f"chaoslab-tests-{os.getpid()}"
        self._log = (root / "dockerd.log").open("wb")
        self._process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = [f"--{name}={self.root / name}" for name in ("data-root", "exec-root", "pidfile")]
        options += [f"--host={self.address}", "--bridge=none", f"--cgroup-parent={self._cgroup}"]
        if kernel_choice.in_guest():
            # One that this kernel lacks, the engine does without, or says so.
            subprocess.run(["modprobe", "-qa", *MODULES], check=False)
            options.append("--iptables=false")
        self._process = subprocess.Popen(
            [*OWN_NAMESPACES, "sh", "-c", PREPARE, "dockerd", *options],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        deadline_s = time.monotonic() + START_LIMIT_S
        while not answers(self.address):
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.close()
                raise NotAvailable(f"dockerd does not start here: {self.said}")
            time.sleep(0.1)

    def kill(self) -> None:
        """End it and every container of it, as a crash of its machine would."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(30)

    def close(self) -> None:
        """End it, and remove what it has kept."""
        self.kill()
        self._log.close()
        self.said = (self.root / "dockerd.log").read_text(errors="replace")[-1000:]
        deadline_s = time.monotonic() + START_LIMIT_S
        while not self._has_removed_groups():
            assert time.monotonic() < deadline_s, f"control groups {self._cgroup} are still in use"
            time.sleep(0.05)
        shutil.rmtree(self.root, ignore_errors=True)

    def _has_removed_groups(self) -> bool:
        """Remove its control groups; tell whether none is left: the kernel frees them later."""
        try:
            for top in Path("/sys/fs/cgroup").glob(f"*/{self._cgroup}"):
                for group in sorted((p for p in top.rglob("*") if p.is_dir()), reverse=True):
                    group.rmdir()
                top.rmdir()
        except OSError:
            return False
        return True


def answers(address: str | None) -> bool:
    """Tell whether an engine answers there (None: where one usually is)."""
    before = os.environ.get("DOCKER_HOST")
    if address is not None:
        os.environ["DOCKER_HOST"] = address
    chosen = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    try:
        # The SDK leaves its socket open when nobody answers (docker 7.2).
        if chosen.startswith("unix://"):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(chosen.removeprefix("unix://"))
        Engine().close()
    except (NotAvailable, OSError):
        return False
    finally:
        restore(before)
    return True


def restore(address: str | None) -> None:
    """Set or unset DOCKER_HOST."""
    if address is None:
        os.environ.pop("DOCKER_HOST", None)
    else:
        os.environ["DOCKER_HOST"] = address


@pytest.fixture(scope="session")
def engine_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | None]:
    """Give where an engine answers (None: where one usually is); skip where none can be had."""
    if answers(None):
        yield os.environ.get("DOCKER_HOST")
        return
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip(
            "NotAvailable: no Docker engine answers; to start one here: want root and docker.io"
        )
    root = tmp_path_factory.mktemp("engine")
    if kernel_choice.in_guest():  # its /tmp is the host's, on which no overlay can be laid
        root = Path(tempfile.mkdtemp(prefix="engine-", dir="/run"))
    try:
        own = OwnEngine(root)
    except NotAvailable as problem:
        pytest.skip(f"NotAvailable: {problem}")
    try:
        yield own.address
    finally:
        own.close()


@pytest.fixture
def engine(engine_address: str | None) -> Iterator[Engine]:
    """Give a connection to the engine, which `run` uses as well; nothing of a run may be left."""
    before = os.environ.get("DOCKER_HOST")
    restore(engine_address)
    try:
        with contextlib.closing(Engine()) as connected:
            yield connected
            left = everything(connected)
        assert left == []
    finally:
        SESSION.close()  # its connection is to this engine
        restore(before)
