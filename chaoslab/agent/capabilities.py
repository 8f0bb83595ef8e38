"""What this kernel can do, found by doing it on a scratch device that carries nobody's traffic."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING, Final

from chaoslab.agent import interface, sockets, tc
from chaoslab.agent.errors import AgentError
from chaoslab.agent.faults import Fault, Match
from chaoslab.agent.leaf import make_leaf
from chaoslab.agent.netem_value import FourState, GilbertElliott, Netem, Slot
from chaoslab.agent.tree import DIRECT_PACKETS, ROOT, Tree, redirect_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyroute2 import IPRoute

    from chaoslab.agent.netlink import Netlink
    from chaoslab.agent.node import Json
    from chaoslab.agent.tree import Steer

Answer = bool | str

_SCRATCH: Final = "chaosprobe0"
_SCRATCH_IFB: Final = "chaosprobe1"
_NOBODY: Final = ("192.0.2.1", 9)  # TEST-NET-1, RFC 5737
_SEEN_LIMIT_S: Final = 0.5
_EGRESS: Final = Match(directions=("egress",))
_VARIANTS: Final = {
    "netem_delay": Netem(delay_s=0.001, jitter_s=0.0005),
    "netem_loss_gemodel": Netem(gemodel=GilbertElliott(p=0.1, r=0.5, h=0.25, k=0.75)),
    "netem_loss_state4": Netem(state4=FourState(p13=0.1, p31=0.5, p32=0.2, p23=0.5, p14=0.01)),
    "netem_duplicate": Netem(duplicate_ratio=0.5),
    "netem_corrupt": Netem(corrupt_ratio=0.5),
    "netem_reorder": Netem(delay_s=0.001, reorder_ratio=0.5),
    "rate": Netem(rate_bytes_per_s=1_000_000),
    "netem_rate64": Netem(rate_bytes_per_s=1 << 33),
    "netem_slot": Netem(slot=Slot(min_delay_s=0.001, max_delay_s=0.002)),
    "netem_ecn": Netem(loss_ratio=0.5, ecn=True),
    "netem_seed": Netem(loss_ratio=0.5, seed=20),
}


def probe(netlink: Netlink, iproute: IPRoute) -> Json:
    """Return {"capabilities": {name: true or why not}, "kernel": release}.

    Each was put into the kernel and read back; total loss and silent drop also dropped a packet.
    """
    found: dict[str, Answer] = {"reset": sockets.probe() or True}
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(_device(netlink, _SCRATCH, "dummy", "ifb"))
        if isinstance(scratch, str):
            names = ("netem", "silent_drop", "link_down", "ifb", *_VARIANTS)
            found |= dict.fromkeys(names, scratch)
        else:
            found |= _on_scratch(netlink, iproute, scratch)
    return {"capabilities": found, "kernel": os.uname().release}


def _on_scratch(netlink: Netlink, iproute: IPRoute, scratch: int) -> dict[str, Answer]:
    found = {"link_down": _tried(lambda: _down_and_up(netlink, scratch))}
    found["ifb"] = _tried(lambda: _redirect(netlink, scratch))
    root = tc.add_qdisc(scratch, tc.TC_H_ROOT, ROOT, "htb", tc.htb_options(DIRECT_PACKETS))
    tree = Tree(netlink, iproute, {"egress": scratch})
    built = _tried(lambda: netlink.request(root))
    if built is not True:
        return found | dict.fromkeys(("silent_drop", "netem", *_VARIANTS), built)
    drop = Fault(kind="silent_drop", match=_EGRESS)
    total = Fault(kind="netem", match=_EGRESS, netem=Netem(loss_ratio=1.0))
    found["silent_drop"] = _tried(lambda: _drops_a_packet(tree, drop))
    found["netem"] = _tried(lambda: _drops_a_packet(tree, total))
    if found["netem"] is not True:
        return found | dict.fromkeys(_VARIANTS, found["netem"])
    for name, asked in _VARIANTS.items():
        found[name] = _tried(lambda asked=asked: _reads_back(tree, asked))  # type: ignore[misc]
    return found


def _tried(attempt: Callable[[], object]) -> Answer:
    try:
        attempt()
    except AgentError as error:
        return error.message
    except OSError as error:
        return str(error)
    return True


def _drops_a_packet(tree: Tree, fault: Fault) -> None:
    with _leaf(tree, fault) as steer:
        tree.add_filters(steer, fault.match)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _SCRATCH.encode())
            end_s = time.monotonic() + _SEEN_LIMIT_S
            while time.monotonic() < end_s:
                sock.sendto(b"chaoslab probe", _NOBODY)
                leaf = tree.leaf(steer)
                if leaf is not None and leaf.drops:
                    return
    raise AgentError("not_available", f"a {steer.kind} qdisc that should drop all dropped nothing")


def _reads_back(tree: Tree, asked: Netem) -> None:
    with _leaf(tree, Fault(kind="netem", match=_EGRESS, netem=asked)):
        pass


@contextlib.contextmanager
def _leaf(tree: Tree, fault: Fault) -> Iterator[Steer]:
    steer = tree.plan(fault, "egress", 1)
    try:
        make_leaf(tree, steer, fault)
        yield steer
    finally:
        tree.remove_filters(steer)
        tree.remove_leaf(steer)


@contextlib.contextmanager
def _device(netlink: Netlink, name: str, *kinds: str) -> Iterator[int | str]:
    """Yield the index of a scratch device of the first kind that this kernel has, or why none."""
    made: int | str = ""
    for kind in kinds:
        try:
            made = interface.add(netlink, name, kind)
            break
        except OSError as error:
            made = f"no scratch device ({error}): modprobe {kind} on the host, or add CAP_NET_ADMIN"
    if isinstance(made, str):
        yield made
        return
    try:
        interface.set_up(netlink, made, up=True)
        yield made
    finally:
        interface.delete(netlink, made)


def _down_and_up(netlink: Netlink, ifindex: int) -> None:
    for up in (False, True):
        interface.set_up(netlink, ifindex, up=up)
        if interface.get(netlink, ifindex).up is not up:
            raise AgentError(
                "not_available", f"setting a link {'up' if up else 'down'} had no effect"
            )


def _redirect(netlink: Netlink, ifindex: int) -> None:
    with _device(netlink, _SCRATCH_IFB, "ifb") as ifb:
        if isinstance(ifb, str):
            raise AgentError("not_available", ifb)
        netlink.request(
            tc.add_qdisc(ifindex, tc.TC_H_CLSACT, tc.CLSACT_HANDLE, "clsact"),
            redirect_all(ifindex, ifb),
        )
        if not tc.filters(netlink, ifindex, tc.CLSACT_INGRESS):
            raise AgentError("not_available", "a redirection to ifb was added and is not there")
