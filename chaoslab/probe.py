"""Events and hold points inside the training process: stdlib only, never raises into the job."""

import json
import os
import time
from typing import Any

HOLD_LIMIT_S = 30.0
"""A held write goes on by itself after this long."""

_PLACE = (("rank", "RANK"), ("node", "CHAOSLAB_NODE"), ("incarnation", "CHAOSLAB_INCARNATION"))
_encode = json.JSONEncoder(default=repr, separators=(",", ":")).encode
_state: dict[str, Any] = {}


def _reset() -> None:  # a forked child is another rank: its own file, its own counts
    _state.update(fd=-1, place="", lost=0, torn=False, saves=0, save_bytes=0)


_reset()
os.register_at_fork(after_in_child=_reset)


def emit(kind: str, **fields: object) -> None:
    """Append one event line, in one write, to the file that CHAOSLAB_EVENTS names, if any.

    The environment is read at this process's first event. An event that cannot be written is
    counted, and told later as `events_lost` (count).
    """
    try:
        if _state["fd"] < 0:
            if not (path := os.environ.get("CHAOSLAB_EVENTS")):
                return
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            _state["place"] = _encode({n: int(os.environ.get(k) or 0) for n, k in _PLACE})[1:-1]
            _state["fd"] = os.open(path, flags, 0o644)
        if _state["lost"]:
            _append("events_lost", {"count": _state["lost"]})
            _state["lost"] = 0
        _append(kind, fields)
    except Exception:  # noqa: BLE001 - a full disk or an odd field costs an event, never the job
        _state["lost"] += 1


def _append(kind: str, fields: dict[str, object]) -> None:
    start = "\n" if _state["torn"] else ""  # ends a line that a full disk cut short
    head = f'{start}{{"t_s":{time.monotonic():.6f},"kind":"{kind}",{_state["place"]}'
    line = f"{head},{_encode(fields)[1:]}\n" if fields else f"{head}}}\n"
    done = os.write(_state["fd"], line.encode())
    _state["torn"] = done != len(line)  # the encoder gives ASCII: one byte a character
    if _state["torn"]:
        raise OSError(f"event cut after {done} of {len(line)} bytes")


class watched:  # noqa: N801 - reads as a verb: with watched(open(path, "wb")) as file
    """A writable binary file that counts its writes and stops half-way in one, where told.

    CHAOSLAB_HOLD tells: [{"point":"save","nth":2,"at_write":5}], or "at_ratio":0.5 of the bytes
    of this process's previous save. nth and at_write are 1-based; nth counts this process's
    saves. The file goes on once CHAOSLAB_EVENTS + ".release" exists, or after HOLD_LIMIT_S.
    """

    def __init__(self, file: Any, nth: int | None = None) -> None:
        self._file, self.writes, self.written_bytes = file, 0, 0
        _state["saves"] = self.nth = nth or _state["saves"] + 1
        self._before_bytes, _state["save_bytes"] = _state["save_bytes"], 0
        told = os.environ.get("CHAOSLAB_HOLD") if os.environ.get("CHAOSLAB_EVENTS") else None
        self._holds, here = [], ("save", self.nth)
        try:
            holds = [h for h in json.loads(told or "[]") if (h["point"], h["nth"]) == here]
            self._holds = [(h.get("at_write"), float(h.get("at_ratio", "inf"))) for h in holds]
        except (ValueError, TypeError, KeyError, AttributeError):
            emit("malformed", name="CHAOSLAB_HOLD", value=told)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any) -> int:
        """Write as the file does; where a hold is due, stop after half of these bytes."""
        self.writes += 1
        view, done = memoryview(data), 0
        ratio = (self.written_bytes + view.nbytes) / (self._before_bytes or float("nan"))
        if any(self.writes == at_write or ratio >= at for at_write, at in self._holds):
            self._holds, view = [], view.cast("B")
            done = self._file.write(view[: len(view) // 2])
            self._file.flush()
            self._hold(done)
        done += self._file.write(view[done:] if done else view)
        self.written_bytes = _state["save_bytes"] = self.written_bytes + done
        return int(done)

    def _hold(self, half_bytes: int) -> None:
        at = {"point": "save", "nth": self.nth, "write_index": self.writes - 1}
        emit("held", **at, bytes=self.written_bytes + half_bytes)
        release, start_s = os.environ["CHAOSLAB_EVENTS"] + ".release", time.monotonic()
        while not os.path.exists(release):  # noqa: PTH110 - pathlib costs an import
            if time.monotonic() - start_s > HOLD_LIMIT_S:
                return emit("hold_expired", **at)
            time.sleep(0.001)
        return os.unlink(release)  # noqa: PTH108 - so that the next hold holds
