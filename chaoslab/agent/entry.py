"""Starting the agent, and refusing to start in the harness's own network namespace."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chaoslab.agent.channel import Channel
from chaoslab.agent.loop import Agent

if TYPE_CHECKING:
    from collections.abc import Sequence

NETNS_PATH: Final = "/proc/self/ns/net"
REFUSED_STATUS: Final = 1


def main(stdin_fd: int, stdout_fd: int, forbidden_netns: tuple[int, int]) -> int:
    """Serve until stdin ends or a signal comes, heal everything, and return the exit status.

    forbidden_netns: (st_dev, st_ino) of the harness's /proc/self/ns/net. An agent that finds itself
    there says so in one line and returns 1, having touched nothing.

    It must be called in the main thread of a process of its own, as a forked child is.
    """
    own = Path(NETNS_PATH).stat()
    if (own.st_dev, own.st_ino) == tuple(forbidden_netns):
        said = (f"network namespace {own.st_dev}:{own.st_ino} is the harness's own: want a node's; "
                "start the agent inside the node's namespace, by nsenter --net")  # fmt: skip
        _refuse(stdout_fd, said)
        return REFUSED_STATUS
    return Agent(Channel(stdin_fd, stdout_fd)).serve()


def command(arguments: Sequence[str]) -> int:
    """Run `python -m chaoslab.agent --forbid-netns DEV:INO` over standard input and output."""
    try:
        flag, value = arguments
        device, inode = (int(part) for part in value.split(":"))
        if flag != "--forbid-netns":
            raise ValueError(flag)  # noqa: TRY301  # one message for every wrong use
    except ValueError:
        said = (
            f"{' '.join(arguments)!r}: want --forbid-netns DEV:INO, from stat -L /proc/self/ns/net"
        )
        _refuse(1, said)
        return 2
    return main(0, 1, (device, inode))


def _refuse(stdout_fd: int, message: str) -> None:
    error = {"kind": "bad_request", "message": message}
    line = json.dumps({"event": "refused", "t_s": time.monotonic(), "ok": False, "error": error})
    os.write(stdout_fd, line.encode() + b"\n")
