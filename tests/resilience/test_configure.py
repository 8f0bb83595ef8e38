"""NCCL and gloo get explicit limits; what contradicts itself is refused; all can be undone."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist

from chaoslab.resilience import variables
from chaoslab.resilience.configure import configure_gloo, configure_nccl
from chaoslab.resilience.configured import Configured
from chaoslab.resilience.errors import ConfigurationDiffers, DeprecatedVariable

NCCL = {
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "180",
    "TORCH_NCCL_ENABLE_MONITORING": "1",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "2000",
    "TORCH_FR_BUFFER_SIZE": "2000",
}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start without any of these variables; afterwards all is as before."""
    for name in list(os.environ):
        if "NCCL" in name or "GLOO" in name or name.startswith(("TORCH_FR_", "MASTER_", "TP_")):
            monkeypatch.delenv(name)


@pytest.fixture
def undone() -> Iterator[None]:
    """Fail unless the test leaves the environment as it found it."""
    before = dict(os.environ)
    yield
    assert {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"} == {
        k: v for k, v in before.items() if k != "PYTEST_CURRENT_TEST"
    }


def group(timeout: timedelta, backend: str = "gloo") -> None:
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)


@pytest.mark.usefixtures("undone")
def test_nccl_gets_every_limit_and_gives_it_back() -> None:
    """All seven variables are set, C reads the same, and the end of the block removes them."""
    with configure_nccl() as nccl:
        assert dict(nccl.environment) == NCCL
        assert {name: variables.read_back(name) for name in NCCL} == NCCL
        assert nccl.timeout == timedelta(seconds=120)
        assert nccl.longest_s == 120 + 4 * 2
        assert set(nccl.replaced.values()) == {None}
        nccl.check()
    assert variables.read_back("TORCH_NCCL_BLOCKING_WAIT") is None


@pytest.mark.usefixtures("undone")
def test_undoing_twice_is_harmless() -> None:
    """The second time there is nothing left to undo, even when another has set a name since."""
    os.environ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] = "77"
    nccl = configure_nccl(heartbeat_s=60)
    assert nccl.replaced["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] == "77"
    nccl.restore()
    assert os.environ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] == "77"
    os.environ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] = "99"
    nccl.restore()
    assert os.environ.pop("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC") == "99"


def test_the_environment_is_heard_where_the_call_says_nothing() -> None:
    """A heartbeat and a mode from outside hold; an argument overrules, and that is told."""
    os.environ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] = "600"
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"  # torchrun sets it
    with configure_nccl() as nccl:
        assert nccl.environment["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] == "600"
        assert nccl.environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
    with configure_nccl(heartbeat_s=30) as nccl:
        assert nccl.environment["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] == "30"
        assert nccl.replaced["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] == "600"
    del (
        os.environ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"],
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"],
    )


def test_a_timeout_that_raises_needs_no_watchdog() -> None:
    """Blocking waits, no mode that would end the process, and nothing that waits for a dump."""
    with configure_nccl(on_timeout="raise", timeout_s=15) as nccl:
        assert nccl.environment["TORCH_NCCL_BLOCKING_WAIT"] == "1"
        assert nccl.environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
        assert nccl.environment["TORCH_NCCL_ENABLE_MONITORING"] == "0"
        assert nccl.environment["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "0"
        assert nccl.longest_s == 15


@pytest.mark.parametrize(
    ("old", "current", "value", "plain"),
    [
        ("NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT", "true", "1"),
        ("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", "1"),
        ("NCCL_DESYNC_DEBUG", "TORCH_NCCL_DESYNC_DEBUG", "Y", "1"),
        ("NCCL_ENABLE_TIMING", "TORCH_NCCL_ENABLE_TIMING", "no", "0"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE", "500", "500"),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE", "/tmp/a", "/tmp/a"),
    ],
)
@pytest.mark.usefixtures("undone")
def test_a_deprecated_name_is_moved_to_the_current_one(
    monkeypatch: pytest.MonkeyPatch, old: str, current: str, value: str, plain: str
) -> None:
    """With a warning of our own; afterwards the deprecated one is there again."""
    with monkeypatch.context() as patch:
        patch.setenv(old, value)
        with pytest.warns(DeprecatedVariable, match=f"{old} is deprecated: use {current}"):
            nccl = configure_nccl()
        assert (nccl.environment[current], nccl.replaced[old]) == (plain, value)
        assert variables.read_back(old) is None
        nccl.check()
        nccl.restore()
        assert os.environ[old] == value


@pytest.mark.parametrize(
    ("old", "value", "current", "other"),
    [
        ("NCCL_BLOCKING_WAIT", "1", "TORCH_NCCL_BLOCKING_WAIT", "0"),
        ("NCCL_ASYNC_ERROR_HANDLING", "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "1", "TORCH_FR_BUFFER_SIZE", "2"),
    ],
)
def test_names_that_contradict_each_other_are_refused(
    monkeypatch: pytest.MonkeyPatch, old: str, value: str, current: str, other: str
) -> None:
    """In silence, torch would take one of them; nothing is changed."""
    monkeypatch.setenv(old, value)
    monkeypatch.setenv(current, other)
    with pytest.raises(ValueError, match=f"{current}={other} and {old}={value}: want one"):
        configure_nccl()
    assert (os.environ[old], os.environ[current]) == (value, other)


def test_names_that_agree_are_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The healthy twin: "yes" and "1" mean the same."""
    monkeypatch.setenv("NCCL_BLOCKING_WAIT", "yes")
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    with pytest.warns(DeprecatedVariable), configure_nccl() as nccl:
        assert nccl.environment["TORCH_NCCL_BLOCKING_WAIT"] == "1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "180s"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "1.5"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "0"),
        ("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "-1"),
        ("TORCH_NCCL_BLOCKING_WAIT", "on"),
        ("TORCH_FR_BUFFER_SIZE", ""),
    ],
)
def test_an_environment_that_torch_would_misread_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """By name, before anything is changed."""
    monkeypatch.setenv(name, value)
    before = dict(os.environ)
    with pytest.raises(ValueError, match=f"{name}={re.escape(value)}: want"):
        configure_nccl()
    assert dict(os.environ) == before


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "5", None, 1e9, 1e-9])
@pytest.mark.parametrize("configure", [configure_nccl, configure_gloo])
def test_a_timeout_that_is_no_limit_is_refused(configure: object, value: object) -> None:
    """Zero, negative, not finite, not a number: the message shows what was given."""
    with pytest.raises(ValueError, match=r"timeout_s=.*: want 0.001 to 86400 s"):
        configure(timeout_s=value)  # type: ignore[operator]


@pytest.mark.parametrize(
    "arguments",
    [
        {"heartbeat_s": 0},
        {"heartbeat_s": 1.5},
        {"heartbeat_s": True},
        {"trace_entries": -1},
        {"dump_s": 0},
        {"dump_s": float("nan")},
        {"on_timeout": "ignore"},
    ],
)
def test_a_setting_that_cannot_be_is_refused(arguments: dict[str, object]) -> None:
    """By name, with what is wanted."""
    with pytest.raises(ValueError, match=f"{next(iter(arguments))}.*want"):
        configure_nccl(**arguments)  # type: ignore[arg-type]


def test_every_name_is_one_that_the_installed_torch_reads() -> None:
    """The table agrees with torch's own headers, deprecated names and their order included."""
    text = "".join(path.read_text() for path in sorted(variables.HEADERS.glob("*.hpp")))
    for name in NCCL:
        assert f'"{name}"' in text
    for old, current in variables.deprecated().items():
        if "DUMP_TEMP_FILE" not in current:  # named in a .cpp file only
            assert re.search(rf'"{current}",\s*"{old}"', text), old
    assert variables.trace_name() == "TORCH_FR_BUFFER_SIZE"
    pairs = re.findall(r'"(TORCH_\w+)",\s*"((?:TORCH_)?NCCL_\w+)"', text)
    assert {old: current for current, old in pairs}.items() <= variables.deprecated().items()


@pytest.mark.parametrize("configure", [configure_nccl, lambda: configure_gloo(interface="lo")])
@pytest.mark.usefixtures("undone")
def test_it_is_refused_once_a_group_exists(configure: object) -> None:
    """A group made before would not see it; after it is destroyed all is well."""
    group(timedelta(seconds=5))
    try:
        with pytest.raises(RuntimeError, match="a process group exists already"):
            configure()  # type: ignore[operator]
    finally:
        dist.destroy_process_group()
    configure().restore()  # type: ignore[operator]


def changed_in_python(_: Configured) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "eth7"


def changed_in_c(_: Configured) -> None:
    ctypes.CDLL(None).unsetenv(b"GLOO_SOCKET_IFNAME")


def other_timeout(_: Configured) -> None:
    group(timedelta(minutes=30))


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (changed_in_python, "GLOO_SOCKET_IFNAME: want lo, found eth7"),
        (changed_in_c, "GLOO_SOCKET_IFNAME: want lo, found None"),
        (other_timeout, "timeout of the default group: want 0:00:07, found 0:30:00"),
    ],
)
def test_check_finds_what_is_not_in_force(fault: object, found: str) -> None:
    """A change from Python, one behind Python's back, and a group made with another timeout."""
    gloo = configure_gloo(interface="lo", timeout_s=7)
    gloo.check()
    try:
        fault(gloo)  # type: ignore[operator]
        with pytest.raises(ConfigurationDiffers, match=re.escape(found)):
            gloo.check()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        gloo.restore()


def test_check_passes_a_group_made_as_configured() -> None:
    """The healthy twin; the group is over another backend for NCCL, which is told."""
    nccl = configure_nccl(timeout_s=7)
    with configure_gloo(interface="lo", timeout_s=7) as gloo:
        group(gloo.timeout)
        try:
            gloo.check()
            with pytest.raises(ConfigurationDiffers, match=r"want nccl, found \['gloo'\]"):
                nccl.check()
        finally:
            dist.destroy_process_group()
            nccl.restore()


@pytest.mark.usefixtures("undone")
def test_gloo_takes_the_interface_that_leads_to_the_store() -> None:
    """From the argument, or from where torchrun says the store is; a lazy connection is off."""
    with configure_gloo(store=("127.0.0.1", 29500), timeout_s=2.5) as gloo:
        assert dict(gloo.environment) == {
            "GLOO_SOCKET_IFNAME": "lo",
            "TP_SOCKET_IFNAME": "lo",
            "TORCH_GLOO_LAZY_INIT": "0",
        }
        assert gloo.timeout == timedelta(seconds=2.5)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    with configure_gloo() as gloo:
        assert gloo.environment["GLOO_SOCKET_IFNAME"] == "lo"
    del os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]


@pytest.mark.parametrize(
    ("environment", "arguments", "message"),
    [
        ({}, {}, "want interface=, store="),
        ({}, {"interface": "no-such0"}, "interface 'no-such0': want one that is up"),
        ({"GLOO_SOCKET_IFNAME": "no-such0"}, {}, "interface 'no-such0': want one that is up"),
        ({}, {"store": ("255.255.255.255", 1)}, "store 255.255.255.255: want one"),
        ({"TORCH_GLOO_LAZY_INIT": "1"}, {"interface": "lo"}, "TORCH_GLOO_LAZY_INIT=1: want 0"),
        ({"TORCH_GLOO_LAZY_INIT": "on"}, {"interface": "lo"}, "TORCH_GLOO_LAZY_INIT=on: want 1"),
    ],
)
def test_gloo_without_a_fit_interface_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    arguments: dict[str, object],
    message: str,
) -> None:
    """A missing, unknown or unreachable one, and lazy connection: nothing is changed."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    with pytest.raises(ValueError, match=message):
        configure_gloo(**arguments)  # type: ignore[arg-type]
    assert dict(os.environ) == before
