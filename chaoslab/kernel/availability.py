"""Says whether a way to have netem exists here, by trying it."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TRY_LIMIT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Availability:
    """Whether something works here and why (or, where it does not, what mends it)."""

    available: bool
    reason: str

    def __bool__(self) -> bool:
        """Truth is availability."""
        return self.available


def host_has_netem() -> Availability:
    """Say whether this kernel has sch_netem and lets this user add it in a scratch namespace.

    A child process makes its own network namespace (and, unless root, user namespace), adds a
    netem qdisc to the ``lo`` there and reads it back: the caller's network is never touched.
    """
    script = Path(__file__).with_name("netem_probe.py")
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(script)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TRY_LIMIT_S,
            check=False,
            cwd="/",
            env={**os.environ, "PYTHONDEVMODE": "0"},
        )
    except subprocess.TimeoutExpired:
        return Availability(
            available=False,
            reason=f"adding a netem qdisc in a scratch namespace took over {TRY_LIMIT_S:g} s",
        )
    try:
        found = json.loads(done.stdout)
        return Availability(available=found["available"], reason=found["reason"])
    except (ValueError, KeyError):
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return Availability(
            available=False,
            reason=f"the netem probe ended with status {done.returncode}: {last or 'no output'}",
        )
