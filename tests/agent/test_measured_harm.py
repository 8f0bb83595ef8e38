"""Measured: what a fault does to those it does not concern (nothing), and how soon it bites."""

from __future__ import annotations

import os
import signal
import statistics
import struct
import time

import pytest

CYCLES = 200


def steady_flow(sender, target, ready_fd: int) -> int:
    """Send 1000 numbered packets a second until SIGTERM; return how many were sent."""
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    os.write(ready_fd, b"r")
    count, next_s = 0, time.monotonic()
    while not stop:
        sender.sendto(struct.pack("!I", count), target)
        count += 1
        next_s += 0.001
        time.sleep(max(0.0, next_s - time.monotonic()))
    return count


def drained(receiver) -> int:
    receiver.settimeout(0.5)
    count = 0
    while True:
        try:
            receiver.recv(64)
        except TimeoutError:
            return count
        count += 1


@pytest.mark.parametrize("kind", ["silent_drop", pytest.param("netem", marks=pytest.mark.netem)])
def test_no_bystander_packet_is_lost_over_200_cycles(lab, agent, need, measured, kind) -> None:
    """A 1 kHz flow each way to a spared node loses nothing at inject, heal and removal."""
    need(kind)
    near, spared = lab.nodes[0].udp(9000), lab.nodes[2].udp(9000)
    children = []
    for sender, receiver in ((near, spared), (spared, near)):
        ready, ready_child = os.pipe()
        out, out_child = os.pipe()
        pid = os.fork()
        if pid == 0:
            count = steady_flow(sender, receiver.getsockname(), ready_child)
            os.write(out_child, struct.pack("!I", count))
            os._exit(0)
        assert os.read(ready, 1) == b"r"
        children.append((pid, out, receiver))
        for fd in (ready, ready_child, out_child):
            os.close(fd)
    fault = {"kind": kind, "direction": "both", "peers": [lab.nodes[1].address]}
    if kind == "netem":
        fault["netem"] = {"delay_s": 0.02, "loss_ratio": 0.5}
    hit = lab.nodes[0].udp()
    for cycle in range(CYCLES):
        agent.inject(fault, f"f{cycle}")
        hit.sendto(b"into the fault", (lab.nodes[1].address, 9))
        agent.heal(f"f{cycle}")
    sent, lost = 0, 0
    for pid, _, _ in children:
        os.kill(pid, signal.SIGTERM)
    for pid, out, receiver in children:
        os.waitpid(pid, 0)
        (count,) = struct.unpack("!I", os.read(out, 4))
        os.close(out)
        sent, lost = sent + count, lost + count - drained(receiver)
    measured(f"bystander packets lost in {CYCLES} {kind} cycles", 0, lost, f"of {sent} sent, none")
    assert sent > 500
    assert lost == 0
    assert agent.healed("none", drained=True)["healed"]
    assert agent.ask("pristine")["pristine"]


FAULTS = {
    "silent_drop egress": {"kind": "silent_drop", "direction": "egress"},
    "silent_drop both": {"kind": "silent_drop", "direction": "both"},
    "link_down": {"kind": "link_down"},
    "loss 0.2 egress": {"kind": "netem", "direction": "egress", "netem": {"loss_ratio": 0.2}},
    "loss 0.2 both": {"kind": "netem", "direction": "both", "netem": {"loss_ratio": 0.2}},
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.netem] if "loss" in name else []) for name in FAULTS],
)
def test_the_time_from_inject_to_effect_is_measured(lab, agent, need, measured, name) -> None:
    """Fifty times: ask, and see the effect; the median is reported, and every one is effective."""
    need(FAULTS[name]["kind"])
    peer, effects, heals = lab.nodes[1].address, [], []
    for _ in range(50):
        begun_s = time.monotonic()
        agent.inject(FAULTS[name])
        assert agent.effective(probe_to=(peer,))["effective"]
        effects.append(time.monotonic() - begun_s)
        begun_s = time.monotonic()
        agent.heal()
        assert agent.healed(probe_to=(peer,))["healed"]
        heals.append(time.monotonic() - begun_s)
    for what, values in (("inject to effect", effects), ("heal to healed", heals)):
        middle, last = statistics.median(values), max(values)
        measured(f"{name}: {what}, s", "-", middle, f"median of 50, max {last:.4f}")
