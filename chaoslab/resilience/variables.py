"""Variables: the environment variables that torch reads for NCCL and gloo, and how it reads them.

torch 2.13 takes both a current and a deprecated name, prefers the current one in silence, reads
"1.5" and "180s" as whole numbers by dropping what follows, and treats one it cannot read as an
error only once a group is made. So values are read here as strictly as they should be.

Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, FlightRecorder.hpp, ProcessGroupGloo.hpp,
and getCvarInt, getCvarBool in Utils.hpp (torch 2.13; the headers are in the wheel).
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

BLOCKING_WAIT: Final = "TORCH_NCCL_BLOCKING_WAIT"
ERROR_HANDLING: Final = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
HEARTBEAT: Final = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
MONITORING: Final = "TORCH_NCCL_ENABLE_MONITORING"
DUMP: Final = "TORCH_NCCL_DUMP_ON_TIMEOUT"
DUMP_WAIT: Final = "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"
TRACE: Final = "TORCH_FR_BUFFER_SIZE"
OLD_TRACE: Final = "TORCH_NCCL_TRACE_BUFFER_SIZE"
LAZY: Final = "TORCH_GLOO_LAZY_INIT"
GLOO_INTERFACE: Final = "GLOO_SOCKET_IFNAME"
RPC_INTERFACE: Final = "TP_SOCKET_IFNAME"

FLAGS: Final = frozenset(
    {
        BLOCKING_WAIT,
        MONITORING,
        DUMP,
        LAZY,
        "TORCH_NCCL_DESYNC_DEBUG",
        "TORCH_NCCL_ENABLE_TIMING",
        "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
        "TORCH_FR_CPP_STACK",
    }
)
NUMBERS: Final = frozenset({ERROR_HANDLING, HEARTBEAT, DUMP_WAIT, TRACE, OLD_TRACE})

_YES, _NO = frozenset({"y", "yes", "1", "t", "true"}), frozenset({"n", "no", "0", "f", "false"})

_DEPRECATED: Final = {
    "NCCL_BLOCKING_WAIT": BLOCKING_WAIT,
    "NCCL_ASYNC_ERROR_HANDLING": ERROR_HANDLING,
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING": "TORCH_NCCL_ENABLE_TIMING",
    "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
}
_DEPRECATED_BY_TRACE: Final = {
    OLD_TRACE: TRACE,
    "TORCH_NCCL_TRACE_CPP_STACK": "TORCH_FR_CPP_STACK",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "TORCH_FR_DUMP_TEMP_FILE",
}

HEADERS: Final = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d"


@functools.cache
def trace_name() -> str:
    """Give the flight recorder's size under the name that the installed torch reads.

    Its header tells, and not the version: builds differ. Without headers the newest is assumed.
    """
    try:
        text = (HEADERS / "FlightRecorder.hpp").read_text()
    except OSError:
        return TRACE
    return TRACE if TRACE in text else OLD_TRACE


def deprecated() -> Mapping[str, str]:
    """Give each deprecated name with its current one, for the installed torch."""
    return _DEPRECATED | (_DEPRECATED_BY_TRACE if trace_name() == TRACE else {})


def plain(name: str, value: str) -> str:
    """Give a value in one spelling: "1" or "0" for a flag, the digits for a whole number.

    Raises: ValueError for one that torch would refuse, or read as something else.
    """
    if name in FLAGS:
        if value.lower() not in _YES | _NO:
            raise ValueError(f"{name}={value}: want 1 or 0")
        return "1" if value.lower() in _YES else "0"
    if name in NUMBERS:
        if not re.fullmatch(r"-?[0-9]{1,9}", value):
            raise ValueError(
                f"{name}={value}: want a whole number; torch would drop what follows the digits"
            )
        return str(int(value))
    return value


def found() -> dict[str, str]:
    """Give what the environment says under deprecated names, by name."""
    return {old: os.environ[old] for old in deprecated() if old in os.environ}


def mapped() -> dict[str, str]:
    """Give the values of deprecated names under the current ones.

    Raises: ValueError where both names are set and do not mean the same.
    """
    values: dict[str, str] = {}
    for old, value in found().items():
        name = deprecated()[old]
        values[name] = plain(name, value)
        if name in os.environ and plain(name, os.environ[name]) != values[name]:
            raise ValueError(
                f"{name}={os.environ[name]} and {old}={value}: want one of them; "
                f"unset {old}, which is deprecated"
            )
    return values


def read_back(name: str) -> str | None:
    """Read a variable as torch will: from the C library, of which os.environ is a copy."""
    value: bytes | None = _getenv(name.encode())
    return None if value is None else os.fsdecode(value)


_getenv = ctypes.CDLL(None).getenv
_getenv.restype = ctypes.c_char_p
_getenv.argtypes = [ctypes.c_char_p]
