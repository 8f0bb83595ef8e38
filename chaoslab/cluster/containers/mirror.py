"""The mirror: what pods pass on of logs and event files, written to the harness's own files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from chaoslab.errors import ClusterError


class Mirror:
    """Copies of the nodes' files below a directory: one directory per node.

    Only files that the harness has asked for are written: what a node sends is not trusted with
    names. on_cut: called with node, name and limit in bytes when a file has grown beyond that.
    """

    def __init__(self, root: Path, on_cut: Callable[[int, str, int], None]) -> None:
        self._root, self._on_cut = root, on_cut
        self._files: dict[tuple[int, str], BinaryIO] = {}
        self._problem: asyncio.Future[OSError] | None = None

    def expect(self, node: int, place: Path) -> None:
        """Open a file for what a node will pass on under its name; twice is harmless."""
        if (node, place.name) not in self._files:
            self._files[node, place.name] = place.open("ab", buffering=0)

    def take(self, node: int, event: dict[str, Any]) -> None:
        """Write what a node has passed on."""
        file = self._files.get((node, str(event.get("name"))))
        if file is None:
            return
        if event["event"] == "bytes":
            try:
                file.write(str(event["data"]).encode("latin-1", errors="replace"))
            except OSError as problem:
                if self._problem is not None and not self._problem.done():
                    self._problem.set_result(problem)
        else:
            self._on_cut(node, str(event["name"]), int(event["limit_bytes"]))

    async def failed(self) -> None:
        """Wait until something could not be written here. Raises: ClusterError, then."""
        self._problem = asyncio.get_running_loop().create_future()
        problem = await self._problem
        raise ClusterError(f"what the nodes pass on cannot be kept: {problem}") from problem

    def close(self) -> None:
        """Close all files; twice is harmless."""
        for file in self._files.values():
            file.close()
