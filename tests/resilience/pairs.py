"""Two processes that are in one group, for the tests of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from checkpoints import in_a_child


def in_two_processes(be: Callable[[int], None]) -> None:
    """Be rank 0 and rank 1, and see that both end well."""

    def both() -> None:
        pid = os.fork()
        if pid == 0:
            try:
                be(1)
                os._exit(0)
            finally:
                os._exit(1)
        be(0)
        assert os.waitpid(pid, 0)[1] == 0

    ended = in_a_child(both)
    assert ended == (0, ""), ended


def until(condition: Callable[[], bool], limit_s: float = 10) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
