"""What each container of a run may do, see and use: as documented, and no more."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from pathlib import Path
from typing import Any

from docker_lab import containers, ran

from chaoslab.cluster.containers.engine import About, Engine
from chaoslab.cluster.containers.recipes import AGENT_MEMORY_BYTES, AGENT_PIDS, Limits

NET_ADMIN_ALONE = f"{1 << 12:016x}"
NONE = f"{0:016x}"


def described(engine: Engine) -> dict[str, dict[str, Any]]:
    """Describe every container of chaoslab as the engine does, by what it is."""
    found = {}
    for listed in engine.api.containers(filters={"label": ["org.chaoslab=1"]}):
        name = listed["Names"][0]
        for kind in ("agent-0", "node-0", "store"):
            if f"-{kind}-" in name:
                found[kind] = engine.api.inspect_container(listed["Id"])
    return found


def inside(engine: Engine, container: str, *argv: str) -> str:
    """Run a command in a container by the engine, as its process 1's user."""
    made = engine.api.exec_create(container, list(argv))
    return engine.api.exec_start(made["Id"]).decode()


def capabilities(status: str) -> dict[str, str]:
    return dict(re.findall(r"(CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs):\s+(\S+)", status))


def test_each_container_has_what_is_documented(engine: Engine, tmp_path: Path) -> None:
    """Capabilities, root, user, namespaces, limits and mounts, by the engine and by the kernel."""

    async def story() -> None:
        async with containers(engine, tmp_path, limits=Limits(memory_bytes=1 << 30)) as up:
            found = described(engine)
            assert sorted(found) == ["agent-0", "node-0", "store"]
            for kind, one in found.items():
                host = one["HostConfig"]
                is_agent = kind == "agent-0"
                assert host["Privileged"] is False
                assert host["CapDrop"] == ["ALL"]
                assert host["CapAdd"] == (["NET_ADMIN"] if is_agent else None)
                assert host["ReadonlyRootfs"] is is_agent
                assert (host["PidMode"], host["UsernsMode"], host["UTSMode"]) == ("", "", "")
                assert host["IpcMode"] == "private"
                assert host["SecurityOpt"] == ["no-new-privileges:true"]
                assert host["PidsLimit"] == (AGENT_PIDS if is_agent else Limits().pids)
                assert host["Memory"] == (AGENT_MEMORY_BYTES if is_agent else 1 << 30)
                assert host["NetworkMode"] != "host"
                assert one["Config"]["User"] == ("0:0" if is_agent else "1000:1000")
                writable = [mount["Destination"] for mount in one["Mounts"] if mount["RW"]]
                assert writable == (["/shared"] if kind == "node-0" else [])
                places = {mount["Destination"] for mount in one["Mounts"]}
                assert not any("docker.sock" in place or place == "/" for place in places)
            agent, node = found["agent-0"]["Id"], found["node-0"]["Id"]
            assert found["node-0"]["HostConfig"]["NetworkMode"] == f"container:{agent}"

            of_agent = capabilities(inside(engine, agent, "cat", "/proc/1/status"))
            expected = dict.fromkeys(("CapPrm", "CapEff", "CapBnd"), NET_ADMIN_ALONE)
            assert of_agent == expected | {"CapAmb": NONE, "NoNewPrivs": "1"}
            of_rank = capabilities(await ran(up, tmp_path, "cat", "/proc/self/status"))
            expected = dict.fromkeys(("CapPrm", "CapEff", "CapBnd", "CapAmb"), NONE)
            assert of_rank == expected | {"NoNewPrivs": "1"}
            assert node != agent

    asyncio.run(story())


def test_a_rank_cannot_change_its_network_nor_leave_it(engine: Engine, tmp_path: Path) -> None:
    """No link, no qdisc, no packet beyond the run's network; the agent can, for itself alone."""
    tries = (
        "import socket, sys\n"
        "from pyroute2 import IPRoute\n"
        "def tried(what, act):\n"
        "    try: act()\n"
        "    except Exception as problem: print(what, type(problem).__name__, problem)\n"
        "    else: print(what, 'WORKED')\n"
        "route = IPRoute()\n"
        "index = route.link_lookup(ifname='eth0')[0]\n"
        "tried('down', lambda: route.link('set', index=index, state='down'))\n"
        "tried('qdisc', lambda: route.tc('del', index=index, root=True))\n"
        "tried('out', lambda: socket.create_connection(('198.51.100.1', 80), timeout=3))\n"
        "tried('raw', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))\n"
    )

    async def story() -> str:
        async with containers(engine, tmp_path) as up:
            return await ran(up, tmp_path, up.inside.python, "-c", tries)

    said = asyncio.run(story())
    assert "WORKED" not in said
    assert [line.split()[0] for line in said.splitlines()] == ["down", "qdisc", "out", "raw"]
    assert said.count("Operation not permitted") == 3
    assert "unreachable" in said


def test_a_limit_that_an_engine_drops_is_named() -> None:
    """Its kernel lacks that control group, and no call fails: a report says so."""
    about = About(
        version="28.2",
        kernel="6.1.0",
        cgroup="1",
        storage="overlay2",
        system="Debian",
        is_local=True,
        unbounded=("memory",),
    )
    assert about.versions()["engine_cgroup"] == "1, no limit of memory"
    whole = dataclasses.replace(about, unbounded=())
    assert whole.versions()["engine_cgroup"] == "1"


def test_a_rank_cannot_speak_for_its_pod(engine: Engine, tmp_path: Path) -> None:
    """What process 1 says to the harness is its own word: its streams are out of reach."""
    tries = (
        "for place in ('/proc/1/fd/1', '/proc/1/fd/10', '/proc/1/fd/11', '/proc/1/mem'):\n"
        "    try: open(place, 'wb')\n"
        "    except OSError as problem: print(place, problem.strerror)\n"
        "    else: print(place, 'WORKED')\n"
        "import os\n"
        "os.kill(1, 9)\n"
        "print('killed?')\n"
    )

    async def story() -> str:
        async with containers(engine, tmp_path) as up:
            return await ran(up, tmp_path, up.inside.python, "-c", tries)

    said = asyncio.run(story())
    assert said.count("Permission denied") == 4
    assert said.endswith("killed?\n")
