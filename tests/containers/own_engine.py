"""An engine for these tests: the one that is there, or one of their own in namespaces of its own.

Its own network namespace, so that no bridge and no firewall rule of it is ever seen by this
machine; its own pid namespace, so that nothing of it outlives it.
"""

from __future__ import annotations

import concurrent.futures
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
from typing import NoReturn

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
[ -z "$ENGINE_DISK" ] || mount -t tmpfs -o "size=$ENGINE_DISK" engine "$ENGINE_DATA"
exec dockerd "$@"
"""
"""Where no init system has mounted the control groups, as in user-mode Linux."""

MODULES = ["bridge", "br_netfilter", "veth", "overlay"]


class OwnEngine:
    """A Docker engine that these tests have started."""

    def __init__(self, root: Path, *, disk: str = "") -> None:
        """Start one that keeps its files below root; disk: the size that it has for them."""
        self.root = root
        data = root / "data-root"
        data.mkdir(parents=True)
        self._environment = os.environ | {"ENGINE_DISK": disk, "ENGINE_DATA": str(data)}
        self.address = f"unix://{root}/docker.sock"
        self._cgroup = f"chaoslab-tests-{os.getpid()}"
        self._log = (root / "dockerd.log").open("wb")
        self._process: subprocess.Popen[bytes]
        # Its parent is a thread of its own: PDEATHSIG comes when the thread that forked it ends.
        self._parent = concurrent.futures.ThreadPoolExecutor(max_workers=1)
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = [f"--{name}={self.root / name}" for name in ("data-root", "exec-root", "pidfile")]
        options += [f"--host={self.address}", "--bridge=none", f"--cgroup-parent={self._cgroup}"]
        if kernel_choice.in_guest():
            # One that this kernel lacks, the engine does without, or says so.
            subprocess.run(["modprobe", "-qa", *MODULES], check=False)
            options.append("--iptables=false")
        # As after a crash of the machine, where it lies in memory: a number in one of its files may
        # be taken by another process now, for which it would wait.
        shutil.rmtree(self.root / "exec-root", ignore_errors=True)
        (self.root / "pidfile").unlink(missing_ok=True)
        self._process = self._parent.submit(
            subprocess.Popen,
            [*OWN_NAMESPACES, "sh", "-c", PREPARE, "dockerd", *options],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=self._environment,
            start_new_session=True,
        ).result()
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

    def signal(self, number: int) -> None:
        """Signal the engine's own process, found by the file that it keeps its number in."""
        inside = int((self.root / "pidfile").read_text())
        for status in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):
                lines = dict(
                    line.split(":", 1) for line in status.read_text().splitlines() if ":" in line
                )
                if lines["Name"].strip() == "dockerd" and lines["NSpid"].split()[-1] == str(inside):
                    command = Path(status.parent / "cmdline").read_bytes()
                    if str(self.root).encode() in command:
                        os.kill(int(status.parent.name), number)
                        return
        raise AssertionError(f"no dockerd with pid {inside} in its namespace")

    def close(self) -> None:
        """End it, and remove what it has kept."""
        self.kill()
        self._parent.shutdown()
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


def why_no_own_engine() -> str:
    """Say why no engine can be started here; empty where one can be."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        return "NotAvailable: to start an engine here: want root and docker.io"
    return ""


def skip_or_fail(reason: str) -> NoReturn:
    """Skip; where an engine is demanded, as in CI, fail."""
    if os.environ.get("CHAOSLAB_DEMAND_ENGINE"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextlib.contextmanager
def started(**options: str) -> Iterator[OwnEngine]:
    """Start an engine; end it at the end."""
    if reason := why_no_own_engine():
        skip_or_fail(reason)
    # Short, since the engine makes sockets in it. In the guest not in /tmp, which is the host's: no
    # overlay can be laid on that.
    where = "/run" if kernel_choice.in_guest() else None
    root = Path(tempfile.mkdtemp(prefix="engine-", dir=where))
    try:
        own = OwnEngine(root, **options)
    except NotAvailable as problem:
        skip_or_fail(f"NotAvailable: {problem}")
    try:
        yield own
    finally:
        own.close()


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Engine]:
    """Connect to an engine, which `run` uses as well then; nothing of a run may be left."""
    before = os.environ.get("DOCKER_HOST")
    restore(address)
    SESSION.close()  # its connection may be to another engine
    try:
        with contextlib.closing(Engine()) as engine:
            yield engine
            left = everything(engine)
        assert left == []
    finally:
        SESSION.close()
        restore(before)
