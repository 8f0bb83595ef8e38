"""Measured on the kernel: delay, jitter, distributions, correlation, reordering, slots, rate."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import pytest
from traffic import (
    HEADERS_BYTES,
    Z_ONE_IN_A_MILLION,
    autocorrelation,
    binomial_margin,
    deviation,
    exchange,
    mean,
)

from chaoslab.agent.distributions import mean_and_deviation, table


def kurtosis(values):
    """Fourth moment over the square of the second; 9/5 for uniform."""
    if values is None:
        return 1.8
    middle = mean(values)
    moments = [mean([(value - middle) ** power for value in values]) for power in (2, 4)]
    return moments[1] / moments[0] ** 2


def delayed(lab, agent, netem, count, *, direction="egress", interval_s=0.001, size_bytes=64):
    near, far = lab.nodes[0].udp(9000), lab.nodes[1].udp(9000)
    pair = (near, far) if direction == "egress" else (far, near)
    if interval_s == 0:
        # The agents are forks of this process: its next write to each page copies that page, in
        # user-mode Linux for 0.2 ms, and a burst must be sent faster than the measured rate.
        exchange(*pair, 200, size_bytes=size_bytes)
    agent.inject({"kind": "netem", "direction": direction, "netem": netem})
    return exchange(*pair, count, interval_s=interval_s, size_bytes=size_bytes, quiet_s=1.0)


@pytest.mark.netem
@pytest.mark.parametrize("direction", ["egress", "ingress"])
@pytest.mark.parametrize("delay_s", [0.02, 0.1])
def test_delay_is_within_five_percent(lab, agent, need, measured, delay_s, direction) -> None:  # noqa: PLR0917  # fixtures and parameters
    """One-way delay, from before the send to the kernel's receive stamp, is within 5 % of asked."""
    need("netem_delay")
    found = delayed(lab, agent, {"delay_s": delay_s}, 300, direction=direction, interval_s=0.002)
    middle = sorted(found.delays_s)[150]
    spread = (
        f"n=300, median within 5 %; min {min(found.delays_s):.5f} max {max(found.delays_s):.5f}"
    )
    measured(f"delay_s {direction} (one way)", delay_s, middle, spread)
    assert found.missing == 0
    assert min(found.delays_s) >= delay_s * 0.999
    assert middle == pytest.approx(delay_s, rel=0.05)


@pytest.mark.netem
@pytest.mark.parametrize("name", ["uniform", "normal", "pareto", "paretonormal"])
def test_jitter_has_the_mean_deviation_and_shape_of_its_distribution(
    lab, agent, need, measured, name
) -> None:
    """Mean and standard deviation follow from the table, and so do three quantiles of the shape."""
    need("netem_delay")
    delay_s, jitter_s, count = 0.1, 0.02, 2000
    netem = {"delay_s": delay_s, "jitter_s": jitter_s, "distribution": name}
    found = delayed(lab, agent, netem, count)
    values = table(name)
    offset, spread = mean_and_deviation(values)
    wanted = (delay_s + jitter_s * offset, jitter_s * spread)
    got = mean(found.delays_s), deviation(found.delays_s)
    # The spread of a sample's deviation follows from the distribution's own tails.
    margin = Z_ONE_IN_A_MILLION * math.sqrt((kurtosis(values) - 1) / (4 * count)) + 0.02
    measured(f"jitter {name}: mean_s", wanted[0], got[0], f"n={count}, within 5 %")
    measured(f"jitter {name}: deviation_s", wanted[1], got[1], f"n={count}, within {margin:.1%}")
    assert got[0] == pytest.approx(wanted[0], rel=0.05)
    assert got[1] == pytest.approx(wanted[1], rel=margin)
    ordered = sorted(found.delays_s)
    for quantile in (0.1, 0.5, 0.9):
        share = 2 * quantile - 1 if values is None else values[int(quantile * len(values))] / 8192
        asked, seen = delay_s + jitter_s * share, ordered[int(quantile * count)]
        measured(f"jitter {name}: quantile {quantile}", asked, seen, "within 15 % of the jitter")
        assert abs(seen - asked) <= 0.15 * jitter_s + 0.002


@pytest.mark.netem
def test_a_distribution_of_ones_own_is_drawn_from(lab, agent, need, measured) -> None:
    """A table of two values gives two delays, in equal shares, and none in between."""
    need("netem_delay")
    netem = {"delay_s": 0.05, "jitter_s": 0.02, "distribution": [-8192, 8192]}
    found = delayed(lab, agent, netem, 1000)
    low = sum(delay < 0.05 for delay in found.delays_s)
    measured("own table, share of the lower value", 0.5, low / 1000, "n=1000, binomial 1e-6")
    assert abs(low - 500) <= binomial_margin(1000, 0.5)
    # None comes early; a late one is the machine's doing, and there are few of them.
    assert min(found.delays_s) >= 0.03 * 0.999
    close = sum(abs(abs(delay - 0.05) - 0.02) < 0.012 for delay in found.delays_s)
    measured("own table, share near one of its values", 1.0, close / 1000, "n=1000, over 0.95")
    assert close > 950


@pytest.mark.netem
def test_delay_correlation_has_no_effect_and_the_evidence_says_so(
    lab, agent, need, measured
) -> None:
    """The kernel keeps the attribute, a modulo undoes it; a failure is a mended kernel."""
    need("netem_delay")
    netem = {"delay_s": 0.1, "jitter_s": 0.05, "delay_correlation_ratio": 0.5}
    fault = {"kind": "netem", "direction": "egress", "netem": netem}
    evidence = agent.inject(fault, "first")["evidence"]["egress"]
    agent.heal("first")
    assert "has no effect" in evidence["caveats"][0]
    found = delayed(lab, agent, netem, 2000)
    seen = autocorrelation(found.delays_by_number())
    measured("delay_correlation_ratio 0.5: lag-1 correlation", "none", seen, "n=2000, within 0.11")
    assert abs(seen) <= 0.11


@pytest.mark.netem
def test_reordered_packets_overtake_in_the_asked_share(lab, agent, need, measured) -> None:
    """The share that is not delayed is the one asked for, and it overtakes."""
    need("netem_reorder")
    found = delayed(lab, agent, {"delay_s": 0.05, "reorder_ratio": 0.25}, 2000)
    early = sum(delay < 0.025 for delay in found.delays_s)
    measured("reorder_ratio: share sent at once", 0.25, early / 2000, "n=2000, binomial 1e-6")
    assert abs(early - 500) <= binomial_margin(2000, 0.25)
    assert found.numbers != sorted(found.numbers)


@pytest.mark.netem
def test_a_gap_reorders_every_nth_packet(lab, agent, need, measured) -> None:
    """A gap of 5 sends every fifth packet at once."""
    need("netem_reorder")
    found = delayed(lab, agent, {"delay_s": 0.05, "gap": 5}, 1000)
    early = sum(delay < 0.025 for delay in found.delays_s)
    measured("gap 5: share sent at once", 0.2, early / 1000, "n=1000, within 0.01")
    assert abs(early / 1000 - 0.2) <= 0.01


def packets_per_s(arrivals_s):
    """Rate of a burst: the median over all pairs that are half of it apart.

    A moment in which the machine stands still moves few of the pairs, but any one of the ends.
    """
    half = len(arrivals_s) // 2
    pairs = zip(arrivals_s[:half], arrivals_s[half : 2 * half], strict=True)
    return half / statistics.median(later - earlier for earlier, later in pairs)


RATES = [
    ({"rate_bytes_per_s": 400_000}, 1000 + HEADERS_BYTES),
    ({"rate_bytes_per_s": 100_000}, 1000 + HEADERS_BYTES),
    ({"rate_bytes_per_s": 400_000, "packet_overhead_bytes": 500}, 1500 + HEADERS_BYTES),
    ({"rate_bytes_per_s": 400_000, "cell_size_bytes": 48, "cell_overhead_bytes": 5}, 22 * 53),
]


@pytest.mark.netem
@pytest.mark.parametrize(("netem", "wire_bytes"), RATES)
def test_rate_is_within_five_percent(lab, agent, need, measured, netem, wire_bytes) -> None:  # noqa: PLR0917  # fixtures and parameters
    """The spacing of a burst at the receiver is the packet's size on the wire over the rate."""
    need("rate")
    count = 200
    found = delayed(lab, agent, netem, count, interval_s=0, size_bytes=1000)
    seen = wire_bytes * packets_per_s(found.arrivals_s)
    measured(f"rate {netem}", netem["rate_bytes_per_s"], seen, f"n={count}, within 5 %")
    assert found.missing == 0
    assert seen == pytest.approx(netem["rate_bytes_per_s"], rel=0.05)


@pytest.mark.netem
@pytest.mark.parametrize(
    ("slot", "mean_s"),
    [
        ({"min_delay_s": 0.03, "max_delay_s": 0.05}, 0.04),
        ({"distribution": "normal", "delay_s": 0.04, "jitter_s": 0.005}, 0.04),
    ],
)
def test_slots_release_packets_in_bunches(lab, agent, need, measured, slot, mean_s) -> None:  # noqa: PLR0917  # fixtures and parameters
    """Packets sent evenly arrive in bunches, as far apart as the slots."""
    need("netem_slot")
    found = delayed(lab, agent, {"slot": slot}, 1500)
    arrivals = sorted(found.arrivals_s)
    # A new bunch begins after a silence: packets come every 1 ms, slots every 40 ms.
    starts = [b for a, b in pairwise(arrivals) if b - a > mean_s / 2.5]
    gaps = [b - a for a, b in pairwise(starts)]
    measured(f"slot {slot}: mean gap_s", mean_s, mean(gaps), f"{len(gaps)} gaps, within 15 %")
    assert found.missing == 0
    assert mean(gaps) == pytest.approx(mean_s, rel=0.15)


@pytest.mark.netem
def test_slots_release_no_more_than_the_asked_packets(lab, agent, need, measured) -> None:
    """A slot of 10 packets every 50 ms passes 200 packets a second."""
    need("netem_slot")
    slot = {"min_delay_s": 0.05, "max_delay_s": 0.05, "packets": 10}
    found = delayed(lab, agent, {"slot": slot}, 200, interval_s=0)
    seen = packets_per_s(found.arrivals_s)
    measured("slot of 10 packets: packets a second", 200, seen, "within 10 %")
    assert seen == pytest.approx(200, rel=0.10)
