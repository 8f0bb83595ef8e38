"""The agent's loop: requests, waits, leases and signals, in one thread."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import TYPE_CHECKING, Final

from chaoslab.agent import wire
from chaoslab.agent.capabilities import probe
from chaoslab.agent.channel import Channel, parse_request
from chaoslab.agent.effect import Pause, wait_effective
from chaoslab.agent.errors import AgentError, bad_request
from chaoslab.agent.faults import parse_fault
from chaoslab.agent.healed import wait_healed
from chaoslab.agent.netlink import Netlink
from chaoslab.agent.node import Node
from chaoslab.agent.pyroute import open_iproute

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaoslab.agent.effect import Wait
    from chaoslab.agent.node import Json

_LONGEST_WAIT_S: Final = 3600.0
_LAST_WORDS_S: Final = 1.0
_DRAIN_AT_EXIT_S: Final = 1.0
_PREFIX_BITS: Final = 32


class Agent:
    """Serves one channel until its end, a signal, or a shutdown; then heals everything."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._netlink = Netlink()
        self._iproute = open_iproute()
        self._node = Node(self._netlink, self._iproute)
        self._waits: dict[object, tuple[Wait, Pause]] = {}
        self._stop = False
        self._ops: dict[str, Callable[[Json], Json | Wait]] = {
            "setup": self._op_setup,
            "probe": lambda _: probe(self._netlink, self._iproute),
            "inject": self._op_inject,
            "wait_effective": self._op_wait_effective,
            "heal": lambda given: self._node.heal(wire.text(given, "fault_id")),
            "wait_healed": self._op_wait_healed,
            "renew": self._op_renew,
            "counters": self._op_counters,
            "pristine": lambda asked: self._node.pristine(over=bool(asked.get("over"))),
            "heal_all": lambda _: {"healed": self._heal_all()},
            "shutdown": self._op_shutdown,
        }

    def serve(self) -> int:
        """Answer until the channel ends or a signal comes; return 0, or 1 when a heal failed."""
        wake_fd, restore_signals = _catch_signals()
        try:
            self._event({"event": "ready"})
            while not (self._stop or self._channel.closed):
                self._turn(wake_fd)
        finally:
            status = self._finish()
            restore_signals()
        return status

    def _turn(self, wake_fd: int) -> None:
        fds = [self._channel.stdin_fd, wake_fd]
        fds += [fd for _, pause in self._waits.values() for fd in pause.fds]
        writers = [self._channel.stdout_fd] if self._channel.has_output else []
        readable, writable, _ = select.select(fds, writers, [], self._sleep_s())
        if writable:
            self._channel.flush_some()
        if wake_fd in readable:
            self._stop = True
            return
        if self._channel.stdin_fd in readable:
            for line in self._channel.read():
                self._serve_line(line)
        self._tick()
        self._resume(set(readable))

    def _sleep_s(self) -> float | None:
        times = [pause.until_s for _, pause in self._waits.values()]
        due_s = self._node.due_s()
        times += [due_s] if due_s is not None else []
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _tick(self) -> None:
        try:
            for event in self._node.tick(time.monotonic()):
                self._event(event)
        except (AgentError, OSError) as error:
            self._event({"event": "failed", "message": str(error)})

    def _resume(self, readable: set[int]) -> None:
        now_s = time.monotonic()
        for key, (wait, pause) in list(self._waits.items()):
            if now_s >= pause.until_s or readable & set(pause.fds):
                del self._waits[key]
                self._answer(key, lambda wait=wait: wait)  # type: ignore[misc]  # bound on purpose

    def _serve_line(self, line: bytes | None) -> None:
        key: object = None
        try:
            request = parse_request(line)
            key = request.get("id")
            op = wire.text(request, "op")
            if op not in self._ops:
                raise bad_request(f"op={op!r}: want one of {', '.join(sorted(self._ops))}")
            if isinstance(key, bool) or not isinstance(key, int | str):
                key, given = None, key
                raise bad_request(f"id={given!r}: want a number or text")
        except AgentError as error:
            self._refuse(key, error)
            return
        self._answer(key, lambda: self._ops[op](request))

    def _answer(self, key: object, produce: Callable[[], Json | Wait]) -> None:
        """Answer a request, or put its wait aside until it has something to say."""
        try:
            found = produce()
            if not isinstance(found, dict):
                while True:
                    pause = next(found)
                    if pause.until_s > time.monotonic():
                        self._waits[key] = (found, pause)
                        return
        except StopIteration as done:
            found = done.value
        except AgentError as error:
            self._refuse(key, error)
            return
        except Exception as error:  # noqa: BLE001  # one bad request must not end the agent
            self._refuse(key, AgentError("failed", f"{type(error).__name__}: {error}"))
            return
        self._channel.write({"id": key, "ok": True, **found})

    def _refuse(self, key: object, error: AgentError) -> None:
        said = {"kind": error.kind, "message": error.message}
        key = key if isinstance(key, int | str) else None
        self._channel.write({"id": key, "ok": False, "error": said})

    def _event(self, event: Json) -> None:
        self._channel.write({"t_s": time.monotonic(), **event})

    def _op_setup(self, given: Json) -> Json:
        (address,) = wire.addresses({"address": [given.get("address")]}, "address")
        prefix = wire.whole(given, "prefix_length", 24, low=1, high=_PREFIX_BITS)
        return self._node.set_up(wire.text(given, "interface", "eth0"), address, prefix)

    def _op_inject(self, given: Json) -> Json:
        fault_id, lease_s = wire.text(given, "fault_id"), wire.number(given, "lease_s", None)
        fault = parse_fault(wire.mapping(given.get("fault"), "fault"))
        return self._node.inject(fault_id, lease_s, fault)

    def _op_wait_effective(self, given: Json) -> Wait:
        injection = self._node.injection(wire.text(given, "fault_id"))
        probe_to = wire.addresses(given, "probe_to")
        wait = wait_effective(self._node, injection, _timeout_s(given), probe_to)
        return self._while_in_force(injection.fault_id, wait)

    def _while_in_force(self, fault_id: str, wait: Wait) -> Wait:
        """End the wait when the fault is healed meanwhile, by a request or its lease."""
        injection = self._node.injections.get(fault_id)
        while self._node.injections.get(fault_id) is injection:
            try:
                yield next(wait)
            except StopIteration as done:
                found: Json = done.value
                return found
        wait.close()
        return {"effective": False, "missing": "the fault was healed before its effect was seen"}

    def _op_wait_healed(self, given: Json) -> Wait:
        return wait_healed(
            self._node,
            wire.text(given, "fault_id"),
            _timeout_s(given),
            wire.addresses(given, "probe_to"),
            drained=given.get("drained") is True,
        )

    def _op_renew(self, given: Json) -> Json:
        return self._node.renew(wire.text(given, "fault_id"), wire.number(given, "lease_s", None))

    def _op_counters(self, given: Json) -> Json:
        chosen = given.get("fault_id")
        found = self._node.injections.values()
        if chosen is not None:
            found = {"": self._node.injection(wire.text(given, "fault_id"))}.values()
        return {"counters": {item.fault_id: self._node.counters_of(item) for item in found}}

    def _heal_all(self) -> list[str]:
        healed = self._node.heal_all()
        self._event({"event": "healed_all", "faults": healed})
        return healed

    def _op_shutdown(self, _: Json) -> Json:
        self._stop = True
        return {"healed": self._heal_all()}

    def _finish(self) -> int:
        """Heal everything, give the queues a second to drain; return the exit status."""
        for wait, _ in self._waits.values():
            wait.close()
        try:
            if self._node.injections:
                self._heal_all()
            _drain(self._node)
        except (AgentError, OSError) as error:
            self._event({"event": "failed", "message": str(error)})
            return 1
        finally:
            self._netlink.close()
            self._iproute.close()
            self._last_words()
        return 0

    def _last_words(self) -> None:
        end_s = time.monotonic() + _LAST_WORDS_S
        while self._channel.has_output and time.monotonic() < end_s:
            if select.select([], [self._channel.stdout_fd], [], _LAST_WORDS_S)[1]:
                self._channel.flush_some()


def _drain(node: Node) -> None:
    end_s = time.monotonic() + _DRAIN_AT_EXIT_S
    while node.ready and node.draining_packets and time.monotonic() < end_s:
        time.sleep(0.01)
        node.drain(time.monotonic())
    if node.ready:
        node.drain(float("inf"))


def _timeout_s(given: Json) -> float:
    return wire.number(given, "timeout_s", None, high=_LONGEST_WAIT_S)


def _catch_signals() -> tuple[int, Callable[[], None]]:
    """Turn SIGTERM and SIGINT into a readable descriptor; return it and what undoes that."""
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    previous_fd = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = [signal.signal(number, lambda *_: None) for number in numbers]

    def restore() -> None:
        signal.set_wakeup_fd(previous_fd)
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)
        os.close(read_fd)
        os.close(write_fd)

    return read_fd, restore
