"""A job without training: it counts, says so, and does what its arguments ask.

For tests of the harness alone, where a model would only cost time.
"""

import argparse
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from chaoslab import probe


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--step-s", type=float, default=0.01)
    parser.add_argument("--silent-after", type=int, default=None)
    parser.add_argument("--garbage-at", type=int, default=None)
    parser.add_argument("--orphan", action="store_true")
    parser.add_argument("--child-of", type=int, default=None)
    parser.add_argument("--kill-at", type=int, default=None)
    parser.add_argument("--kill-pid", type=int, default=None)
    parser.add_argument("--touch", type=Path, default=None, help="made after 5 steps")
    parser.add_argument("--wreck-at", type=int, default=None)
    parser.add_argument("--crash", action="store_true")
    parser.add_argument("--hang", action="store_true")
    parser.add_argument("--catch", type=int, default=None, help="a signal that does nothing")
    parser.add_argument("--ignore", type=int, default=None, help="a signal that is ignored")
    return parser.parse_args()


def main() -> int:  # noqa: C901, PLR0912  one flat story
    chosen = parse()
    if chosen.crash:
        raise RuntimeError("planted crash")
    if chosen.hang:
        time.sleep(600)
    first_life = os.environ["CHAOSLAB_INCARNATION"] == "0"
    if first_life and os.environ["RANK"] == str(chosen.child_of) and os.fork() == 0:
        os.setsid()
        time.sleep(60)
        os._exit(0)
    if chosen.catch is not None:
        signal.signal(chosen.catch, lambda *_: None)
    if chosen.ignore is not None:
        signal.signal(chosen.ignore, signal.SIG_IGN)
    probe.emit("rank_started", pid=os.getpid())
    for step in range(1, chosen.steps + 1):
        time.sleep(chosen.step_s)
        if step == chosen.garbage_at:
            with Path(os.environ["CHAOSLAB_EVENTS"]).open("ab") as events:
                events.write(b'{"kind": "step", "t_s"\n')
        if step == chosen.kill_at and os.environ["RANK"] == "0":
            os.kill(chosen.kill_pid, signal.SIGKILL)
        if step == 5 and chosen.touch is not None:
            chosen.touch.touch()
        if step == chosen.wreck_at and os.environ["RANK"] == "0":
            shutil.rmtree(Path(os.environ["CHAOSLAB_EVENTS"]).parent)
            return 1
        if chosen.silent_after is not None and step > chosen.silent_after:
            continue
        probe.emit("step", step=step, loss=1.0 / step)
    if chosen.orphan and os.fork() == 0:
        os.setsid()
        time.sleep(60)
    if chosen.silent_after is None:
        probe.emit("rank_exited", status=0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
