"""What mends a missing module, on each platform that people run this on."""

from __future__ import annotations

import pytest

from chaoslab import faults
from chaoslab.platforms import Platform, family_of, mending, of_this_machine

THEN = " && sudo modprobe -a sch_netem"
DEBIAN, RHEL9 = "Debian GNU/Linux 12 (bookworm)", "5.14.0-427.13.1.el9_4.x86_64"
DNF = "sudo dnf install -y kernel-modules-extra-"
APT = "sudo apt-get install -y linux-"
WSL = "5.15.153.1-microsoft-standard-WSL2"
GENERIC, AZURE = "6.8.0-41-generic", "6.8.0-1014-azure"  # the latter: a GitHub runner

PLATFORMS = [
    ("Debian", "6.1.0-18-amd64", DEBIAN, "sudo modprobe -a sch_netem"),
    ("Debian", "6.1.0-18-cloud-amd64", DEBIAN, f"{APT}image-amd64 && sudo reboot"),
    ("Ubuntu", GENERIC, "Ubuntu 24.04.1 LTS", f"{APT}modules-extra-{GENERIC}{THEN}"),
    ("Ubuntu", AZURE, "Ubuntu 22.04.5 LTS", f"sudo apt-get update && {APT}modules-extra-{AZURE}"),
    ("RHEL", RHEL9, "Red Hat Enterprise Linux 9.4 (Plow)", f"{DNF}{RHEL9}{THEN}"),
    ("RHEL", "6.9.7-200.fc40.x86_64", "Fedora Linux 40", DNF),
    ("WSL", WSL, "Ubuntu 22.04.4 LTS", "wsl --update"),
    ("WSL", WSL, "Docker Desktop", "wsl --update"),
    ("Docker Desktop", "6.6.32-linuxkit", "Docker Desktop", "update Docker Desktop"),
    ("Linux", "6.10.3-arch1-2", "Arch Linux", "sudo modprobe -a sch_netem, or a kernel"),
]


@pytest.mark.parametrize(("family", "release", "system", "command"), PLATFORMS)
def test_each_platform_has_its_command(family, release, system, command) -> None:
    """Told by the kernel's release first: a container's kernel is its host's."""
    where = Platform(release=release, system=system)
    assert family_of(where) == family
    assert mending("netem", where).startswith(command)


def test_a_missing_module_is_named_and_an_old_kernel_is_no_missing_module() -> None:
    """A variant of netem needs netem's module, or, where that is there, a newer kernel."""
    where = Platform(release="6.1.0-18-amd64", system="Debian GNU/Linux 12")
    assert mending("netem_slot", where) == "sudo modprobe -a sch_netem"
    assert mending("netem_slot", where, has_netem=True) == "want a newer kernel"
    assert mending("netem_seed", where, has_netem=True) == "want Linux 6.6 or newer"
    assert mending("ifb", where) == "sudo modprobe -a ifb act_mirred cls_u32"
    assert "INET_DIAG_DESTROY" in mending("reset", where)


@pytest.mark.parametrize(
    "fault",
    [
        faults.PacketLoss(ratio=0.1),
        faults.Delay(delay_s=0.1),
        faults.RateLimit(rate_bytes_per_s=1000),
        faults.SilentDrop(),
        faults.LinkDown(),
        faults.ConnectionReset(),
        faults.PacketLoss(ratio=0.1, seed=3),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_whatever_a_fault_needs_there_is_a_way_to_get_it(fault) -> None:
    """No need of a fault is left without a hint."""
    for need in fault.needs:
        assert mending(need, of_this_machine())
