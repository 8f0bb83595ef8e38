"""Measured on the kernel: every loss model of netem against what was asked."""

from __future__ import annotations

import random

import pytest
from traffic import Z_ONE_IN_A_MILLION, binomial_margin, deviation, exchange, mean

from chaoslab.agent.netem_value import FourState, GilbertElliott

COUNT = 10_000


def lossy(lab, agent, netem, count=COUNT, direction="egress"):
    agent.inject({"kind": "netem", "direction": direction, "netem": netem})
    outward = direction == "egress"
    near, far = lab.nodes[0].udp(9000), lab.nodes[1].udp(9000)
    found = exchange(near if outward else far, far if outward else near, count)
    return found, agent.ask("counters")["counters"]["f"][direction]


@pytest.mark.netem
@pytest.mark.parametrize("direction", ["egress", "ingress"])
@pytest.mark.parametrize("ratio", [0.01, 0.2])
def test_independent_loss_is_as_asked(lab, agent, need, measured, ratio, direction) -> None:  # noqa: PLR0917  # fixtures and parameters
    """The packets lost are within the binomial bound of what was asked, and the counter agrees."""
    need("netem")
    found, counters = lossy(lab, agent, {"loss_ratio": ratio}, direction=direction)
    margin = binomial_margin(COUNT, ratio)
    judged = f"n={COUNT}, within {margin / COUNT:.4f} (1e-6)"
    measured(f"loss_ratio {direction}", ratio, found.missing / COUNT, judged)
    assert abs(found.missing - COUNT * ratio) <= margin
    assert (
        abs(counters["drops"] - found.missing) <= 5
    )  # a stray ARP or IPv6 packet may be dropped, too


@pytest.mark.netem
@pytest.mark.parametrize(
    "model",
    [
        {"p": 0.02, "r": 0.2},
        {"p": 0.05, "r": 0.25, "h": 0.3, "k": 0.99},
    ],
)
def test_gilbert_elliott_loss_and_bursts_are_as_asked(lab, agent, need, measured, model) -> None:
    """Stationary loss and mean burst length follow from p, r, h and k as documented."""
    need("netem_loss_gemodel")
    found, _ = lossy(lab, agent, {"gemodel": model}, count=2 * COUNT)
    value = GilbertElliott(**model)
    eigen = 1 - value.p - value.r
    margin = binomial_margin(2 * COUNT, value.loss_ratio, (1 + eigen) / (1 - eigen))
    judged = f"n={2 * COUNT}, within {margin / 2 / COUNT:.4f} (1e-6, correlated)"
    measured(f"gemodel {model} loss", value.loss_ratio, found.missing / 2 / COUNT, judged)
    assert abs(found.missing - 2 * COUNT * value.loss_ratio) <= margin
    if value.h == 0:
        bursts = found.bursts()
        asked = 1 / value.r
        spread = Z_ONE_IN_A_MILLION * asked * (1 - value.r) ** 0.5 / len(bursts) ** 0.5
        measured(
            f"gemodel {model} burst", asked, mean(bursts), f"{len(bursts)} bursts +-{spread:.2f}"
        )
        assert abs(mean(bursts) - asked) <= spread


@pytest.mark.netem
def test_four_state_loss_and_bursts_are_as_asked(lab, agent, need, measured) -> None:
    """Stationary loss and mean burst length follow from the chain's balance equations."""
    need("netem_loss_state4")
    model = {"p13": 0.02, "p31": 0.2, "p32": 0.1, "p23": 0.4, "p14": 0.01}
    value = FourState(**model)
    found, _ = lossy(lab, agent, {"state4": model}, count=2 * COUNT)
    runs = [simulate_four_state(value, 2 * COUNT, seed) for seed in range(30)]
    margin = Z_ONE_IN_A_MILLION * deviation(runs)
    judged = f"n={2 * COUNT}, within {margin / 2 / COUNT:.4f} (simulated spread)"
    measured("state4 loss", value.loss_ratio, found.missing / 2 / COUNT, judged)
    assert abs(found.missing - 2 * COUNT * value.loss_ratio) <= margin
    burst = mean(found.bursts())
    measured("state4 burst", value.mean_burst_packets, burst, "within 15 %")
    assert burst == pytest.approx(value.mean_burst_packets, rel=0.15)


def simulate_four_state(value: FourState, count: int, seed: int) -> float:
    draw, state, lost = random.Random(seed), 1, 0
    for _ in range(count):
        x = draw.random()
        if state == 1:
            state = 4 if x < value.p14 else 3 if x < value.p14 + value.p13 else 1
        elif state == 2:
            state = 3 if x < value.p23 else 2
        elif state == 3:
            state = 2 if x < value.p32 else 1 if x < value.p32 + value.p31 else 3
        else:
            state = 1
        lost += state in {3, 4}
    return lost


def simulate_correlated(ratio: float, correlation: float, count: int) -> float:
    """Return what netem's own generator gives: each number mixes a fresh one and the last."""
    draw, last, hits = random.Random(1), 0.5, 0
    for _ in range(count):
        last = draw.random() * (1 - correlation) + last * correlation
        hits += last <= ratio
    return hits / count


@pytest.mark.netem
def test_correlated_loss_is_what_netems_generator_gives(lab, agent, need, measured) -> None:
    """Correlation lowers a small loss: the measured ratio is the generator's, not the asked."""
    need("netem")
    ratio, correlation = 0.3, 0.25
    asked = {"loss_ratio": ratio, "loss_correlation_ratio": correlation}
    found, _ = lossy(lab, agent, asked)
    expected = simulate_correlated(ratio, correlation, 200_000)
    margin = binomial_margin(COUNT, expected, (1 + correlation) / (1 - correlation))
    measured(f"loss {ratio} correlation {correlation}", expected, found.missing / COUNT,
             f"netem's generator, within {margin / COUNT:.4f}")  # fmt: skip
    assert abs(found.missing - COUNT * expected) <= margin


@pytest.mark.netem
def test_a_peer_filter_spares_the_bystander(lab, agent, need, measured) -> None:
    """A fault on one peer loses packets to that peer and none to another, in both directions."""
    need("netem")
    peer = lab.nodes[1].address
    agent.inject(
        {"kind": "netem", "direction": "both", "peers": [peer], "netem": {"loss_ratio": 0.5}}
    )
    near, hit, spared = lab.nodes[0].udp(9000), lab.nodes[1].udp(9000), lab.nodes[2].udp(9000)
    for what, sender, receiver, ratio in (
        ("to the peer", near, hit, 0.5),
        ("from the peer", hit, near, 0.5),
        ("to a bystander", near, spared, 0.0),
        ("from a bystander", spared, near, 0.0),
    ):
        lost = exchange(sender, receiver, 4000).missing
        margin = binomial_margin(4000, ratio) if ratio else 0
        measured(
            f"peer filter, loss {what}", ratio, lost / 4000, f"n=4000, within {margin / 4000:.4f}"
        )
        assert abs(lost - 4000 * ratio) <= margin


@pytest.mark.netem
def test_a_port_filter_spares_other_ports(lab, agent, need, measured) -> None:
    """A fault on one port loses packets of that port, at either end, and none of another."""
    need("netem")
    agent.inject(
        {"kind": "netem", "direction": "egress", "ports": [9100], "netem": {"loss_ratio": 0.5}}
    )
    near, far = lab.nodes[0], lab.nodes[1]
    for what, ours, theirs, ratio in (
        ("destination", 9000, 9100, 0.5),
        ("source", 9100, 9000, 0.5),
        ("neither", 9001, 9001, 0.0),
    ):
        lost = exchange(near.udp(ours), far.udp(theirs), 3000).missing
        margin = binomial_margin(3000, ratio) if ratio else 0
        measured(f"port filter, {what}", ratio, lost / 3000, f"n=3000, within {margin / 3000:.4f}")
        assert abs(lost - 3000 * ratio) <= margin


@pytest.mark.netem
@pytest.mark.parametrize("direction", ["egress", "ingress"])
def test_one_direction_leaves_the_other_alone(lab, agent, need, measured, direction) -> None:
    """A fault in one direction loses nothing in the other."""
    need("netem")
    agent.inject({"kind": "netem", "direction": direction, "netem": {"loss_ratio": 0.5}})
    near, far = lab.nodes[0].udp(9000), lab.nodes[1].udp(9000)
    other = exchange(far, near, 4000) if direction == "egress" else exchange(near, far, 4000)
    measured(f"loss against a fault on {direction}", 0, other.missing, "n=4000, none")
    assert other.missing == 0


@pytest.mark.netem
def test_the_computed_limit_keeps_delay_from_becoming_loss(lab, agent, need, measured) -> None:
    """5000 packets in flight under a delay all arrive; with netem's own 1000 most are dropped."""
    need("netem_delay")
    agent.inject({"kind": "netem", "direction": "egress", "netem": {"delay_s": 1.5}})
    near, far = lab.nodes[0].udp(9000), lab.nodes[1].udp(9000)
    found = exchange(near, far, 5000, quiet_s=2)
    assert found.missing == 0
    agent.heal()
    agent.inject(
        {"kind": "netem", "direction": "egress", "netem": {"delay_s": 1.5, "limit_packets": 1000}}
    )
    small = exchange(near, far, 5000, quiet_s=2)
    counters = agent.ask("counters")["counters"]["f"]["egress"]
    measured("delay 1.5 s, 5000 packets, computed limit: lost", 0, found.missing, "none")
    measured("the same at limit 1000: lost", "> 0", small.missing, "overflow_drops tells the same")
    assert small.missing > 0
    assert abs(counters["overflow_drops"] - small.missing) <= 5
