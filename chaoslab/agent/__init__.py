"""The in-node agent: born in a node's network namespace, it makes network faults real there.

It speaks JSON lines over two file descriptors, listens on no port, needs CAP_NET_ADMIN and nothing
more, and heals everything when its input ends, on SIGTERM, and when a fault's lease runs out.
"""

from __future__ import annotations

from chaoslab.agent.entry import main

__all__ = ["main"]
