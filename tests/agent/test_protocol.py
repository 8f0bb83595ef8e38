"""The agent's protocol: one answer to every line, and healing however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from lab import AgentClient, own_netns

DROP = {"kind": "silent_drop", "direction": "egress"}
DOWN = {"kind": "link_down"}


def answers_a_probe(lab, target: int = 1) -> bool:
    """Whether a UDP packet from node 0 reaches another node."""
    near, far = lab.nodes[0].udp(), lab.nodes[target].udp()
    far.settimeout(0.3)
    try:
        near.sendto(b"x", far.getsockname())
        far.recv(1)
    except (TimeoutError, OSError):
        return False
    return True


def test_the_agent_refuses_the_harness_namespace() -> None:
    """An agent whose namespace is the forbidden one says so in one line and ends with status 1."""
    client = AgentClient.forked(None, forbidden=own_netns())
    refused = client.event("refused")
    assert "is the harness's own" in refused["error"]["message"]
    assert client.end() == 1
    client.close()


def test_the_module_refuses_the_harness_namespace_too() -> None:
    """`python -m chaoslab.agent` keeps the same promise, and says how it is used."""
    device, inode = own_netns()
    argv = [sys.executable, "-m", "chaoslab.agent"]
    done = subprocess.run(
        [*argv, "--forbid-netns", f"{device}:{inode}"], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert b"is the harness's own" in done.stdout
    wrong = subprocess.run([*argv, "--forbid"], capture_output=True, timeout=60, check=False)
    assert wrong.returncode == 2
    assert b"want --forbid-netns DEV:INO" in wrong.stdout


def test_the_module_serves_and_ends_with_its_input(lab) -> None:
    """In a foreign namespace the module answers over standard input and output, and ends with 0."""
    device, inode = own_netns()
    argv = [
        "nsenter",
        f"--net=/proc/{lab.nodes[0].pid}/ns/net",
        sys.executable,
        "-m",
        "chaoslab.agent",
    ]
    argv += ["--forbid-netns", f"{device}:{inode}"]
    request = json.dumps({"id": 1, "op": "pristine"}).encode() + b"\n"
    done = subprocess.run(argv, input=request, capture_output=True, timeout=60, check=False)
    ready, answer = (json.loads(line) for line in done.stdout.splitlines())
    assert ready["event"] == "ready"
    assert answer["error"] == {
        "kind": "bad_request",
        "message": "no setup yet: want op setup first",
    }
    assert (done.returncode, done.stderr) == (0, b"")


MALFORMED = [
    b"\n",
    b"{\n",
    b"[1, 2]\n",
    b'"text"\n',
    b"\xff\xfe\n",
    b"[" * 50_000 + b"\n",
    b'{"id": 7}\n',
    b'{"id": 7, "op": 3}\n',
    b'{"id": 7, "op": "no such op"}\n',
    b'{"id": [7], "op": "pristine"}\n',
    b'{"id": 7, "op": "inject"}\n',
    b'{"id": 7, "op": "inject", "fault_id": "x", "lease_s": -1, "fault": {"kind": "reset"}}\n',
    b'{"id": 7, "op": "inject", "fault_id": "x", "lease_s": 1, "fault": {"kind": "storm"}}\n',
    b'{"id": 7, "op": "inject", "fault_id": "x", "lease_s": NaN, "fault": {"kind": "reset"}}\n',
    b'{"id": 7, "op": "wait_effective", "fault_id": "absent", "timeout_s": 1}\n',
    b'{"id": 7, "op": "renew", "fault_id": "absent", "lease_s": 1}\n',
    b'{"id": 7, "op": "setup", "interface": "eth9", "address": "10.1.2.3"}\n',
    b'{"id": 7, "op": "setup", "interface": "eth0", "address": "::1"}\n',
]


@pytest.mark.parametrize("line", MALFORMED)
def test_a_wrong_line_gets_one_error_and_the_agent_goes_on(agent, line) -> None:
    """Whatever the line, one answer says bad_request, and the next request is served."""
    agent.send_raw(line)
    assert agent.ask("pristine")["pristine"]
    assert len(agent.answers) == 1
    (wrong,) = agent.answers.values()
    assert wrong["error"]["kind"] == "bad_request"
    assert "want" in wrong["error"]["message"]


def test_a_line_of_ten_megabytes_gets_an_error(agent) -> None:
    """A line over the limit is answered, not stored, and the next request is served."""
    agent.send_raw(b"x" * 10_000_000 + b"\n")
    assert agent.ask("pristine")["pristine"]
    assert "shorter" in agent.answers[None]["error"]["message"]


@pytest.mark.parametrize("fault", [DROP, DOWN], ids=["silent_drop", "link_down"])
@pytest.mark.parametrize(
    "end", ["end of input", signal.SIGTERM, signal.SIGINT, "shutdown", "lost reader"]
)
def test_however_the_agent_ends_it_heals_and_returns_zero(lab, agent, fault, end) -> None:
    """End of input, a signal, shutdown, a reader that went away: nothing stays broken."""
    agent.inject(fault)
    assert not answers_a_probe(lab)
    if end == "end of input":
        agent.close_input()
    elif end == "shutdown":
        agent.ask("shutdown")
    elif end == "lost reader":
        os.close(agent.from_agent)
        agent.from_agent = -1
        agent.send("counters")
    else:
        agent.terminate(end)
    assert agent.end() == 0
    assert answers_a_probe(lab)


def test_the_end_of_input_heals_while_a_wait_goes_on(lab, agent) -> None:
    """A wait_effective that can see nothing does not keep the agent from healing."""
    agent.inject({**DROP, "peers": ["10.77.0.99"]})
    agent.inject(DROP, "all")
    agent.send("wait_effective", fault_id="f", timeout_s=600, probe_to=[])
    agent.close_input()
    assert agent.end() == 0
    assert answers_a_probe(lab)


def test_a_lease_that_runs_out_heals_and_says_so(lab, agent) -> None:
    """The fault goes when its lease ends, even during a wait; renewing it in time keeps it."""
    unseen = {"kind": "silent_drop", "direction": "ingress", "ports": [9]}
    agent.inject(DROP, "cut", lease_s=0.3)
    agent.inject(unseen, "short", lease_s=0.3)
    number = agent.send("wait_effective", fault_id="short", timeout_s=60, probe_to=[])
    expired = {agent.event("lease_expired")["fault_id"] for _ in range(2)}
    assert expired == {"cut", "short"}
    assert "healed before" in agent.answer(number)["missing"]
    assert answers_a_probe(lab)
    agent.inject(DROP, "renewed", lease_s=0.5)
    agent.ask("renew", fault_id="renewed", lease_s=60)
    time.sleep(0.7)  # longer than the first lease: the claim is that nothing happens
    assert not answers_a_probe(lab)
    assert not any(event["event"] == "lease_expired" for event in agent.events)


def test_other_requests_are_answered_during_a_wait(agent) -> None:
    """A wait does not keep a later request waiting, and gives its own answer at its own limit."""
    agent.inject({**DROP, "peers": ["10.77.0.99"]})
    number = agent.send("wait_effective", fault_id="f", timeout_s=0.5, probe_to=[])
    assert "f" in agent.ask("counters")["counters"]
    assert number not in agent.answers
    late = agent.answer(number)
    assert late["effective"] is False
    assert "no drop" in late["missing"]


def test_setup_twice_changes_nothing(agent, lab) -> None:
    """Setup is idempotent: the node is pristine after the second."""
    agent.ask("setup", interface="eth0", address=lab.nodes[0].address, prefix_length=24)
    assert agent.ask("pristine") == {"id": 3, "ok": True, "pristine": True, "differences": []}


def test_pristine_names_what_somebody_else_changed(agent, lab) -> None:
    """A route added behind the agent's back is a difference, named; without it there is none."""
    node = lab.nodes[0]
    node.ip("route", "add", "203.0.113.0/24", "via", lab.nodes[1].address)
    found = agent.ask("pristine")
    node.ip("route", "del", "203.0.113.0/24")
    assert not found["pristine"]
    assert "203.0.113.0" in str(found["differences"])
    assert agent.ask("pristine")["pristine"]


def test_healing_is_harmless_twice_and_the_id_is_free_again(agent) -> None:
    """Heal of a fault not in force is ok; one id cannot be in force twice."""
    assert agent.heal("never")["was_in_force"] is False
    agent.inject(DROP)
    again = agent.ask_raw("inject", fault_id="f", lease_s=1, fault=DROP)
    assert again["error"]["kind"] == "bad_request"
    assert agent.heal()["was_in_force"] is True
    agent.inject(DROP)
    assert agent.ask("heal_all")["healed"] == ["f"]
    assert agent.event("healed_all")["faults"] == ["f"]


def test_cap_net_admin_alone_is_enough(lab) -> None:
    """Without CAP_NET_RAW, CAP_DAC_OVERRIDE and all others, each fault works and is seen to."""
    agent, peer = lab.nodes[0].agent(drop_capabilities=True), lab.nodes[1].address
    capabilities = agent.ask("probe")["capabilities"]
    assert capabilities["silent_drop"] is True
    for fault in ({**DROP, "direction": "both"}, DOWN):
        agent.inject(fault)
        assert agent.effective(probe_to=(peer,))["effective"]
        agent.heal()
        assert agent.healed(probe_to=(peer,))["healed"]
    with open(f"/proc/{agent.pid}/status") as status:  # noqa: PTH123  # a proc file
        effective = next(line for line in status if line.startswith("CapEff"))
    assert int(effective.split()[1], 16) == 1 << 12
