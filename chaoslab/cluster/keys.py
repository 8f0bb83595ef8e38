"""Keys: the names by which a run's processes are started, signalled and reported.

`agent-2` is node 2's agent; `container-2` is all else that runs on it, which on an engine is a
container.
"""

from __future__ import annotations

from typing import Final

_AGENT: Final = "agent-"
_CONTAINER: Final = "container-"


def of_agent(node: int) -> str:
    """Give the key of a node's agent."""
    return f"{_AGENT}{node}"


def of_container(node: int) -> str:
    """Give the key of all that runs on a node but its agent."""
    return f"{_CONTAINER}{node}"


def agents_node(key: str | None) -> int | None:
    """Give the node whose agent has this key; None for any other key."""
    return _node(key, _AGENT)


def containers_node(key: str | None) -> int | None:
    """Give the node whose container has this key; None for any other key."""
    return _node(key, _CONTAINER)


def _node(key: str | None, prefix: str) -> int | None:
    return int(key.removeprefix(prefix)) if key is not None and key.startswith(prefix) else None
