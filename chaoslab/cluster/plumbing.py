"""Wires the nodes of a run together: one bridge, one virtual cable per node.

Runs in a child of the lab, in the lab's own network namespace, where nothing else lives: the
bridge has no way out, so a run cannot collide with another run or reach the host.
"""

from __future__ import annotations

from collections.abc import Sequence

BRIDGE = "bridge0"
NODE_INTERFACE = "eth0"
"""Name of a node's only interface, inside the node."""


def wire(node_pids: Sequence[int]) -> None:
    """Create the bridge and a cable to each node's namespace, named by a process in it.

    The nodes' own ends are left down and without address: each node's agent sets its own up.
    Raises: pyroute2's NetlinkError.
    """
    from pyroute2 import IPRoute  # noqa: PLC0415  imported by the server before the fork

    with IPRoute() as route:
        route.link("set", index=1, state="up")
        # Without spanning tree and multicast snooping a port forwards at once.
        route.link("add", ifname=BRIDGE, kind="bridge", br_stp_state=0, br_mcast_snooping=0)
        bridge = route.link_lookup(ifname=BRIDGE)[0]
        route.link("set", index=bridge, state="up")
        for index, pid in enumerate(node_pids):
            port = f"port{index}"
            peer = {"ifname": NODE_INTERFACE, "net_ns_pid": pid}
            route.link("add", ifname=port, kind="veth", peer=peer, master=bridge, state="up")
