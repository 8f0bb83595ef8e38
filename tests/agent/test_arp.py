"""Address resolution under a fault: netem lets ARP pass, a cut does not."""

from __future__ import annotations

import errno
import json
import socket
import time

import pytest

IP_RECVERR = 11  # source: include/uapi/linux/in.h; without it UDP is not told of a lost route

NETEMS = [
    {"loss_ratio": 1.0},
    {"corrupt_ratio": 1.0},
    {"duplicate_ratio": 1.0, "delay_s": 8},
]


def resolve(node, peer, limit_s=10.0):
    """Forget the peer's hardware address and call for it anew.

    Returns: the address, or the errno with which the kernel gave up.
    """
    node.ip("neigh", "del", peer.address, "dev", "eth0")
    near = node.udp()
    near.settimeout(0)
    near.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
    near.connect((peer.address, 9))
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        try:
            near.send(b"who are you")
        except ConnectionRefusedError:
            pass  # the peer was reached
        except OSError as error:
            return error.errno
        listed = json.loads(node.ip("-j", "neigh", "show", peer.address, "dev", "eth0"))
        for entry in listed:
            if "lladdr" in entry:
                return entry["lladdr"]
        time.sleep(0.05)
    return None


@pytest.fixture
def restored(lab):
    yield
    for node in lab.nodes:
        lab.know_neighbours(node)


@pytest.mark.netem
@pytest.mark.parametrize("asked", NETEMS, ids=lambda asked: next(iter(asked)))
@pytest.mark.usefixtures("restored")
def test_netem_never_touches_arp(lab, agent, need, asked) -> None:
    """The peer's true hardware address is learned at once, while no packet gets through whole.

    A corrupted reply would leave a wrong address behind for many seconds after the heal.
    """
    need("netem")
    node, peer = lab.nodes[0], lab.nodes[1]
    agent.inject({"kind": "netem", "netem": asked})
    assert resolve(node, peer) == peer.hardware
    agent.heal()
    assert agent.ask("pristine", over=True)["pristine"]


@pytest.mark.parametrize("direction", ["egress", "ingress", "both"])
@pytest.mark.usefixtures("restored")
def test_a_silent_drop_of_everything_drops_arp(lab, agent, direction) -> None:
    """A node whose cable is cut is not resolved either: to its peers it is unreachable."""
    node, peer = lab.nodes[0], lab.nodes[1]
    agent.inject({"kind": "silent_drop", "direction": direction})
    assert resolve(node, peer) == errno.EHOSTUNREACH
    agent.heal()
    assert resolve(node, peer) == peer.hardware
