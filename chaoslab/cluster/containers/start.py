"""Bringing a run's nodes up on an engine, and taking everything of it away again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ipaddress
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from chaoslab.cluster import interface, keys, subnet
from chaoslab.cluster.containers import payload, recipes
from chaoslab.cluster.containers.cluster import DockerCluster
from chaoslab.cluster.containers.deaths import Deaths
from chaoslab.cluster.containers.engine import ACTIVE_RUNS, Engine, remove_run
from chaoslab.cluster.containers.images import Images
from chaoslab.cluster.containers.mirror import Mirror
from chaoslab.cluster.containers.node import Json, Node, until_ready
from chaoslab.cluster.containers.recipes import CHECKPOINTS, SENT, SHARED, Limits, Plan
from chaoslab.cluster.interface import Inside, Up
from chaoslab.cluster.pod import RUN
from chaoslab.errors import ClusterError, NotAvailable
from chaoslab.platforms import Platform

_ANSWER_LIMIT_S: Final = 20.0
_SUBNET_TRIES: Final = 8
_GATEWAY: Final = 1
"""The engine takes the first address of a network for its own bridge."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to bring up. preload: called once in each training container (None: cold ranks).

    places: directory that takes the nodes' logs and events, one directory per node.
    """

    run_id: str
    nodes: int
    images: Images
    limits: Limits
    cwd: Path
    script: Path
    preload: str | None
    places: Path


@contextlib.asynccontextmanager
async def start_cluster(
    engine: Engine,
    wanted: Wanted,
    *,
    on_exit: Callable[[Json], None],
    on_agent_event: Callable[[int, Json], None],
    on_cut: Callable[[int, str, int], None],
) -> AsyncIterator[Up]:
    """Bring up the nodes and the store's; take everything down at the end.

    on_cut: called with node, file and limit when a file has grown beyond what is passed on.
    Raises: ClusterError; NotAvailable where ranks cannot be warm.
    """
    mirror = Mirror(wanted.places, on_cut)
    nodes: list[Node] = []
    watches: list[asyncio.Task[None]] = []
    deaths = await Deaths.of(engine, wanted.run_id)
    ACTIVE_RUNS.add(wanted.run_id)
    try:
        plan, network, script = await _prepare(engine, wanted)
        nodes += [
            Node(engine, plan, number, str(network[number + _GATEWAY + 1]))
            for number in range(wanted.nodes + 1)
        ]
        ready = await _start_nodes(nodes, wanted, mirror, on_exit, on_agent_event)
        inside = Inside(
            nodes=RUN,
            checkpoints=CHECKPOINTS,
            temporary=RUN / "tmp",
            cwd=SENT / "job",
            script=SENT / "job" / script,
            package=SENT / "lib" / "chaoslab",
            python=ready["python"],
            environment=ready["environment"],
        )
        cluster = DockerCluster(engine=engine, nodes=nodes, mirror=mirror)
        watches += [asyncio.ensure_future(_tell_end(node, deaths, on_exit)) for node in nodes]
        watches += [
            asyncio.ensure_future(_tell_ends_of_pods(node, deaths, on_exit, cluster.lose))
            for node in nodes
        ]
        platform = Platform(release=engine.about.kernel, system=engine.about.system)
        await interface.set_up(
            cluster,
            prefix_length=subnet.PREFIX_LENGTH,
            limit_s=_ANSWER_LIMIT_S,
            platform=platform,
        )
        yield Up(cluster=cluster, inside=inside, platform=platform)
    except BaseException as problem:
        for second in await _taken_down(engine, wanted.run_id, nodes, watches):
            problem.add_note(f"not everything of the run was removed: {second}")
        raise
    else:
        if problems := await _taken_down(engine, wanted.run_id, nodes, watches):
            raise ClusterError(f"not everything of the run was removed: {'; '.join(problems)}")
    finally:
        ACTIVE_RUNS.discard(wanted.run_id)
        mirror.close()
        await deaths.close()


async def _tell_end(node: Node, deaths: Deaths, on_exit: Callable[[Json], None]) -> None:
    """Tell of an agent's end as of any other process's."""
    await node.agent.attachment.channel.ended.wait()
    t_s = time.monotonic()
    status = await deaths.status_of(node.agent.id)
    event = {"event": "exited", "key": keys.of_agent(node.number), "pid": 0, "status": status}
    on_exit(event | {"t_s": t_s})


async def _tell_ends_of_pods(
    node: Node,
    deaths: Deaths,
    on_exit: Callable[[Json], None],
    on_lost: Callable[[str], None],
) -> None:
    """Tell of the ends of all processes in a training container that a fault has killed.

    Of one that nobody has killed: call on_lost with the reason.
    """
    while True:
        pod = node.pod
        await pod.attachment.channel.ended.wait()
        t_s = time.monotonic()
        status = await deaths.status_of(pod.id)
        if not node.pod_was_killed:
            said = f"status {status}; {pod.attachment.said or 'it said nothing'}"
            on_lost(f"the {pod.name} is gone, and this run has not ended it: {said}")
            return
        ended = {"event": "exited", "t_s": t_s}
        inside, node.running = node.running, {}
        for key, pid in inside.items():
            on_exit(ended | {"key": key, "pid": pid, "status": -signal.SIGKILL})
        on_exit(ended | {"key": keys.of_container(node.number), "pid": 0, "status": status})
        await pod.attachment.close()
        await node.renewed(pod)


async def _prepare(engine: Engine, wanted: Wanted) -> tuple[Plan, ipaddress.IPv4Network, Path]:
    """Make the network and the volumes, and send the files."""
    run_id = wanted.run_id
    job, script = await asyncio.to_thread(payload.of_job, wanted.cwd, wanted.script)
    own = await asyncio.to_thread(payload.of_chaoslab)
    network_id, network = await engine.call("make a network", _network, engine, run_id)
    sent = await engine.call("make a volume", recipes.create_volume, engine, run_id, "sent")
    shared = await engine.call(
        "make a volume",
        recipes.create_volume,
        engine,
        run_id,
        "shared",
        size_bytes=wanted.limits.disk_bytes,
    )
    plan = Plan(
        run_id=run_id,
        nodes=wanted.nodes,
        network=network_id,
        sent=sent,
        shared=shared,
        images=wanted.images,
        limits=wanted.limits,
    )
    loader = await engine.call("make a container", recipes.create_loader, engine, plan)
    put = engine.api.put_archive
    sendings = [
        (SENT, payload.directories("lib", "job")),
        (SENT / "lib", own),
        (SENT / "job", job),
    ]
    if not wanted.limits.disk_bytes:
        sendings.append((SHARED, payload.directories(CHECKPOINTS.name, mode=0o1777)))
    for target, data in sendings:
        await engine.call("send files", put, loader, str(target), data)
    await engine.call("remove a container", engine.api.remove_container, loader, force=True)
    return plan, network, script


def _network(engine: Engine, run_id: str) -> tuple[str, ipaddress.IPv4Network]:
    """Make the run's network on a subnet that neither this machine nor the engine uses."""
    taken = subnet.host_networks()
    for network in engine.api.networks():
        for pool in (network.get("IPAM") or {}).get("Config") or []:
            with contextlib.suppress(ValueError, KeyError):
                taken.append(ipaddress.IPv4Network(pool["Subnet"]))
    for _ in range(_SUBNET_TRIES):
        chosen = subnet.choose(run_id, taken)
        try:
            return recipes.create_network(engine, run_id, str(chosen)), chosen
        except Exception as problem:
            if "overlap" not in str(problem):  # with one that was made a moment ago
                raise
            taken.append(chosen)
    raise ClusterError(f"no free subnet after {_SUBNET_TRIES} tries: is another run starting up?")


async def _start_nodes(
    nodes: list[Node],
    wanted: Wanted,
    mirror: Mirror,
    on_exit: Callable[[Json], None],
    on_agent_event: Callable[[int, Json], None],
) -> Json:
    """Start all nodes at once; give what a training container said when it was ready."""

    async def start(node: Node) -> Json:
        def of_agent(event: Json) -> None:
            on_agent_event(node.number, event)

        def of_pod(event: Json) -> None:
            if event["event"] == "exited":
                on_exit(event)
            else:
                mirror.take(node.number, event)

        await node.start_agent(of_agent)
        await until_ready(node.agent)
        await node.start_pod(of_pod, None if node.number == wanted.nodes else wanted.preload)
        ready = await until_ready(node.pod)
        await node.measure_clock()
        return ready

    ready = await _all(*(start(node) for node in nodes))
    problems = [told["preload_problem"] for told in ready[: wanted.nodes]]
    if wanted.preload is not None and any(problems):
        raise NotAvailable(
            f"warm ranks cannot be had in this image: {next(filter(None, problems))}; "
            "or set Job(warm=False)"
        )
    return ready[0]


async def _all(*coroutines: Any) -> list[Json]:
    """Run all; at the first that fails cancel the others, and wait for their end."""
    tasks = [asyncio.ensure_future(one) for one in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _taken_down(
    engine: Engine, run_id: str, nodes: list[Node], watches: list[asyncio.Task[None]]
) -> list[str]:
    """End every container by the end of its stream, then remove whatever is still there.

    Returns what could not be removed, in words.
    """
    for watch in watches:
        watch.cancel()
    await asyncio.gather(*watches, return_exceptions=True)
    pods = [node for node in nodes if hasattr(node, "pod")]
    await asyncio.gather(*(node.ask("close") for node in pods), return_exceptions=True)
    streams = [node.pod.attachment for node in pods]
    streams += [node.agent.attachment for node in nodes if hasattr(node, "agent")]
    await asyncio.gather(*(stream.close() for stream in streams))
    return await asyncio.to_thread(remove_run, engine, run_id)
