"""Process 1 of the guest: prepares the machine, runs one command, relays its streams, powers off.

Runs as a script inside the guest (``python -I -S guest_init.py``), standard library only, and
keeps its imports few: a page fault costs 100 to 180 us in user-mode Linux.

Lines to the host (see ``launch.py`` for the other ends) are serial lines in raw mode: ttyS0, 1 and
2 carry the command's standard output, error and input, ttyS3 one JSON value a line each way.
Reports: ``started``, ``fed`` (bytes of input taken), ``failed`` (at what, text), ``exited``
(status, out_of_memory). Requests: ``signal`` (number), ``halt`` (gently or now). What to run
stands in a file, since a serial line of the guest is no place for more than 4 KB at a time.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import termios
import time

CHUNK_BYTES = 1 << 16
GRACE_S = 1.0
"""Time between the polite signal and SIGKILL when the caller has gone."""
RUN_DIR = "/run/chaoslab"
PRELOAD = f"{RUN_DIR}/prefault.so"
RB_POWER_OFF = 0x4321FEDC
"""Source: linux/reboot.h, LINUX_REBOOT_CMD_POWER_OFF."""
MS_BIND = 0x1000
"""Source: linux/mount.h."""

LIBC = ctypes.CDLL(None, use_errno=True)
TYPE_CHECKING = False
if TYPE_CHECKING:  # the real constant costs an import of typing
    from typing import Any

    Report = dict[str, Any]


def mount(kind: str, target: str, *, source: str = "none", flags: int = 0, data: str = "") -> None:
    """Mount *kind* on *target*, which is created where that is possible.

    Raises:
        OSError: the kernel refused.
    """
    os.makedirs(target, exist_ok=True)  # noqa: PTH103  pathlib costs 0.1 s of imports here
    done = LIBC.mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()
    )
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mounting {kind} on {target}: {os.strerror(number)}")


def write_text(path: str, text: str) -> None:
    """Write *text* to a (proc) file."""
    with open(path, "w") as file:  # noqa: PTH123  see mount()
        file.write(text)


def mount_all() -> None:
    """Mount what a distribution's init would have mounted."""
    mount("proc", "/proc")
    mount("sysfs", "/sys")
    mount("devtmpfs", "/dev")
    mount("devpts", "/dev/pts", data="ptmxmode=0666,mode=0620")
    mount("tmpfs", "/dev/shm", data="mode=1777")  # noqa: S108  the guest's own
    mount("tmpfs", "/run", data="mode=0755")
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        with contextlib.suppress(FileExistsError):
            os.symlink(f"/proc/self/{target}", f"/dev/{name}")  # noqa: PTH211
    for folder, mode in ((RUN_DIR, 0o755), (f"{RUN_DIR}/tmp", 0o1777), ("/run/netns", 0o755)):  # noqa: S108  the guest's own
        os.mkdir(folder)  # noqa: PTH102
        os.chmod(folder, mode)  # noqa: PTH101  the umask took bits off


def serve_modules(modules: str) -> None:
    """Let the kernel load its modules by itself, from the folder *modules*."""
    os.makedirs(f"{RUN_DIR}/root/lib")  # noqa: PTH103
    os.symlink(modules, f"{RUN_DIR}/root/lib/modules")  # noqa: PTH211
    script = f"{RUN_DIR}/modprobe"
    write_text(
        script,
        f'#!/bin/sh\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\nexec modprobe -d {RUN_DIR}/root "$@"\n',
    )
    os.chmod(script, 0o755)  # noqa: PTH101, S103  a program
    write_text("/proc/sys/kernel/modprobe", script)
    if os.path.isdir("/lib/modules"):  # noqa: PTH112  so that plain `modprobe NAME` works too
        mount("none", "/lib/modules", source=modules, flags=MS_BIND)


def tune() -> None:
    """Bring lo up and allow what a developer's machine allows."""
    for path, text in (
        ("net/ipv4/ping_group_range", "0 2147483647"),
        ("kernel/unprivileged_userns_clone", "1"),  # Debian's kernels only
        ("vm/overcommit_memory", "1"),
    ):
        with contextlib.suppress(FileNotFoundError):
            write_text(f"/proc/sys/{path}", text)
    socket.sethostname("chaoslab-uml")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14x", b"lo", 0x1 | 0x40)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(control, 0x8914, request)  # SIOCSIFFLAGS
    write_text("/proc/self/oom_score_adj", "-1000")


def open_line(index: int) -> int:
    """Open serial line *index* in raw mode: no echo, no newline translation, no signals."""
    fd = os.open(f"/dev/ttyS{index}", os.O_RDWR | os.O_NOCTTY)
    state = termios.tcgetattr(fd)
    state[0] = state[1] = state[3] = 0
    state[2] = termios.CS8 | termios.CREAD | termios.CLOCAL
    state[6][termios.VMIN], state[6][termios.VTIME] = 1, 0
    termios.tcsetattr(fd, termios.TCSANOW, state)
    return fd


def write_all(fd: int, data: bytes) -> None:
    """Write every byte of *data*."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Control:
    """The control line: JSON values, one a line."""

    def __init__(self) -> None:
        self.fd = open_line(3)
        self._buffer = b""
        self.closed = False

    def report(self, **fields: object) -> None:
        """Tell the host."""
        write_all(self.fd, json.dumps(fields).encode() + b"\n")

    def waiting(self) -> bool:
        """Say whether a request can be read without waiting."""
        return bool(select.select([self.fd], [], [], 0)[0])

    def requests(self) -> list[Report]:
        """Wait for bytes and give the requests that are complete; a lost host is ``halt``."""
        try:
            data = os.read(self.fd, CHUNK_BYTES)
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return [{"halt": "gently"}]
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines if line]


def start(order: Report, files: tuple[int, int, int]) -> int:
    """Fork and execute the ordered command as the leader of a new session; give its pid.

    Raises:
        OSError: it could not be executed.
    """
    error_end, child_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become(order, files)
        except BaseException as failure:  # noqa: BLE001  the child must never return
            number = getattr(failure, "errno", None) or errno.EINVAL
            os.write(child_end, f"{number} {os.strerror(number)}".encode())
        os._exit(127)
    os.close(child_end)
    text = os.read(error_end, 4096).decode()
    os.close(error_end)
    if text:
        os.waitpid(pid, 0)
        number, _, words = text.partition(" ")
        raise OSError(int(number), words)
    return pid


def become(order: Report, files: tuple[int, int, int]) -> None:
    """Turn this process into the ordered command."""
    os.setsid()
    for target, fd in enumerate(files):
        os.dup2(fd, target)
    write_text("/proc/self/oom_score_adj", "0")
    for name, (soft, hard) in order["limits"].items():
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(getattr(resource, name), (soft, hard))
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.umask(order["umask"])
    os.chdir(raw(order["cwd"]))
    environment = {raw(name): raw(value) for name, value in order["env"].items()}
    if order["preload"]:
        others = environment.get(b"LD_PRELOAD", b"")
        environment[b"LD_PRELOAD"] = b" ".join(filter(None, (PRELOAD.encode(), others)))
    argv = [raw(word) for word in order["argv"]]
    os.execvpe(argv[0], argv, environment)  # noqa: S606  that is the purpose


def raw(text: str) -> bytes:
    """Any byte string travels as text of the same code points."""
    return text.encode("latin-1")


def pump(source: int, line: int, done: int) -> None:
    """Copy *source* to a serial line until its end, then say so on *done*."""
    try:
        while data := os.read(source, CHUNK_BYTES):
            write_all(line, data)
        termios.tcdrain(line)
    finally:
        os.write(done, b".")


def read_exactly(fd: int, size: int) -> bytes:
    """Read *size* bytes, fewer only at the end."""
    data = b""
    while len(data) < size and (more := os.read(fd, size - len(data))):
        data += more
    return data


def feed(line: int, target: int, control: Control) -> None:
    """Unpack frames (length in 4 bytes, data; 0 is the end) from *line* into the pipe *target*.

    Each is acknowledged with its size, so that the line never holds more than one.
    """
    reads = True
    while size := int.from_bytes(read_exactly(line, 4), "big"):
        data = read_exactly(line, size)
        if reads:
            try:
                write_all(target, data)
            except BrokenPipeError:  # the command does not want the rest
                reads = False
        control.report(fed=size)
    os.close(target)


class Guest:
    """The command's life: its streams relayed, its signals delivered, its end reported."""

    def __init__(self, control: Control, order: Report) -> None:
        self.control = control
        self.order = order
        self.pid = 0
        self.status: int | None = None
        self.pumps_left = 0
        self.kill_at_s: float | None = None
        self.done_end, self.done = os.pipe()
        self.wake_end, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def start(self) -> None:
        """Start the command, then the threads that carry its streams."""
        outputs = [os.pipe()] if self.order["merged"] else [os.pipe(), os.pipe()]
        writers = [write for _, write in outputs]
        feed_end = -1
        if self.order["stdin"]:
            in_end, feed_end = os.pipe()
        else:
            in_end = os.open("/dev/null", os.O_RDONLY)
        self.pid = start(self.order, (in_end, writers[0], writers[-1]))
        for fd in (in_end, *writers):
            os.close(fd)
        for index, (read, _) in enumerate(outputs):
            self.pumps_left += 1
            _thread.start_new_thread(pump, (read, open_line(index), self.done))
        if feed_end >= 0:
            _thread.start_new_thread(feed, (open_line(2), feed_end, self.control))

    def obey(self, request: Report) -> None:
        """Carry out one request of the host."""
        if "signal" in request:
            self.signal(request["signal"])
        elif self.kill_at_s is None:
            gently = request["halt"] == "gently"
            if gently:
                self.signal(signal.SIGINT)
            self.kill_at_s = time.monotonic() + (GRACE_S if gently else 0)

    def signal(self, number: int) -> None:
        """Deliver a signal to the command, and Ctrl-C to its whole group as a terminal does."""
        send = os.killpg if number == signal.SIGINT else os.kill
        with contextlib.suppress(ProcessLookupError):
            send(self.pid, number)

    def reap(self) -> None:
        """Collect every child that has ended (process 1 inherits the orphans)."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.pid:
                    self.status = os.waitstatus_to_exitcode(status)
                    kill_all()  # what the command left behind holds its output open

    def attend(self) -> None:
        """Serve until the command has ended and its output has left the guest."""
        poll = select.poll()
        for fd in (self.control.fd, self.done_end, self.wake_end):
            poll.register(fd, select.POLLIN)
        while self.status is None or self.pumps_left:
            if self.kill_at_s is not None and time.monotonic() >= self.kill_at_s:
                kill_all()
                if self.status is not None and self.control.closed:
                    return  # nobody reads the output any more
            for fd, _ in poll.poll(1000 if self.kill_at_s is None else 20):
                self.take(fd)
            if self.control.closed:
                with contextlib.suppress(KeyError):
                    poll.unregister(self.control.fd)
            self.reap()

    def take(self, fd: int) -> None:
        """Take in what has come on one descriptor."""
        if fd == self.control.fd:
            for request in self.control.requests():
                self.obey(request)
        elif fd == self.done_end:
            self.pumps_left -= len(os.read(fd, 64))
        else:
            os.read(fd, 4096)


def kill_all() -> None:
    """SIGKILL to every process but this one."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def killed_for_memory(pid: int) -> str:
    """Give the kernel's own line if it killed *pid* for want of memory, or an empty string."""
    buffer = ctypes.create_string_buffer(1 << 18)
    size = LIBC.klogctl(3, buffer, len(buffer))  # SYSLOG_ACTION_READ_ALL, see syslog(2)
    lines = buffer.raw[: max(0, size)].decode(errors="replace").split("\n")
    return next((line for line in lines if f"Killed process {pid} " in line), "").partition(">")[2]


def serve(control: Control, order: Report) -> None:
    """Run the order, report its end."""
    if order["preload"]:
        with open(PRELOAD, "wb") as file:  # noqa: PTH123  see mount()
            file.write(raw(order["preload"]))
    if control.waiting() and any("halt" in request for request in control.requests()):
        return  # the caller died during the boot
    guest = Guest(control, order)
    try:
        guest.start()
    except OSError as failure:
        control.report(failed="start", text=failure.strerror or str(failure))
        return
    control.report(started=True)
    guest.attend()
    memory = killed_for_memory(guest.pid) if guest.status == -signal.SIGKILL else ""
    os.sync()  # hostfs keeps written pages in the guest until then
    if not control.closed:
        control.report(exited=guest.status, out_of_memory=memory)


def main() -> None:
    """Prepare the machine, serve, power off; a failure is reported first."""
    step = "reading the order"
    control = None
    try:
        with open(sys.argv[2], "rb") as file:  # noqa: PTH123  see mount()
            order = json.loads(file.read())
        step = "preparing the machine"
        mount_all()
        control = Control()
        serve_modules(sys.argv[1])
        tune()
        step = "serving"
        serve(control, order)
    except BaseException as failure:  # noqa: BLE001  process 1 must not die before it has spoken
        sys.excepthook(*sys.exc_info())
        if control is not None:
            control.report(failed=step, text=repr(failure))
    finally:
        if control is not None:
            termios.tcdrain(control.fd)
        os.sync()
        LIBC.reboot(RB_POWER_OFF)


if __name__ == "__main__":
    main()
