"""Faults that need no netem: silent drop, link down, reset, flapping; each proven, each healed."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest
from traffic import exchange

from chaoslab.agent import netem, setup
from chaoslab.agent.errors import AgentError
from chaoslab.agent.leaf import check_read_back
from chaoslab.agent.netem_value import Netem
from chaoslab.agent.tc import Qdisc


@pytest.mark.parametrize("direction", ["egress", "ingress", "both"])
def test_silent_drop_cuts_its_directions_and_only_those(lab, agent, direction) -> None:
    """Nothing passes in the direction asked for, all passes in the other; counters show it."""
    near, far = lab.nodes[0].udp(), lab.nodes[1].udp()
    agent.inject({"kind": "silent_drop", "direction": direction})
    effect = agent.effective(probe_to=(lab.nodes[1].address,))
    assert effect["effective"], effect
    out, back = exchange(near, far, 50).missing, exchange(far, near, 50).missing
    assert out == (50 if direction in {"egress", "both"} else 0)
    assert back == (50 if direction in {"ingress", "both"} else 0)
    agent.heal()
    assert agent.healed(probe_to=(lab.nodes[1].address,))["healed"]
    assert exchange(near, far, 50).missing == exchange(far, near, 50).missing == 0
    assert agent.ask("pristine")["pristine"]


def test_a_silent_drop_is_not_reported_as_effective_when_it_hits_nobody(lab, agent) -> None:
    """A cut of a peer that exists for nobody gives effective false and says what was not seen."""
    agent.inject({"kind": "silent_drop", "direction": "ingress", "peers": ["10.77.0.99"]})
    found = agent.effective(timeout_s=0.5, probe_to=(lab.nodes[1].address,))
    assert found["effective"] is False
    assert "no drop counted" in found["missing"]


@pytest.mark.netem
@pytest.mark.parametrize("direction", ["egress", "ingress"])
def test_a_rate_too_fast_for_probes_needs_traffic_all_the_same(lab, agent, need, direction) -> None:
    """Planted: it concerns a peer that is not there. The healthy twin concerns one that is."""
    need("netem")
    fast = {"kind": "netem", "direction": direction, "netem": {"rate_bytes_per_s": 100_000_000}}
    agent.inject(fast | {"peers": ["10.77.0.99"]}, "stranger")
    found = agent.effective("stranger", timeout_s=0.5, probe_to=(lab.nodes[1].address,))
    assert found["effective"] is False
    assert "no packet went through it" in found["missing"]
    agent.heal("stranger")
    agent.inject(fast)
    assert agent.effective(probe_to=(lab.nodes[1].address,))["effective"]


def test_a_silent_drop_is_silent_to_the_local_tcp(lab, agent) -> None:
    """TCP takes its packets for sent: its retransmission timer doubles, as on a cut cable."""
    server = lab.nodes[1].socket(socket.SOCK_STREAM, (lab.nodes[1].address, 9200))
    server.listen()
    client = lab.nodes[0].socket(socket.SOCK_STREAM)
    client.connect(server.getsockname())
    agent.inject({"kind": "silent_drop", "direction": "egress"})
    client.send(b"lost")
    backoffs = set()
    deadline_s = time.monotonic() + 10
    while max(backoffs, default=0) < 3 and time.monotonic() < deadline_s:
        info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        backoffs.add(info[4])  # tcpi_backoff: source include/uapi/linux/tcp.h
        time.sleep(0.02)
    assert {1, 2, 3} <= backoffs


def test_64_peers_are_filtered_and_no_other(lab, agent) -> None:
    """With 63 strangers and one real peer in the filter, only that peer is cut off."""
    peers = [f"10.77.1.{index}" for index in range(1, 64)] + [lab.nodes[1].address]
    found = agent.inject({"kind": "silent_drop", "direction": "both", "peers": peers})
    assert found["evidence"]["egress"]["filters"] == 64
    near, hit, spared = (node.udp() for node in lab.nodes)
    assert exchange(near, hit, 20).missing == exchange(hit, near, 20).missing == 20
    assert exchange(near, spared, 20).missing == exchange(spared, near, 20).missing == 0
    agent.heal()
    assert exchange(near, hit, 20).missing == 0


def test_link_down_restores_addresses_and_routes_from_what_was_recorded(lab, agent) -> None:
    """A second address and a static route with its metric come back; a send is refused."""
    node, peer = lab.nodes[0], lab.nodes[1].address
    node.ip("address", "add", "10.77.5.1/24", "dev", "eth0")
    node.ip("route", "add", "198.51.100.0/24", "via", peer, "metric", "7")
    before = node.ip("route", "show"), node.ip("-br", "address", "show", "eth0")
    agent.inject({"kind": "link_down"})
    effect = agent.effective(probe_to=(peer,))
    assert effect["effect"]["up"] is False
    assert effect["effect"]["send_errno"] in {100, 101, 113}
    agent.heal()
    after = node.ip("route", "show"), node.ip("-br", "address", "show", "eth0")
    node.ip("route", "del", "198.51.100.0/24")
    node.ip("address", "del", "10.77.5.1/24", "dev", "eth0")
    assert sorted(after[0].splitlines()) == sorted(before[0].splitlines())
    assert after[1].split()[2:4] == before[1].split()[2:4]
    assert agent.healed(probe_to=(peer,))["healed"]


def test_two_faults_that_take_the_link_down_need_both_heals(lab, agent) -> None:
    """The link comes up with the last of them."""
    agent.inject({"kind": "link_down"}, "one")
    agent.inject({"kind": "link_down"}, "two")
    agent.heal("one")
    assert "state DOWN" in lab.nodes[0].ip("link", "show", "eth0")
    agent.heal("two")
    assert agent.healed("two", probe_to=(lab.nodes[1].address,))["healed"]


def connection(lab, port: int) -> tuple[socket.socket, socket.socket]:
    server = lab.nodes[1].socket(socket.SOCK_STREAM, (lab.nodes[1].address, port))
    server.listen()
    client = lab.nodes[0].socket(socket.SOCK_STREAM)
    client.settimeout(5)
    client.connect(server.getsockname())
    accepted, _ = server.accept()
    lab.scratch.callback(accepted.close)
    accepted.settimeout(5)
    return client, accepted


def test_reset_destroys_matching_connections_and_no_other(lab, agent, need) -> None:
    """Both ends of the connection on the port see it broken; another one goes on."""
    need("reset")
    hit, hit_far = connection(lab, 9300)
    spared, spared_far = connection(lab, 9301)
    found = agent.inject({"kind": "reset", "ports": [9300]})
    assert len(found["evidence"]["destroyed"]) == 1
    assert found["evidence"]["left"] == []
    assert agent.effective()["effective"]
    with pytest.raises(ConnectionError):
        hit.recv(1)
    with pytest.raises(ConnectionError):
        hit_far.recv(1)
    spared.send(b"x")
    assert spared_far.recv(1) == b"x"


def test_a_reset_that_finds_no_connection_is_not_effective(agent, need) -> None:
    """No victim, no effect."""
    need("reset")
    agent.inject({"kind": "reset", "ports": [9399]})
    assert "no connection matched" in agent.effective(timeout_s=1)["missing"]


@pytest.mark.parametrize("kind", ["link_down", "silent_drop"])
def test_a_flap_goes_down_and_up_by_itself_and_heals(lab, agent, kind) -> None:
    """Events alternate; after the heal packets pass and the node is pristine."""
    peer = lab.nodes[1].address
    agent.inject({"kind": "flap", "of": {"kind": kind}, "down_s": 0.15, "up_s": 0.15})
    assert agent.effective(probe_to=(peer,))["effective"]
    assert [agent.event("flapped")["down"] for _ in range(4)] == [False, True, False, True]
    agent.heal()
    assert agent.healed(probe_to=(peer,))["healed"]
    assert agent.ask("pristine")["pristine"]


@pytest.mark.netem
def test_a_total_cut_comes_before_a_milder_fault(lab, agent, need) -> None:
    """Silent drop of all and delay to one peer: all is cut; after its heal the delay stays."""
    need("netem")
    peer = lab.nodes[1].address
    agent.inject(
        {"kind": "netem", "direction": "egress", "peers": [peer], "netem": {"delay_s": 0.05}},
        "mild",
    )
    agent.inject({"kind": "silent_drop", "direction": "egress"}, "cut")
    near, far = lab.nodes[0].udp(), lab.nodes[1].udp()
    assert exchange(near, far, 20).missing == 20
    agent.heal("cut")
    assert min(exchange(near, far, 20).delays_s) >= 0.05


def test_wait_healed_names_the_fault_that_stands_in_the_way(lab, agent) -> None:
    """A target cut off by another fault is not probed, and the answer says by which."""
    peer, other = lab.nodes[1].address, lab.nodes[2].address
    agent.inject({"kind": "silent_drop", "peers": [peer]}, "stays")
    agent.inject({"kind": "silent_drop", "peers": [other]}, "goes")
    agent.heal("goes")
    assert agent.healed("goes", probe_to=(peer, other))["not_probed"] == {peer: "stays"}
    waiting = agent.ask("wait_healed", fault_id="stays", timeout_s=0.2, probe_to=[])
    assert "still in force" in waiting["missing"]


def test_where_netem_is_missing_the_answer_names_its_module(agent) -> None:
    """The answer is not_available, leaves nothing, and agrees with probe."""
    capability = agent.ask("probe")["capabilities"]["netem"]
    fault = {"kind": "netem", "netem": {"loss_ratio": 0.1}}
    found = agent.ask_raw("inject", fault_id="f", lease_s=1, fault=fault)
    assert found["ok"] is (capability is True)
    if capability is not True:
        assert found["error"]["kind"] == "not_available"
        assert "this kernel has no sch_netem" in found["error"]["message"]
    agent.heal()
    assert agent.ask("pristine")["pristine"]


NETEMS = [
    {"loss_ratio": 0.3, "ecn": True},
    {"delay_s": 300.5, "jitter_s": 1.5},
    {"delay_s": 0.03, "jitter_s": 0.01, "distribution": "pareto", "delay_correlation_ratio": 0.2},
    {"duplicate_ratio": 0.2, "duplicate_correlation_ratio": 0.1},
    {"corrupt_ratio": 0.2, "corrupt_correlation_ratio": 0.1},
    {"delay_s": 0.01, "reorder_ratio": 0.3, "reorder_correlation_ratio": 0.1, "gap": 3},
    {"rate_bytes_per_s": 2**33, "packet_overhead_bytes": -14, "cell_size_bytes": 53},
    {"slot": {"min_delay_s": 0.001, "max_delay_s": 0.002, "packets": 9, "bytes": 3000}},
]


@pytest.mark.netem
@pytest.mark.parametrize("asked", NETEMS)
def test_every_attribute_reads_back_from_the_kernel(agent, need, asked) -> None:
    """Delays above 274.8 s and rates above 2**32 included: inject compares and would refuse."""
    need("netem", "netem_slot", "netem_rate64")
    evidence = agent.inject({"kind": "netem", "direction": "egress", "netem": asked})["evidence"]
    assert evidence["egress"]["qdisc"] == "netem"
    assert len(evidence["egress"]["netem"]) >= 2


@pytest.mark.netem
@pytest.mark.parametrize(
    "asked",
    [
        {"loss_ratio": 0.02},
        {"gemodel": {"p": 0.05, "r": 0.3}},
        {"delay_s": 0.03},
        {"delay_s": 0.03, "jitter_s": 0.01, "distribution": "normal"},
        {"duplicate_ratio": 0.1},
        {"corrupt_ratio": 0.1},
        {"delay_s": 0.02, "reorder_ratio": 0.3},
        {"rate_bytes_per_s": 300_000},
        {"slot": {"min_delay_s": 0.02, "max_delay_s": 0.03}},
        {"loss_ratio": 0.1, "delay_s": 0.02, "duplicate_ratio": 0.1},
    ],
)
@pytest.mark.parametrize("direction", ["egress", "ingress", "both"])
def test_the_effect_of_each_attribute_is_seen(lab, agent, need, asked, direction) -> None:
    """wait_effective sees what was asked, in each direction, by its own probes."""
    need("netem", "netem_slot")
    agent.inject({"kind": "netem", "direction": direction, "netem": asked})
    found = agent.effective(probe_to=(lab.nodes[1].address,))
    assert found["effective"], found
    agent.heal()
    assert agent.healed(probe_to=(lab.nodes[1].address,), drained=True)["healed"]
    assert agent.ask("pristine")["pristine"]


def test_a_read_back_that_differs_is_an_error() -> None:
    """Planted: one attribute of what the kernel holds is not the one asked for; the twin passes."""

    def held(state: netem.KernelNetem) -> Qdisc:
        return Qdisc(
            ifindex=1, handle=1, parent=1, info=0, kind="netem", options=netem.encode(state)
        )

    asked = netem.to_kernel(Netem(loss_ratio=0.2, delay_s=0.1))
    assert check_read_back(asked, held(asked))
    dropped = netem.to_kernel(Netem(delay_s=0.1))
    with pytest.raises(AgentError, match="netem loss: asked for 858993459, the kernel holds 0"):
        check_read_back(asked, held(dropped))
    too_much = netem.to_kernel(Netem(loss_ratio=0.2, delay_s=0.1, duplicate_ratio=0.1))
    with pytest.raises(AgentError, match="netem duplicate: asked for 0"):
        check_read_back(asked, held(too_much))


@pytest.mark.netem
def test_the_kernel_holding_something_else_is_caught(lab, agent, need, monkeypatch) -> None:
    """Planted: an attribute that is dropped on its way makes inject fail and undo."""
    need("netem")
    monkeypatch.setattr(netem, "_encode_loss", lambda _: [])
    tampered = lab.nodes[1].agent()
    fault = {"kind": "netem", "direction": "egress", "netem": {"gemodel": {"p": 0.1, "r": 0.5}}}
    found = tampered.ask_raw("inject", fault_id="f", lease_s=9, fault=fault)
    assert found["error"]["kind"] == "failed"
    assert "netem loss_gemodel: asked for" in found["error"]["message"]
    assert tampered.ask("pristine")["pristine"]
    agent.inject(fault)


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "silent_drop", "direction": "both"},
        {"kind": "link_down"},
        pytest.param({"kind": "netem", "netem": {"delay_s": 0.03}}, marks=pytest.mark.netem),
        pytest.param({"kind": "netem", "netem": {"loss_ratio": 0.2}}, marks=pytest.mark.netem),
        pytest.param({"kind": "netem", "netem": {"loss_ratio": 0.002}}, marks=pytest.mark.netem),
        pytest.param({"kind": "netem", "netem": {"corrupt_ratio": 0.1}}, marks=pytest.mark.netem),
        pytest.param(
            {"kind": "netem", "netem": {"rate_bytes_per_s": 20_000}}, marks=pytest.mark.netem
        ),
        pytest.param(
            {"kind": "netem", "netem": {"delay_s": 0.02, "reorder_ratio": 0.3}},
            marks=pytest.mark.netem,
        ),
    ],
)
def test_where_ping_is_forbidden_probes_go_by_tcp(lab, need, monkeypatch, fault) -> None:
    """With /proc/sys read-only and no ping group, effect and heal are seen all the same.

    A peer answers UDP about once a second: far too seldom for a loss on ingress to be seen.
    """
    need(fault["kind"])
    monkeypatch.setattr(setup, "_PING_GROUPS", Path("/proc/nowhere/ping_group_range"))
    node, peer = lab.nodes[1], lab.nodes[0].address
    node.ip("-c", "echo 1 0 > /proc/sys/net/ipv4/ping_group_range", tool="sh")
    poor = node.agent(set_up=False)
    answer = poor.ask("setup", interface="eth0", address=node.address, prefix_length=24)
    assert answer["ping"] is False
    poor.inject(fault)
    found = poor.effective(probe_to=(peer,))
    assert found["effective"], found
    poor.heal()
    found = poor.healed(probe_to=(peer,))
    assert found["healed"], found


def test_threads_of_the_test_are_gone() -> None:
    """The lab leaves no thread behind that would make a later fork unsafe."""
    assert threading.active_count() == 1
