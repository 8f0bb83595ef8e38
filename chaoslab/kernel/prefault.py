"""Builds the library that maps memory in batches inside a guest, where the host can.

``import torch`` in a guest took 5.8 to 6.6 s with it and 8.7 to 10.2 s without (four boots each, in
turn, 2 busy CPUs): three quarters of its 47,000 page faults are fresh memory. See ``prefault.c``.
"""

import fcntl
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

COMPILERS = ("cc", "gcc", "clang")
BUILD_LIMIT_S = 30.0
SWITCH_VARIABLE = "CHAOSLAB_UML_PREFAULT"
"""Set to 0 to do without, for instance for programs that bring a malloc of their own."""
MALLOC_SETTINGS = {
    "MALLOC_TOP_PAD_": str(1 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}
"""Grow the heap by 1 MiB at a time, take blocks up to 32 MiB (glibc's upper limit) from it, and
keep it. Source: mallopt(3)."""


def find_compiler() -> str | None:
    """Give the path of a C compiler, or None."""
    return next(filter(None, map(shutil.which, COMPILERS)), None)


@functools.cache
def library() -> bytes | None:
    """Give the shared library, or None where it cannot be built or does not work."""
    compiler = find_compiler()
    if compiler is None:
        return None
    with (
        tempfile.TemporaryDirectory(prefix="chaoslab-prefault-") as folder,
        Path(folder, "lock").open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # by which a sweep knows that it lives
        built = Path(folder, "prefault.so")
        source = Path(__file__).with_name("prefault.c")
        build = [compiler, "-O2", "-fno-builtin", "-shared", "-fPIC", "-o", str(built), str(source)]
        # A C library without these names builds it, but then no program starts: so try one.
        trial = ["env", f"LD_PRELOAD={built}", "sh", "-c", "exec env true"]
        try:
            for command in (build, trial):
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=BUILD_LIMIT_S,
                    check=False,
                )
                if done.returncode != 0 or done.stderr:
                    return None
        except (OSError, subprocess.TimeoutExpired):
            return None
        return built.read_bytes()
