"""The preloaded library that maps memory in batches."""

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from chaoslab.kernel import prefault
from tests.kernel.conftest import environment

Guest = Callable[..., subprocess.CompletedProcess[bytes]]

TOUCH = """
import json, os, subprocess, sys, time
measure = '''
import time
began_s = time.monotonic()
blocks = [bytearray(b"x" * 100000) for _ in range(400)]
assert all(block == b"x" * 100000 for block in blocks)
print(time.monotonic() - began_s)
'''
def took_s(**extra):
    without = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    run = [sys.executable, "-S", "-c", measure]
    return float(subprocess.run(run, env={**without, **extra}, stdout=-1, check=True).stdout)
preload = os.environ.get("LD_PRELOAD", "")
print(json.dumps([preload, took_s(LD_PRELOAD=preload), took_s()]))
"""


def test_fresh_memory_is_cheaper_with_the_library(guest: Guest) -> None:
    """Allocating 40 MB is at least a third faster with the library than without, and correct."""
    if prefault.library() is None:
        pytest.skip("no C compiler that works: apt-get install gcc libc6-dev")
    done = guest(sys.executable, "-c", TOUCH)
    assert done.returncode == 0, done.stderr.decode()
    preload, with_s, without_s = json.loads(done.stdout)
    assert preload.startswith("/run/chaoslab/")
    assert with_s < without_s * 0.67


def test_a_guest_works_without_the_library(guest: Guest) -> None:
    """The switch leaves LD_PRELOAD and malloc's settings as they were."""
    done = guest(
        "sh", "-c", "env", env=environment(CHAOSLAB_UML_PREFAULT="0", LD_PRELOAD="", LANG="C")
    )
    assert done.returncode == 0
    assert b"prefault.so" not in done.stdout
    assert ("MALLOC_TOP_PAD_" in os.environ) == (b"MALLOC_TOP_PAD_" in done.stdout)


@pytest.mark.parametrize("compilers", [(), ("false",)], ids=["none", "broken"])
def test_a_host_without_a_compiler_goes_without(
    monkeypatch: pytest.MonkeyPatch, compilers: tuple[str, ...]
) -> None:
    """No compiler, or one that fails, means no library and no error."""
    monkeypatch.setattr(prefault, "COMPILERS", compilers)
    prefault.library.cache_clear()
    try:
        assert prefault.library() is None
    finally:
        prefault.library.cache_clear()
