"""Measured on the kernel: duplication, corruption, and the seed."""

from __future__ import annotations

import pytest
from traffic import binomial_margin, exchange

COUNT = 8000


@pytest.mark.netem
def test_duplication_is_as_asked(lab, agent, need, measured) -> None:
    """The packets that arrive twice are within the binomial bound."""
    need("netem_duplicate")
    agent.inject({"kind": "netem", "direction": "egress", "netem": {"duplicate_ratio": 0.1}})
    found = exchange(lab.nodes[0].udp(9000), lab.nodes[1].udp(9000), COUNT)
    measured("duplicate_ratio", 0.1, found.duplicates / COUNT, f"n={COUNT}, binomial 1e-6")
    assert found.missing == 0
    assert abs(found.duplicates - COUNT * 0.1) <= binomial_margin(COUNT, 0.1)


@pytest.mark.netem
def test_corruption_is_as_asked_and_never_reaches_the_application(
    lab, agent, need, measured
) -> None:
    """A flipped bit costs the packet (checksums see it), except in the sender's MAC."""
    need("netem_corrupt")
    agent.inject({"kind": "netem", "direction": "egress", "netem": {"corrupt_ratio": 0.1}})
    found = exchange(lab.nodes[0].udp(9000), lab.nodes[1].udp(9000), COUNT, size_bytes=258)
    drops = agent.ask("counters")["counters"]["f"]["egress"]["drops"]
    measured("corrupt_ratio", 0.1, found.missing / COUNT, f"n={COUNT}, binomial 1e-6, less 6/300")
    assert drops == 0
    assert found.damaged == 0
    low, high = 0.1 * (1 - 6 / 300), 0.1
    assert found.missing >= COUNT * low - binomial_margin(COUNT, low)
    assert found.missing <= COUNT * high + binomial_margin(COUNT, high)


@pytest.mark.netem
def test_the_same_seed_loses_the_same_packets(lab, agent, need, measured) -> None:
    """Two injections with one seed drop the same numbers; another seed drops others."""
    need("netem_seed")
    lost = []
    for seed in (7, 7, 8):
        peer = lab.nodes[1].address
        netem = {"loss_ratio": 0.3, "seed": seed}
        agent.inject({"kind": "netem", "direction": "egress", "peers": [peer], "netem": netem})
        found = exchange(lab.nodes[0].udp(9000), lab.nodes[1].udp(9000), 500)
        lost.append(set(range(500)) - set(found.numbers))
        agent.heal()
    measured("seed: same packets lost", "same", "same" if lost[0] == lost[1] else "others", "n=500")
    assert lost[0] == lost[1]
    assert lost[0] != lost[2]
