"""``python -m chaoslab.kernel -- COMMAND ...``: runs one command in a user-mode kernel."""

import argparse
import os
import signal
import sys
from pathlib import Path

from chaoslab.kernel import KernelError, run_in_uml

NO_KERNEL_STATUS = 125
"""What env(1), timeout(1) and docker-run(1) exit with when they themselves fail."""


def main() -> int:
    """Run the command of the command line; give its exit status."""
    parser = argparse.ArgumentParser(prog="python -m chaoslab.kernel", description=__doc__)
    parser.add_argument("--memory-bytes", type=int, help="the guest's memory (usually 4 GiB)")
    parser.add_argument("--limit-s", type=float, help="kill the command after so many seconds")
    parser.add_argument("--boot-limit-s", type=float, default=60.0, help="give up booting then")
    parser.add_argument("--no-stdin", action="store_true", help="give the command no input")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND")
    asked = parser.parse_args()
    # run_in_uml passes Ctrl-C on; one more after its end must not change the exit status
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return run_in_uml(
            asked.command,
            cwd=Path.cwd(),
            env=os.environ,
            memory_bytes=asked.memory_bytes,
            stdin=None if asked.no_stdin or os.isatty(0) else 0,
            boot_limit_s=asked.boot_limit_s,
            limit_s=asked.limit_s,
        )
    except KernelError as problem:
        print(f"chaoslab.kernel: {problem}", file=sys.stderr)  # noqa: T201  a command line speaks so
        return NO_KERNEL_STATUS


if __name__ == "__main__":
    sys.exit(main())
