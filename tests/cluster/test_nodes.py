"""Nodes: isolated, wired, with the capabilities that are documented and no other."""

import asyncio
import contextlib
import ipaddress
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from chaoslab import AgentError, ClusterError
from chaoslab.cluster import linux, subnet
from chaoslab.cluster.namespaces import Server, start_cluster

NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
CAP_NET_ADMIN_ONLY = f"{1 << linux.CAP_NET_ADMIN:016x}"


@pytest.fixture(scope="module")
def server():
    started = Server(None)
    yield started
    started.close()


@contextlib.asynccontextmanager
async def nodes(server, count, exits=None):
    async with start_cluster(
        server,
        run_id=f"test-{count}",
        nodes=count,
        owner=None,
        on_exit=(exits if exits is not None else []).append,
        on_agent_event=lambda *_: None,
    ) as cluster:
        yield cluster


async def output_of(cluster, tmp_path, node, *argv):
    """Run a command in a node. Returns what it printed."""
    log = tmp_path / "out.log"
    log.unlink(missing_ok=True)
    how = {"mode": "exec", "env": dict(os.environ), "cwd": "/", "log": log, "events": None}
    await cluster.start("probe", node, list(argv), **how)
    async with asyncio.timeout(10):
        while (await cluster.look("probe"))["state"] is not None:
            await asyncio.sleep(0.005)
    return log.read_text()


def test_sixteen_nodes_reach_each_other(server, tmp_path) -> None:
    """Every node has an address of its own, is pristine, and reaches the store's node."""

    async def story():
        async with nodes(server, 16) as cluster:
            assert len(set(cluster.addresses)) == 17
            for node in range(16):
                assert (await cluster.ask_agent(node, "pristine", limit_s=10))["pristine"]
            reach = "import socket,sys; s=socket.socket(); s.settimeout(3); "
            reach += f"print(s.connect_ex(('{cluster.addresses[-1]}', 9)))"
            said = [
                await output_of(cluster, tmp_path, n, sys.executable, "-c", reach) for n in (0, 15)
            ]
            assert said == ["111\n", "111\n"]  # refused: the packet got there and back

    asyncio.run(story())


def test_a_node_has_no_way_out(server, tmp_path) -> None:
    """Routes lead nowhere but to the run's own subnet; the host's interfaces are not there."""

    async def story():
        async with nodes(server, 2) as cluster:
            routes = await output_of(cluster, tmp_path, 0, "ip", "-4", "route")
            links = await output_of(cluster, tmp_path, 0, "ip", "-o", "link")
            network = ipaddress.ip_network(f"{cluster.addresses[0]}/24", strict=False)
            assert [line.split()[0] for line in routes.splitlines()] == [str(network)]
            names = {re.split(r"[:@ ]+", line)[1] for line in links.splitlines()}
            assert {"lo", "eth0"} <= names
            assert names == {"lo", "eth0", "chaosifb0"}  # the last: for what comes in

    asyncio.run(story())


def test_a_rank_has_no_capability_and_an_agent_one(server, tmp_path) -> None:
    """Read from /proc: CapEff, CapPrm and CapBnd; and a rank cannot change its own link."""

    async def story():
        async with nodes(server, 1) as cluster:
            own = await output_of(cluster, tmp_path, 0, "cat", "/proc/self/status")
            pid = next(p["pid"] for p in await cluster.processes() if p["key"] == "agent-0")
            agent = await output_of(cluster, tmp_path, 0, "cat", f"/proc/{pid}/status")
            denied = await output_of(cluster, tmp_path, 0, "ip", "link", "set", "eth0", "down")
            return own, agent, denied

    own, agent, denied = asyncio.run(story())
    for name in ("CapEff", "CapPrm", "CapBnd"):
        assert re.search(rf"{name}:\t0{{16}}\n", own)
        assert re.search(rf"{name}:\t{CAP_NET_ADMIN_ONLY}\n", agent)
    assert "Operation not permitted" in denied


def test_a_node_outlives_its_agent(server, tmp_path) -> None:
    """The agent is killed: the namespace and its address stay, and asking it is an error."""

    async def story():
        async with nodes(server, 2) as cluster:
            assert await cluster.signal("agent-1", signal.SIGKILL)
            with pytest.raises(AgentError, match="gone"):
                await cluster.ask_agent(1, "counters", limit_s=5)
            return await output_of(cluster, tmp_path, 1, "ip", "-4", "addr", "show", "eth0")

    assert "inet 10." in asyncio.run(story())


def test_the_end_of_a_cluster_ends_its_processes(server, tmp_path) -> None:
    """Whatever was started in a node, also what left its session, is gone with the cluster."""
    mark = f"chaoslab-test-{os.getpid()}"

    async def story():
        async with nodes(server, 1) as cluster:
            script = f"setsid bash -c 'exec -a {mark} sleep 100' & exec -a {mark} sleep 100"
            how = {"mode": "exec", "env": dict(os.environ), "cwd": "/", "events": None}
            argv = ["bash", "-c", script]
            await cluster.start("long", 0, argv, log=tmp_path / "log", **how)
            async with asyncio.timeout(10):
                while len(named(mark)) < 2:
                    await asyncio.sleep(0.01)

    asyncio.run(story())
    assert named(mark) == []


def named(mark):
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(mark.encode()):
                found.append(entry.name)
    return found


def test_a_process_that_cannot_begin_is_the_harness_own_error(server, tmp_path) -> None:
    """A program that is not there, a directory that is not: said at the start, by name."""

    async def story():
        async with nodes(server, 1) as cluster:
            how = {"mode": "exec", "env": dict(os.environ), "log": tmp_path / "log", "events": None}
            with pytest.raises(ClusterError, match="one could not begin: FileNotFoundError"):
                await cluster.start("one", 0, ["/nowhere/program"], cwd="/", **how)
            with pytest.raises(ClusterError, match="two could not begin: FileNotFoundError"):
                await cluster.start("two", 0, ["true"], cwd="/nowhere", **how)

    asyncio.run(story())


def test_a_server_that_was_killed_is_said() -> None:
    """No lab can come from a dead server: an error of the harness, not a hang."""
    started = Server(None)

    async def story():
        await started.wait_ready()
        started._process.kill()
        started._process.wait()
        async with nodes(started, 1):
            pass

    with pytest.raises(ClusterError):
        asyncio.run(story())
    started.close()


@given(st.text(), st.lists(st.integers(0, 255), max_size=40))
def test_a_subnet_keeps_away_from_what_is_taken(run_id, second_bytes) -> None:
    """Whatever the host routes, the run's subnet does not overlap it."""
    taken = [ipaddress.IPv4Network((f"10.{byte}.0.0", 16)) for byte in second_bytes]
    chosen = subnet.choose(run_id, taken)
    assert chosen.prefixlen == 24
    assert not any(chosen.overlaps(other) for other in taken)


def test_a_host_that_routes_all_of_10_is_said() -> None:
    """There is no subnet left: the message says so."""
    with pytest.raises(ClusterError, match="no free subnet"):
        subnet.choose("run", [ipaddress.IPv4Network("10.0.0.0/8")])


def test_routes_are_read_as_the_kernel_writes_them(tmp_path) -> None:
    """Little-endian hexadecimal, the default route left out."""
    table = tmp_path / "route"
    table.write_text(
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
        "eth0\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\n"
        "eth0\t0002A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\n"
    )
    assert subnet.host_networks(table) == [ipaddress.IPv4Network("192.168.2.0/24")]


def python_for_nobody():
    """Find an interpreter of this version that an ordinary user may execute."""
    named = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin")
    check = "import pyroute2, subprocess, sys; subprocess.run([sys.executable, '-V'], check=True)"
    for path in (sys.executable, named):
        if path is not None:
            command = [*AS_NOBODY, path, "-c", check]
            tried = subprocess.run(command, env=for_nobody(), capture_output=True, check=False)
            if tried.returncode == 0:
                return path
    return None


def for_nobody():
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def test_an_ordinary_user_gets_nodes_too() -> None:
    """In an unprivileged user namespace: up, a silent drop that bites, healed, pristine."""
    python = python_for_nobody()
    if os.geteuid() != 0 or python is None:
        pytest.skip("NotAvailable: needs root to become another user, and a Python it may execute")
    script = Path(__file__).with_name("as_ordinary_user.py")
    command = [*AS_NOBODY, python, script]
    ran = subprocess.run(
        command, env=for_nobody(), cwd="/", capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "effective healed pristine\n"
