"""Making a fault's leaf qdisc and proving, by reading it back, that the kernel took all of it."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from chaoslab.agent import netem
from chaoslab.agent.errors import AgentError, failed, not_available
from chaoslab.agent.netlink import NetlinkError

if TYPE_CHECKING:
    from chaoslab.agent import tc
    from chaoslab.agent.faults import Fault
    from chaoslab.agent.tree import Steer, Tree


def make_leaf(tree: Tree, steer: Steer, fault: Fault) -> dict[str, object]:
    """Add the class and leaf of one direction of a fault and return what was read back.

    Raises:
        AgentError: `not_available` where the kernel lacks the qdisc or an attribute of it; `failed`
            where it holds something else than what was asked.
    """
    asked = netem.to_kernel(fault.netem) if fault.netem else None
    try:
        leaf = tree.add_leaf(steer, netem.encode(asked) if asked else b"")
    except NetlinkError as error:
        raise _explained(error, steer.kind) from error
    evidence: dict[str, object] = {
        "qdisc": leaf.kind,
        "handle": f"{leaf.handle >> 16:x}:",
        "filters": steer.filters,
    }
    if asked:
        evidence["netem"] = check_read_back(asked, leaf)
    if fault.netem and fault.netem.caveats:
        evidence["caveats"] = fault.netem.caveats
    return evidence


def check_read_back(asked: netem.KernelNetem, leaf: tc.Qdisc) -> dict[str, object]:
    """Return netem's state as the kernel holds it.

    Raises:
        AgentError: it differs from what was asked; `not_available` where the kernel is too old.
    """
    held = netem.decode(leaf.options)
    wrong = netem.differences(asked, held)
    if not wrong:
        return netem.as_evidence(held)
    if all(line.startswith("netem seed") for line in wrong):
        raise not_available(
            f"kernel {os.uname().release} ignores netem's seed: want Linux 6.6 or newer"
        )
    raise failed("; ".join(wrong))


def _explained(error: NetlinkError, kind: str) -> AgentError:
    name = errno.errorcode.get(error.errno or 0, "?")
    if error.errno in {errno.ENOENT, errno.EOPNOTSUPP}:
        return not_available(f"this kernel has no sch_{kind} (adding a {kind} qdisc: {name})")
    return failed(str(error))
