"""How fast nodes come up, and how long a fault takes from `inject` to its effect.

    python benchmarks/injection.py              on this kernel
    python -m chaoslab.kernel -- python benchmarks/injection.py     under user-mode Linux

"held" and "NOT HELD" tell what is claimed: sixteen nodes in 2 s, an effect in 5 ms (medians).
No job runs; the effect is a probe packet of the agent that was dropped or held (its qdisc's
counter), or the state of the link read back. Medians of 50.
"""

import asyncio
import statistics
import time
from typing import Any

from chaoslab.cluster.namespaces import NamespacesCluster, Server, start_cluster

REPEATS = 50
NODES_MOST_S, EFFECT_MOST_S = 2.0, 0.005
FAULTS: dict[str, dict[str, Any]] = {
    "silent drop, egress": {"kind": "silent_drop", "direction": "egress"},
    "silent drop, both": {"kind": "silent_drop", "direction": "both"},
    "link down": {"kind": "link_down"},
    "loss 20 %, egress": {
        "kind": "netem",
        "direction": "egress",
        "netem": {"loss_ratio": 0.2},
    },
    "loss 20 %, both": {"kind": "netem", "direction": "both", "netem": {"loss_ratio": 0.2}},
    "delay 1 ms, egress": {"kind": "netem", "direction": "egress", "netem": {"delay_s": 0.001}},
}


def held(is_held: bool) -> str:  # noqa: FBT001  a word for it
    """Say whether a claim holds."""
    return "held" if is_held else "NOT HELD"


async def one(cluster: NamespacesCluster, fault: dict[str, Any], number: int) -> float:
    """Inject, wait for the effect, heal. Returns seconds from the request to the effect seen."""
    fault_id, peer = f"f{number}", [cluster.addresses[1]]
    wire = fault if fault["kind"] == "link_down" else {"peers": [], "ports": [], **fault}
    began_s = time.monotonic()
    await cluster.ask_agent(0, "inject", limit_s=10, fault_id=fault_id, lease_s=60, fault=wire)
    seen = await cluster.ask_agent(
        0, "wait_effective", limit_s=10, fault_id=fault_id, timeout_s=5, probe_to=peer
    )
    if not seen["effective"]:
        raise SystemExit(f"{fault}: no effect: {seen['missing']}")
    took_s = float(seen["t_s"]) - began_s
    await cluster.ask_agent(0, "heal", limit_s=10, fault_id=fault_id)
    healed = await cluster.ask_agent(
        0, "wait_healed", limit_s=10, fault_id=fault_id, timeout_s=8, probe_to=peer
    )
    if not healed["healed"]:
        raise SystemExit(f"{fault}: not healed: {healed}")
    return took_s


async def main() -> None:
    """Measure and print."""
    server = Server(None)
    try:
        await server.wait_ready()
        for nodes in (4, 16):
            began_s = time.monotonic()
            async with start_cluster(
                server,
                run_id=f"bench-{nodes}",
                nodes=nodes,
                owner=None,
                on_exit=lambda _: None,
                on_agent_event=lambda *_: None,
            ) as cluster:
                took_s = time.monotonic() - began_s
                kept = f"  at most {NODES_MOST_S:g} s: {held(took_s <= NODES_MOST_S)}"
                print(f"{nodes} nodes up, wired and addressed: {took_s:.3f} s{kept}")
                if nodes == 4:  # noqa: PLR2004
                    await measure(cluster)
    finally:
        server.close()


async def measure(cluster: NamespacesCluster) -> None:
    """Time every fault that this kernel has."""
    answer = await cluster.ask_agent(0, "probe", limit_s=30)
    netem = answer["capabilities"]["netem"]
    for name, fault in FAULTS.items():
        if fault["kind"] == "netem" and netem is not True:
            print(f"{name:22s} not on this kernel: no netem")
            continue
        times = [await one(cluster, fault, number) for number in range(REPEATS)]
        low, middle, high = min(times), statistics.median(times), max(times)
        print(
            f"{name:22s} median {middle * 1e3:6.2f} ms  "
            f"(least {low * 1e3:.2f}, most {high * 1e3:.2f}, n={REPEATS})  "
            f"at most {EFFECT_MOST_S * 1e3:g} ms: {held(middle <= EFFECT_MOST_S)}"
        )


if __name__ == "__main__":
    asyncio.run(main())
