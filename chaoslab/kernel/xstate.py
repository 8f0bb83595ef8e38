"""Bridges a gap between user-mode Linux before 6.13 and CPUs with AMX: see ``xstate.c``."""

import ctypes
from pathlib import Path

from chaoslab.kernel.errors import KernelError
from chaoslab.kernel.prefault import find_compiler

SOURCE = Path(__file__).resolve().with_name("xstate.c")
LIBRARY = "xstate.so"
KNOWN_BYTES = 2696
"""What linux.uml 6.1 keeps of a process's registers. Source: HOST_FP_SIZE, user-offsets.c."""
FRAME_BYTES = 1024
"""What a signal frame holds beside those registers, at most (944 measured on Linux 6.18)."""
AT_MINSIGSTKSZ = 51
"""The size of the largest signal frame. Source: asm/auxvec.h, Linux 5.14."""


def is_needed() -> bool:
    """Say whether this machine's processes have more register state than linux.uml 6.1 keeps."""
    frame_bytes = ctypes.CDLL(None).getauxval(AT_MINSIGSTKSZ)
    return bool(frame_bytes > KNOWN_BYTES + FRAME_BYTES)


def build_argv(folder: Path) -> list[str]:
    """Give the command that compiles the bridge in *folder*.

    Raises:
        KernelError: there is no compiler; the text says how to get one.
    """
    compiler = find_compiler()
    if compiler is None:
        raise KernelError(
            "this CPU has AMX, whose registers linux.uml before 6.13 cannot keep without a small "
            "bridge, and there is no C compiler (cc) to make it: apt-get install gcc"
        )
    target = str(folder / LIBRARY)
    return [compiler, "-O2", "-shared", "-fPIC", "-nostdlib", "-o", target, str(SOURCE)]
