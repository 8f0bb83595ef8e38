"""Standby: a process per rank that has imported everything, and takes over when the rank dies.

    python -m chaoslab.resilience.standby [--restarts N] [--healthy-s S] train.py [ARGS...]

in place of `python train.py ARGS...`. It imports torch and what train.py imports at its top, then
forks the rank. When the rank dies, it forks the next one at once: a fraction of a second, where
a fresh interpreter needs seconds for `import torch`. A rank that ends with status 0, or with the
circuit-open status, has had the last word: the standby leaves with the same status.

Whatever else a rank dies of, an error of its own included, which a standby cannot tell from a
peer's, it is taken over. Each retry but the first backs off. Restarts are bounded, and refill once
a rank has lived for `healthy_s`. The rank's environment says its incarnation
(CHAOSLAB_INCARNATION). A rank cannot outlive its standby; its own children (data loaders, say) go
when it does, or is taken over.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import ctypes
import dataclasses
import importlib
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

from chaoslab.resilience import preload
from chaoslab.resilience.backoff import Backoff
from chaoslab.resilience.breaker import CIRCUIT_OPEN_STATUS

INCARNATION: Final = "CHAOSLAB_INCARNATION"
FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
KILLED_BY_ITS_TIMER: Final = 128 + signal.SIGALRM
"""A rank that had given up and could not end by itself: see `leaving`."""

_PR_SET_PDEATHSIG: Final = 1
"""Source: linux/prctl.h."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """How often a standby takes over.

    restarts: takeovers in a row at most. healthy_s: a rank that lived this long, in seconds, gives
    all of them back. backoff: the wait before each takeover in a row but the first.
    """

    restarts: int = 10
    healthy_s: float = 60.0
    backoff: Backoff = dataclasses.field(default_factory=lambda: Backoff(base_s=0.5, cap_s=30.0))

    def __post_init__(self) -> None:
        """Refuse values out of range. Raises: ValueError."""
        if self.restarts < 0 or not self.healthy_s > 0:
            raise ValueError(
                f"Policy(restarts={self.restarts}, healthy_s={self.healthy_s}): "
                "want restarts >= 0 and healthy_s > 0"
            )


class Standby:
    """Runs one rank after the other from one warm process, which must have a single thread."""

    def __init__(self, script: str, arguments: list[str], policy: Policy) -> None:
        self._script, self._arguments, self._policy = script, arguments, policy
        self._rank_pid: int | None = None
        self._ending = False
        self._first = int(os.environ.get(INCARNATION) or 0)

    def run(self) -> int:
        """Run ranks until one has had the last word; give the exit status for the scheduler."""
        for number in FORWARDED:
            signal.signal(number, self._forward)
        taken, in_a_row = 0, 0
        while True:
            started_s = time.monotonic()
            status = self._live(self._first + taken)
            if status == KILLED_BY_ITS_TIMER:
                return CIRCUIT_OPEN_STATUS
            if status in (0, CIRCUIT_OPEN_STATUS) or self._ending:
                return status
            if time.monotonic() - started_s >= self._policy.healthy_s:
                in_a_row = 0
            if in_a_row >= self._policy.restarts:
                _say(f"the rank {_tell(status)}; it was the last of {in_a_row} takeovers in a row")
                return status
            wait_s = self._policy.backoff.wait_s(in_a_row - 1) if in_a_row else 0.0
            taken, in_a_row = taken + 1, in_a_row + 1
            limit = self._policy.restarts
            _say(f"the rank {_tell(status)}; takeover {in_a_row} of {limit} in {wait_s:.2f} s")
            self._pause(wait_s)
            if self._ending:
                return status

    def _live(self, incarnation: int) -> int:
        """Fork a rank and wait for its end; give its status, 128 + n for a signal."""
        standby = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal between the fork and the note of its pid would be lost.
        with _signals_held():
            pid = os.fork()
            if pid == 0:
                self._become(incarnation, standby)
            self._rank_pid = pid
        # WNOWAIT: while the rank is not reaped, its pid, and its group's, can be nobody else's.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # its loader processes, say
        with _signals_held():
            self._rank_pid = None
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return code if code >= 0 else 128 - code

    def _become(self, incarnation: int, standby: int) -> NoReturn:
        """Turn this fork into the rank."""
        status = 1
        try:
            os.setpgid(0, 0)
            _die_with(standby)
            for number in FORWARDED:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            os.environ[INCARNATION] = str(incarnation)
            sys.argv[:] = [self._script, *self._arguments]
            status = run_main(self._script)
        except BaseException:  # noqa: BLE001  the outermost frame of this process
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _forward(self, number: int, _: object) -> None:
        self._ending = self._ending or number in ENDING
        if self._rank_pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._rank_pid, number)

    def _pause(self, wait_s: float) -> None:
        """Wait, but not through a request to end."""
        deadline_s = time.monotonic() + wait_s
        while not self._ending and (left_s := deadline_s - time.monotonic()) > 0:
            time.sleep(min(left_s, 0.1))


def run_main(script: str) -> int:
    """Run a script as __main__ in this process, as `python SCRIPT` does; give its exit status."""
    status = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            sys.stderr.write(f"{leaving.code}\n")
        status = leaving.code & 0xFF if isinstance(leaving.code, int) else int(bool(leaving.code))
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except BaseException:  # noqa: BLE001  what `python SCRIPT` does with it
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  as the interpreter does
    return status


def imports_of(source: str) -> list[tuple[str, tuple[str, ...]]]:
    """List what a script imports at its top level: (module, names taken from it).

    Also inside `try`, `with` and `if`, but `if TYPE_CHECKING`. Relative imports, of which a script
    has none, are left out. Raises: SyntaxError.
    """
    found: list[tuple[str, tuple[str, ...]]] = []
    waiting: list[ast.stmt] = list(ast.parse(source).body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.Import):
            found += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append((node.module, tuple(alias.name for alias in node.names)))
        elif isinstance(node, ast.If | ast.Try | ast.With) and not _is_for_types(node):
            waiting[0:0] = [part for part in ast.iter_child_nodes(node) if _is_statement(part)]  # type: ignore[misc]
    return found


def _is_statement(node: ast.AST) -> bool:
    return isinstance(node, ast.stmt)


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def import_for(script: str) -> list[str]:
    """Import torch, and what the script imports at its top. Returns what failed, in words.

    A failure here is none of the script's: it may guard that import, or it says so itself.
    """
    preload.warm()
    sys.path[0:0] = [str(Path(script).resolve().parent)]
    try:
        wanted = imports_of(Path(script).read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as problem:
        return [f"{script}: {problem}"]
    problems = []
    for module, names in wanted:
        try:
            loaded = importlib.import_module(module)
            for name in names:
                if name != "*" and not hasattr(loaded, name):
                    importlib.import_module(f"{module}.{name}")
        except Exception as problem:  # noqa: BLE001  whatever a module's own code raises
            problems.append(f"import {module}: {type(problem).__name__}: {problem}")
    return problems


def threads() -> list[str]:
    """Name the threads of this process; a fork is safe where there is but one."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            names.append((task / "comm").read_text(encoding="utf-8").strip())
    return names


def _die_with(standby: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != standby:  # it had ended before that
        os._exit(128 + signal.SIGKILL)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _tell(status: int) -> str:
    if status <= 128:  # noqa: PLR2004  128 + n: ended by signal n
        return f"ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(status - 128).name}"
    return f"ended with status {status}"


def _say(text: str) -> None:
    sys.stderr.write(f"standby: {text}\n")
    sys.stderr.flush()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line. Raises: SystemExit."""
    parser = argparse.ArgumentParser(
        prog="python -m chaoslab.resilience.standby",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--restarts", type=int, default=10, metavar="N", help="takeovers in a row")
    how = "a rank that lived this long gives all of them back"
    parser.add_argument("--healthy-s", type=float, default=60.0, metavar="S", help=how)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    chosen = parser.parse_args(arguments)
    if not Path(chosen.script).is_file():
        parser.error(f"{chosen.script}: want a Python script, and there is none")
    return chosen


def main(arguments: list[str] | None = None) -> int:
    """Import, then run ranks; give the exit status."""
    chosen = parse(arguments)
    seed = int(os.environ.get("RANK") or 0)
    backoff = Backoff(base_s=0.5, cap_s=30.0, seed=seed)
    try:
        policy = Policy(restarts=chosen.restarts, healthy_s=chosen.healthy_s, backoff=backoff)
    except ValueError as problem:
        raise SystemExit(f"standby: {problem}") from problem
    for problem_text in import_for(chosen.script):
        _say(f"not imported in advance: {problem_text}")
    if len(running := threads()) > 1:
        raise SystemExit(
            f"standby: an import of {chosen.script} has started threads ({', '.join(running)}): a "
            "fork would lose them; start them in main(), or run the script without a standby"
        )
    return Standby(chosen.script, chosen.arguments, policy).run()


if __name__ == "__main__":
    sys.exit(main())
