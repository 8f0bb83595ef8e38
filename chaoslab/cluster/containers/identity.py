"""Identity: a name that no other process ever has, by which to find out later if it has ended."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def this_harness() -> str:
    """Name this process among all: by boot, pid namespace, pid, and when it started."""
    return ":".join((_boot_id(), str(_pid_namespace()), str(os.getpid()), _started(os.getpid())))


def is_gone(harness: str) -> bool | None:
    """Tell whether the harness of this name has ended; None where that cannot be known here."""
    boot, _, rest = harness.partition(":")
    namespace, _, rest = rest.partition(":")
    pid, _, started = rest.partition(":")
    if boot != _boot_id() or namespace != str(_pid_namespace()) or not pid.isdigit():
        return None
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's: it lives, whether or not it is the same
        return False
    now = _started(int(pid))
    return now != started if now else None


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return "unknown"


def _pid_namespace() -> int:
    with contextlib.suppress(OSError):
        return Path("/proc/self/ns/pid").stat().st_ino
    return 0


def _started(pid: int) -> str:
    """Give when a process started, in ticks since boot; "ended" for a zombie; empty if hidden.

    Source: proc(5).
    """
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = stat.rpartition(")")[2].split()
        return fields[19] if fields[0] not in ("Z", "X") else "ended"
    return ""
