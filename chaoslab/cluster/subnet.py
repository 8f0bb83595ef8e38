"""Chooses a run's subnet: free of the host's routes, different from run to run."""

from __future__ import annotations

import hashlib
import ipaddress
from pathlib import Path

from chaoslab.errors import ClusterError

PREFIX_LENGTH = 24


def host_networks(routes: Path = Path("/proc/net/route")) -> list[ipaddress.IPv4Network]:
    """Give the networks that the host routes to, without its default route.

    Source: /proc/net/route, net/ipv4/fib_trie.c: addresses as little-endian hexadecimal.
    """
    networks = []
    try:
        lines = routes.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return []
    for line in lines:
        fields = line.split()
        address, mask = (int.from_bytes(bytes.fromhex(fields[i])[::-1]) for i in (1, 7))
        if mask:
            networks.append(ipaddress.IPv4Network((address & mask, mask.bit_count())))
    return networks


def choose(run_id: str, taken: list[ipaddress.IPv4Network]) -> ipaddress.IPv4Network:
    """Choose a /24 of 10.0.0.0/8 by the run's id, away from the networks that are taken.

    Raises: ClusterError when all of 10.0.0.0/8 is taken.
    """
    start = int.from_bytes(hashlib.blake2b(run_id.encode(), digest_size=2).digest())
    for step in range(1 << 16):
        number = (start + step) % (1 << 16)
        network = ipaddress.IPv4Network((f"10.{number >> 8}.{number & 255}.0", PREFIX_LENGTH))
        if not any(network.overlaps(other) for other in taken):
            return network
    raise ClusterError("no free subnet: the host routes all of 10.0.0.0/8")
