"""netem's encoding: what goes in comes out, whatever it is."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from chaoslab.agent import netem
from chaoslab.agent.distributions import mean_and_deviation, table
from chaoslab.agent.errors import AgentError
from chaoslab.agent.faults import parse_fault
from chaoslab.agent.netem_value import FourState, GilbertElliott, parse_netem

U32 = st.integers(0, 2**32 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
NS = st.integers(0, 2**62)
TABLES = st.lists(st.integers(-32768, 32767), max_size=300).map(tuple)


@st.composite
def states(draw):
    rate = draw(st.integers(0, 2**64 - 1))
    slot = draw(st.tuples(NS, NS, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), NS, NS))
    reorder_or_corrupt = st.tuples(U32, U32)
    return netem.KernelNetem(
        latency_ns=draw(NS),
        jitter_ns=draw(NS),
        limit_packets=draw(U32),
        loss=draw(U32),
        gap=draw(U32),
        duplicate=draw(U32),
        correlations=draw(st.tuples(U32, U32, U32)),
        reorder=draw(reorder_or_corrupt),
        corrupt=draw(reorder_or_corrupt),
        loss_state4=draw(st.just(()) | st.tuples(*[U32] * 5)),
        rate_bytes_per_s=rate,
        link=draw(st.tuples(I32, st.integers(0, 2**31 - 1), I32)) if rate else (0, 0, 0),
        ecn=draw(st.integers(0, 1)),
        slot=slot if any(slot) else (),
        seed=draw(st.none() | st.integers(0, 2**64 - 1)),
        delay_table=draw(TABLES),
        slot_table=draw(TABLES) if any(slot) else (),
    )


@given(states())
def test_decoding_an_encoded_state_gives_it_back(state) -> None:
    """Every attribute survives, 64-bit ones and tables included."""
    back = netem.decode(netem.encode(state))
    assert back == state
    assert netem.differences(state, back) == []


@given(st.tuples(U32, U32, U32, U32))
def test_a_gilbert_elliott_model_survives_encoding(model) -> None:
    """p, r, h and k1 come back in their order."""
    state = netem.KernelNetem(loss_gemodel=model)
    assert netem.decode(netem.encode(state)) == state


@given(st.binary(max_size=400))
def test_decoding_anything_gives_a_state_or_a_value_error(data) -> None:
    """A dump that is cut short or damaged is never another exception."""
    try:
        found = netem.decode(data)
    except ValueError:
        assert len(data) < 24
        return
    assert netem.differences(found, found) == []


def test_the_limit_grows_with_rate_and_delay_and_can_be_given() -> None:
    """Rate x delay / packet x safety, never below netem's default, the asked one when asked."""
    assert netem.limit_packets(parse_netem({"loss_ratio": 0.1})) == 1000
    slow = parse_netem({"delay_s": 10, "rate_bytes_per_s": 1_000_000})
    assert netem.limit_packets(slow) == 10 * 1_000_000 * 4 // 1500 + 1
    assert netem.limit_packets(parse_netem({"delay_s": 10})) == 2_000_000
    assert netem.limit_packets(parse_netem({"delay_s": 10, "limit_packets": 7})) == 7


def test_models_state_their_loss() -> None:
    """The stationary loss of both models by hand."""
    assert GilbertElliott(p=0.1, r=0.3).loss_ratio == pytest.approx(0.25)
    assert GilbertElliott(p=0.1, r=0.3, h=0.5, k=0.9).loss_ratio == pytest.approx(
        0.25 * 0.5 + 0.75 * 0.1
    )
    two_state = FourState(p13=0.1, p31=0.3, p32=0, p23=0, p14=0)
    assert two_state.loss_ratio == pytest.approx(0.25)
    assert two_state.mean_burst_packets == pytest.approx(1 / 0.3)


def test_tables_have_the_mean_and_deviation_of_their_distribution() -> None:
    """Mean zero and deviation one for normal; pareto's tail is cut at 4 sigma."""
    assert mean_and_deviation(table("normal")) == pytest.approx((0, 1), abs=0.002)
    assert mean_and_deviation(table("pareto"))[0] == pytest.approx(0, abs=0.05)
    assert mean_and_deviation(None) == pytest.approx((0, 0.57735), abs=1e-4)
    assert len(table("paretonormal")) == 4096
    assert max(map(abs, table("paretonormal"))) <= 32768


REFUSED = [
    ({"loss_ratio": 20}, "for 20 % write 0.2"),
    ({"loss_ratio": "0.2"}, "want a number"),
    ({"loss_ratio": True}, "want a number"),
    ({"los_ratio": 0.2}, "want only"),
    ({}, "does nothing"),
    ({"seed": 3}, "does nothing"),
    ({"loss_ratio": 0.1, "gemodel": {"p": 0.1}}, "one of loss_ratio, gemodel, state4"),
    ({"gemodel": {"p": 0, "r": 1}}, "loses nothing"),
    ({"gemodel": {"r": 0.5}}, "p=None"),
    ({"state4": {"p13": 0.8, "p14": 0.8, "p31": 1}}, "p13 \\+ p14 <= 1"),
    ({"state4": {"p13": 0.1}}, "p31 > 0 with p13"),
    ({"jitter_s": 0.1}, "without delay_s"),
    ({"delay_s": 5, "jitter_s": 3}, "from 0 to 2.147"),
    ({"delay_s": 1, "distribution": "normal"}, "without jitter_s"),
    ({"delay_s": 1, "jitter_s": 1, "distribution": "cauchy"}, "want one of uniform"),
    ({"delay_s": 1, "jitter_s": 1, "distribution": [40000]}, "-32767 to 32767"),
    ({"reorder_ratio": 0.1}, "without delay_s"),
    ({"ecn": True, "delay_s": 1}, "ecn without a loss"),
    ({"cell_size_bytes": 48, "delay_s": 1}, "without rate_bytes_per_s"),
    ({"loss_correlation_ratio": 0.1, "delay_s": 1}, "without loss_ratio"),
    ({"slot": {"min_delay_s": 2, "max_delay_s": 1}}, "max_delay_s >= min_delay_s"),
    ({"slot": {"distribution": "uniform", "delay_s": 1, "jitter_s": 1}}, "min_delay_s and max"),
]


@pytest.mark.parametrize(("asked", "message"), REFUSED)
def test_a_netem_that_makes_no_sense_is_refused_with_the_fix(asked, message) -> None:
    """Each wrong request names what was given and what is wanted."""
    with pytest.raises(AgentError, match=message) as caught:
        parse_netem(asked)
    assert caught.value.kind == "bad_request"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"kind": "storm"}, "want one of netem"),
        ({"kind": "silent_drop", "direction": "up"}, "want egress, ingress or both"),
        ({"kind": "silent_drop", "peers": ["node1"]}, "IPv4 addresses"),
        ({"kind": "silent_drop", "peers": "10.0.0.1"}, "want a list"),
        ({"kind": "silent_drop", "ports": [0]}, "want ports from 1"),
        ({"kind": "silent_drop", "port": [1]}, "want only"),
        ({"kind": "silent_drop", "peers": ["10.0.0.1"] * 65, "ports": [1] * 65}, "want at most"),
        ({"kind": "link_down", "peers": ["10.0.0.1"]}, "use silent_drop"),
        ({"kind": "link_down", "direction": "egress"}, "direction both"),
        ({"kind": "flap", "of": {"kind": "reset"}, "down_s": 1, "up_s": 1}, "want of link_down"),
        ({"kind": "flap", "of": {"kind": "link_down"}, "down_s": 0, "up_s": 1}, "down_s=0"),
        ({"kind": "netem"}, "netem=None"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused_with_the_fix(fault, message) -> None:
    """Each wrong fault names what was given and what is wanted."""
    with pytest.raises(AgentError, match=message):
        parse_fault(fault)
