"""What a program finds inside the guest; one boot for all."""

import os
import resource
import time
from pathlib import Path
from typing import Any

from chaoslab.kernel import host_has_netem


def test_netem_drops_packets_in_the_guest(facts: dict[str, Any]) -> None:
    """A loss of 100 % on lo stops pings that pass before and after."""
    assert facts["loss"] == {"before": True, "during": False, "after": True}


def test_the_netem_probe_says_yes_in_the_guest(facts: dict[str, Any]) -> None:
    """host_has_netem finds the netem that the guest has."""
    assert facts["netem"][0], facts["netem"][1]


def test_a_guest_refuses_to_run_a_guest(facts: dict[str, Any]) -> None:
    """user_mode_linux says inside that there is no nesting."""
    assert "already inside" in facts["nested"]
    assert facts["environ"]["CHAOSLAB_IN_UML"] == "1"


def test_arguments_of_any_bytes_arrive(facts: dict[str, Any]) -> None:
    """Spaces, newlines, quotes, empty words and bytes that are not UTF-8 reach the command."""
    assert [bytes.fromhex(word) for word in facts["argv"]] == [
        b"a b",
        b"c\nd",
        b"'\"\\",
        b"",
        b"\xff\x80",
        b"--",
    ]


def test_the_environment_arrives(facts: dict[str, Any]) -> None:
    """Variables of any bytes reach the command; TMPDIR points into the guest."""
    assert bytes.fromhex(facts["odd"]) == b"x\n'\" \xff="
    assert facts["environ"]["LEFT_ALONE"] == "1"
    assert facts["environ"]["TMPDIR"].startswith("/run/")
    assert facts["environ"]["PATH"] == os.environ["PATH"]


def test_the_command_is_root_in_the_same_folder(facts: dict[str, Any]) -> None:
    """The command is uid 0 inside and starts in the caller's folder."""
    assert facts["uid"] == 0
    assert facts["cwd"] == str(facts["folder"])


def test_files_written_inside_are_on_the_host(facts: dict[str, Any]) -> None:
    """Closed, fsynced, renamed and never closed files are whole on the host after the end."""
    folder: Path = facts["folder"]
    assert (folder / "renamed.bin").read_bytes() == bytes(range(256)) * 16
    assert not (folder / "plain.bin").exists()
    assert (folder / "open.bin").read_bytes() == b"never closed"
    synced = (folder / "synced.bin").read_bytes()
    assert len(synced) == 32 << 20
    assert all(len(set(synced[i << 20 : (i + 1) << 20])) == 1 for i in range(32))


def test_devices_of_a_usual_machine_are_there(facts: dict[str, Any]) -> None:
    """/dev has null, pseudo terminals, fd and a writable shm."""
    assert facts["null"] == [1, 3]
    assert facts["pty"]
    assert facts["fd"]
    assert facts["shm"]


def test_the_network_is_the_guests_own(facts: dict[str, Any]) -> None:
    """There is a lo that is up, and no link of the host."""
    assert facts["lo"]
    assert "lo" in facts["links"]
    assert not any(name.startswith(("eth", "en", "wl", "docker")) for name in facts["links"])
    assert facts["host"] == "chaoslab-uml"


def test_an_ordinary_user_may_ping_and_make_namespaces(facts: dict[str, Any]) -> None:
    """A process inside that is not root may use ICMP sockets and user namespaces."""
    assert facts["ping_nobody"]
    assert facts["namespace_nobody"]


def test_limits_and_umask_are_the_hosts(facts: dict[str, Any]) -> None:
    """The command has the caller's umask and limit of open files."""
    umask = os.umask(0)
    os.umask(umask)
    assert facts["umask"] == umask
    assert facts["nofile"] == list(resource.getrlimit(resource.RLIMIT_NOFILE))
    assert facts["random"] == 32


def test_clocks_run_at_the_real_rate(facts: dict[str, Any]) -> None:
    """2 s of sleep are 2 s of both clocks, and the wall clock is the host's."""
    clocks = facts["clocks"]
    assert 2.0 <= clocks["monotonic_s"] < 2.5
    assert abs((clocks["wall_s"] - clocks["from_s"]) - clocks["monotonic_s"]) < 0.1
    assert -60 < time.time() - clocks["wall_s"] < 60


def test_the_guest_writes_to_a_pipe(facts: dict[str, Any]) -> None:
    """Where the caller's output is no terminal, the command does not see one."""
    assert not facts["tty"]
    assert "FORCE_COLOR" not in set(facts["environ"]) - set(os.environ)


def test_the_probe_leaves_the_callers_network_alone() -> None:
    """Probing the host adds no qdisc where the caller is, and its answer says what is missing."""
    before = Path("/proc/self/ns/net").readlink()
    found = host_has_netem()
    assert Path("/proc/self/ns/net").readlink() == before
    assert found.available or "no sch_netem" in found.reason
