"""Tries netem in a network namespace of its own and prints what it found, as JSON.

Runs as a script (``python -I -S netem_probe.py``), standard library only: raw netlink takes
milliseconds where an import of pyroute2 takes most of a second.
"""

import ctypes
import errno
import json
import os
import socket
import struct

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
"""Source: linux/sched.h."""
RTM_NEWQDISC = 36
RTM_GETQDISC = 38
NLMSG_ERROR = 2
NLMSG_DONE = 3
NLM_F_REQUEST_ACK_CREATE_EXCL = 0x1 | 0x4 | 0x400 | 0x200
NLM_F_REQUEST_DUMP = 0x1 | 0x300
TC_H_ROOT = 0xFFFFFFFF
TCA_KIND = 1
TCA_OPTIONS = 2
"""Source: linux/netlink.h, linux/rtnetlink.h, linux/pkt_sched.h."""
LO_INDEX = 1


def leave_namespace() -> str:
    """Move this process to a new network namespace; give the reason where that is refused."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.readlink("/proc/self/ns/net")  # noqa: PTH115  pathlib costs imports
    for flags in (CLONE_NEWNET, CLONE_NEWUSER | CLONE_NEWNET):
        if libc.unshare(flags) == 0:
            break
    else:
        name = errno.errorcode.get(ctypes.get_errno(), "?")
        return (
            f"this user may not make a network namespace (unshare: {name}): run as root, or allow "
            "it with `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 "
            "user.max_user_namespaces=10000`, or run with --chaos-kernel=uml"
        )
    if os.readlink("/proc/self/ns/net") == before:  # noqa: PTH115
        return "unshare succeeded but the network namespace is still the caller's"
    return ""


def attribute(kind: int, payload: bytes) -> bytes:
    """Pack one netlink attribute, padded to 4 bytes."""
    padding = b"\0" * (-len(payload) % 4)
    return struct.pack("=HH", 4 + len(payload), kind) + payload + padding


def ask(kind: int, flags: int, payload: bytes) -> tuple[int, bytes]:
    """Send one request; give its errno (0 is success) and the bytes of all answers."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.settimeout(5)
        link.send(struct.pack("=IHHII", 16 + len(payload), kind, flags, 1, 0) + payload)
        answers = b""
        while True:
            data = link.recv(1 << 16)
            answers += data
            position = 0
            while position < len(data):
                length, answer = struct.unpack_from("=IH", data, position)
                if answer == NLMSG_ERROR:
                    return -struct.unpack_from("=i", data, position + 16)[0], answers
                if answer == NLMSG_DONE:
                    return 0, answers
                position += length + (-length % 4)


def try_netem() -> tuple[bool, str]:
    """Add netem to lo in a scratch namespace and read it back; whether that worked, and why."""
    if refused := leave_namespace():
        return False, refused
    options = struct.pack("=IIIIII", 1000, 1000, 0, 0, 0, 0)  # latency, limit, loss, gap, ...
    message = struct.pack("=BxHiIII", 0, 0, LO_INDEX, 0, TC_H_ROOT, 0)
    number, _ = ask(
        RTM_NEWQDISC,
        NLM_F_REQUEST_ACK_CREATE_EXCL,
        message + attribute(TCA_KIND, b"netem\0") + attribute(TCA_OPTIONS, options),
    )
    if number:
        name = errno.errorcode.get(number, str(number))
        return False, f"this kernel has no sch_netem (adding a netem qdisc: {name})"
    number, answers = ask(RTM_GETQDISC, NLM_F_REQUEST_DUMP, struct.pack("=BxHiIII", *[0] * 6))
    if number or attribute(TCA_KIND, b"netem\0") not in answers:
        return False, "a netem qdisc was added without an error but is not there: do not trust it"
    return True, "a netem qdisc was added and read back in a scratch namespace"


if __name__ == "__main__":
    available, reason = try_netem()
    print(json.dumps({"available": available, "reason": reason}))  # noqa: T201  that is its answer
