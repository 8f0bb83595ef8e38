"""Adding a qdisc through pyroute2, with options that pyroute2 0.9.7 cannot spell.

Its netem plugin drops attribute names it does not know without a word, and its compiled map cannot
be extended by a subclass. A plugin of our own takes TCA_OPTIONS as finished bytes (netem.encode).
It can go when pyroute2's sched_netem has LOSS, RATE64, LATENCY64, ECN, SLOT and PRNG_SEED.
"""

from __future__ import annotations

import types
from typing import Any, Final

from pyroute2 import IPRoute
from pyroute2.netlink import NetlinkError as PyrouteError, nlmsg_atoms
from pyroute2.netlink.rtnl.tcmsg import (
    common,
    plugins,
    sched_template,
)

from chaoslab.agent.netlink import NetlinkError

_KINDS: Final = ("netem", "blackhole")


def open_iproute() -> IPRoute:
    """Return a pyroute2 socket of this namespace that takes raw options for netem and blackhole.

    Call it after a fork, in the process and thread that uses it: pyroute2 keeps its socket and its
    event loop per thread.
    """
    for kind in _KINDS:
        plugins[kind] = _raw_plugin()
    return IPRoute()


def add_leaf(
    iproute: IPRoute, *, ifindex: int, parent: int, handle: int, kind: str, options: bytes
) -> None:
    """Add a qdisc of `kind` below a class, with `options` as the bytes of TCA_OPTIONS.

    Raises:
        NetlinkError: the kernel refuses.
    """
    try:
        iproute.tc(
            "add", kind=kind, index=ifindex, handle=handle, parent=parent, raw_options=options
        )
    except PyrouteError as error:
        raise NetlinkError(error.code, f"adding a {kind} qdisc: {error.args[1]}") from error


def _raw_plugin() -> Any:
    plugin = types.SimpleNamespace(**vars(sched_template))
    plugin.options = nlmsg_atoms.cdata
    plugin.stats2 = common.stats2
    plugin.get_parameters = _raw_options
    return plugin


def _raw_options(request: dict[str, Any]) -> bytes:
    found: bytes = request["raw_options"]
    return found
