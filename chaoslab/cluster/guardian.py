"""The guardian: a small process that removes a run's files when the harness can no longer.

A shell that reads paths from the harness, one a line. When its input ends, because the harness
has ended in whatever way, it removes what of them is still there. It is up within milliseconds,
long before the warm server has imported torch.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
from typing import Final

from chaoslab.errors import ClusterError

_CLOSE_LIMIT_S: Final = 10.0
"""It tries for 4 s."""

# Processes of the run may still be writing while they are being killed: try again for 4 s.
_SCRIPT: Final = """
while IFS= read -r path; do set -- "$@" "$path"; done
tries=0
while [ "$tries" -lt 80 ]; do
    rm -rf -- "$@" 2>/dev/null
    left=
    for path do [ ! -e "$path" ] || left=1; done
    [ -n "$left" ] || exit 0
    tries=$((tries + 1))
    sleep 0.05
done
"""


class Guardian:
    """The harness's handle on its guardian; started on creation."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "chaoslab-guardian"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the harness
        )

    def guard(self, path: Path) -> None:
        """Have this path removed at the harness's end. Raises: ClusterError."""
        text = str(path.absolute())
        if "\n" in text:
            raise ClusterError(f"{text!r}: want a path without a line break")
        stdin = self._process.stdin
        try:
            if stdin is not None:
                stdin.write(text.encode() + b"\n")
                stdin.flush()
        except OSError as problem:
            raise ClusterError(
                f"the guardian of temporary files was killed: {problem}"
            ) from problem

    def close(self) -> None:
        """End it; it then removes what was not removed. Twice is harmless."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=_CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:  # stopped from outside, or a file system that hangs
            self._process.kill()
            self._process.wait(timeout=_CLOSE_LIMIT_S)
