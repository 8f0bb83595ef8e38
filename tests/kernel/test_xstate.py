"""The bridge for CPUs with more registers than the user-mode kernel knows of."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chaoslab.kernel import launch, prefault, run_in_uml, user_mode_linux, xstate

Guest = Callable[..., subprocess.CompletedProcess[bytes]]

VECTORS = """
import ctypes, mmap, os, sys

# rdi: 32 bytes, loaded into a register, which must hold them over rsi switches between processes
code = bytes.fromhex(
    "c57c103f"            #       vmovups ymm15, [rdi]
    "b818000000" "0f05"   # again: mov eax, 24 (sched_yield); syscall
    "48ffce" "75f4"       #       dec rsi; jnz again
    "c57c113f" "c5f877"   #       vmovups [rdi], ymm15; vzeroupper
    "c3"
)
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_long)(
    ctypes.addressof(ctypes.c_char.from_buffer(page))
)
children = []
for letter in b"abc":
    pid = os.fork()
    if pid == 0:
        held = ctypes.create_string_buffer(bytes([letter]) * 32, 32)
        run(ctypes.addressof(held), 3000)
        os._exit(0 if held.raw == bytes([letter]) * 32 else 1)
    children.append(pid)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
"""
GOOD = "state[i] = i < given->size ? given->bytes[i] : 0;"
LOSES_VECTORS = "state[i] = i < given->size && (i < 816 || i >= 832) ? given->bytes[i] : 0;"
"""A bridge that loses the upper half of ymm15: AVX keeps them from byte 576 on, 16 bytes each.

Source: XSAVE area, Intel SDM volume 1, 13.4.
"""


@pytest.fixture
def bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the bridge on every machine."""
    if prefault.find_compiler() is None:
        pytest.skip("no C compiler: apt-get install gcc")
    monkeypatch.setattr(xstate, "is_needed", lambda: True)


def vectors_survive(folder: Path) -> int:
    """Give the status of processes that keep values in vector registers, in one guest."""
    if " avx " not in Path("/proc/cpuinfo").read_text(encoding="ascii"):
        pytest.skip("this CPU has no AVX")
    return run_in_uml([sys.executable, "-c", VECTORS], cwd=folder, env={})


def test_a_guest_boots_on_this_cpu(guest: Guest) -> None:
    """Whatever registers it has; with AMX, no guest starts without the bridge."""
    assert guest("true").returncode == 0


def test_registers_survive_a_change_of_processes(tmp_path: Path, bridge: None) -> None:  # noqa: ARG001
    """Three processes that take turns keep 32 bytes each in one register."""
    assert vectors_survive(tmp_path) == 0


@pytest.mark.skipif(not xstate.is_needed(), reason="the bridge has nothing to do on this CPU")
def test_a_bridge_that_loses_registers_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above sees a bridge that gives back half of the register."""
    spoiled = tmp_path / "xstate.c"
    text = xstate.SOURCE.read_text(encoding="utf-8")
    assert GOOD in text
    spoiled.write_text(text.replace(GOOD, LOSES_VECTORS), encoding="utf-8")
    monkeypatch.setattr(xstate, "SOURCE", spoiled)
    assert vectors_survive(tmp_path) != 0


@pytest.mark.skipif(not xstate.is_needed(), reason="this CPU needs no bridge")
def test_without_the_bridge_no_guest_starts_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not there for nothing: Linux refuses a state that is not whole."""
    monkeypatch.setattr(launch.xstate, "is_needed", lambda: False)
    with pytest.raises(Exception, match="ptrace set fp regs failed, errno = 14"):
        run_in_uml(["true"], cwd=tmp_path, env={})


def test_a_missing_compiler_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the bridge is needed and cannot be made, the reason says what to install."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("linux.uml", "modprobe"):
        found = shutil.which(name, path="/usr/bin:/usr/sbin:/sbin:/bin")
        assert found is not None
        (tools / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr(xstate, "is_needed", lambda: True)
    assert "apt-get install gcc" in user_mode_linux().reason
    monkeypatch.setattr(xstate, "is_needed", lambda: False)
    assert user_mode_linux().available
