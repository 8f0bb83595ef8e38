"""What the host's own network and mounts are, for a comparison before and after."""

from __future__ import annotations

import subprocess
from pathlib import Path


def host_state() -> dict[str, str]:
    """Give the host's links, addresses, routes, rules, qdiscs and mounts, less counters."""
    commands = {
        "links": ["ip", "-o", "link"],
        "addresses": ["ip", "-o", "addr"],
        "routes": ["ip", "route", "show", "table", "all"],
        "rules": ["ip", "rule"],
        "qdiscs": ["tc", "qdisc"],
        "named namespaces": ["ip", "netns"],
    }
    state = {
        name: subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for name, command in commands.items()
    }
    return state | {"mounts": Path("/proc/self/mounts").read_text()}
