"""Platforms: the kernel modules that faults need, and the command that gets a missing one.

A module comes with the kernel, and how one gets it depends on who has built that: the kernel's
release tells, and the name of the operating system around it.
"""

from __future__ import annotations

import dataclasses
import platform
import re
from typing import Final


@dataclasses.dataclass(frozen=True, kw_only=True)
class Platform:
    """A kernel and what is around it. release: as `uname -r`. system: the system's full name."""

    release: str
    system: str


MODULES: Final = {
    "netem": ("sch_netem",),
    "rate": ("sch_netem",),
    "ifb": ("ifb", "act_mirred", "cls_u32"),
    "silent_drop": ("sch_htb", "cls_u32"),
    "link_down": ("dummy",),
}
"""Capabilities of an agent that need a module of the kernel; netem's variants need netem's."""

_NEWER: Final = {
    "reset": "a kernel with CONFIG_INET_DIAG_DESTROY",
    "netem_seed": "Linux 6.6 or newer",
}
_FAMILIES: Final = (
    ("WSL", r"microsoft|wsl", r"$^"),  # also under Docker Desktop for Windows
    ("Docker Desktop", r"linuxkit", r"docker desktop"),
    ("Ubuntu", r"$^", r"ubuntu|mint|pop!_os"),
    ("RHEL", r"\.(el|fc|amzn)\d+", r"red hat|fedora|centos|rocky|alma|oracle linux"),
    ("Debian", r"$^", r"debian"),
    ("Ubuntu", r"-(generic|azure|aws|gcp|oracle|lowlatency)$", r"$^"),
    ("Debian", r"-(amd64|arm64)$", r"$^"),
)
"""By what a family is told: its kernel's release, or the system's name, in lower case."""


def of_this_machine() -> Platform:
    """Tell what this process runs on."""
    try:
        names = platform.freedesktop_os_release()
    except OSError:
        names = {}
    return Platform(
        release=platform.release(), system=names.get("PRETTY_NAME") or platform.system()
    )


def family_of(where: Platform) -> str:
    """Name who has built a kernel: one of the families that get modules in different ways."""
    release, system = where.release.lower(), where.system.lower()
    for family, by_release, by_system in _FAMILIES:
        if re.search(by_release, release) or re.search(by_system, system):
            return family
    return "Linux"


def mending(need: str, where: Platform, *, has_netem: bool = False) -> str:
    """Word how a capability is to be had on a platform; empty where no module is the reason.

    need: a capability of the agent's that is missing. has_netem: netem itself is there, so that the
    kernel is too old for one of its variants.
    """
    if need in _NEWER:
        return f"want {_NEWER[need]}"
    if need.startswith("netem_") and has_netem:
        return "want a newer kernel"
    modules = MODULES.get("netem" if need.startswith("netem") else need)
    return "" if modules is None else _COMMANDS[family_of(where)](where, " ".join(modules))


def _ubuntu(where: Platform, modules: str) -> str:
    get = f"sudo apt-get install -y linux-modules-extra-{where.release}"
    if where.release.endswith("-azure"):  # a GitHub runner, whose lists of packages are old
        get = f"sudo apt-get update && {get}"
    return f"{get} && sudo modprobe -a {modules}"


def _debian(where: Platform, modules: str) -> str:
    if "-cloud-" in where.release:  # Debian's kernel for clouds is built without them
        arch = where.release.rpartition("-")[2]
        return f"sudo apt-get install -y linux-image-{arch} && sudo reboot"
    return f"sudo modprobe -a {modules}"


def _rhel(where: Platform, modules: str) -> str:
    package = f"kernel-modules-extra-{where.release}"
    return f"sudo dnf install -y {package} && sudo modprobe -a {modules}"


def _wsl(where: Platform, modules: str) -> str:  # noqa: ARG001
    own = "or a kernel of your own (kernel= in .wslconfig)"
    return f"wsl --update (in Windows), then sudo modprobe -a {modules}; {own}"


def _docker_desktop(where: Platform, modules: str) -> str:  # noqa: ARG001
    own = "update Docker Desktop, whose kernel takes no other modules"
    return f"{own}; or name an engine on Linux by DOCKER_HOST"


def _linux(where: Platform, modules: str) -> str:  # noqa: ARG001
    return f"sudo modprobe -a {modules}, or a kernel that has them"


_COMMANDS: Final = {
    "Docker Desktop": _docker_desktop,
    "WSL": _wsl,
    "Ubuntu": _ubuntu,
    "RHEL": _rhel,
    "Debian": _debian,
    "Linux": _linux,
}
