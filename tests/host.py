"""What the host's own network and mounts are, for a comparison before and after."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

COUNTED = re.compile(r" (valid_lft|preferred_lft|expires|age) \S+")
"""Seconds that count down: leases of addresses and routes."""

OF_THE_MODULE = re.compile(
    r"^\d+: ifb[01]: <BROADCAST,NOARP> .* qdisc noop state DOWN .*\n", re.MULTILINE
)
"""The kernel makes these two, idle, when the first ifb device of any namespace loads the module.

One that is used shows.
Source: drivers/net/ifb.c, numifbs.
"""


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
        name: OF_THE_MODULE.sub("", COUNTED.sub("", _output(command)))
        for name, command in commands.items()
    }
    return state | {"mounts": Path("/proc/self/mounts").read_text()}


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
