"""The faults of the wire, parsed and checked before anything is touched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from chaoslab.agent import wire
from chaoslab.agent.errors import bad_request
from chaoslab.agent.netem_value import Netem, parse_netem

if TYPE_CHECKING:
    from collections.abc import Mapping

Direction = Literal["egress", "ingress"]
Kind = Literal["netem", "silent_drop", "link_down", "reset", "flap"]

KINDS: Final = ("netem", "silent_drop", "link_down", "reset", "flap")
_DIRECTIONS: Final[dict[str, tuple[Direction, ...]]] = {
    "egress": ("egress",),
    "ingress": ("ingress",),
    # Ingress first: were egress cut first, nothing would come back to show that ingress is cut too.
    "both": ("ingress", "egress"),
}
_COMMON_KEYS: Final = frozenset(("kind", "direction", "peers", "ports"))
_EXTRA_KEYS: Final = {
    "netem": frozenset(("netem",)),
    "flap": frozenset(("of", "down_s", "up_s")),
}
_FILTER_LIMIT: Final = 4096
_FLAP_SHORTEST_S: Final = 0.001


@dataclass(frozen=True, kw_only=True)
class Match:
    """Which packets: directions, peers and ports; an empty tuple of peers or ports means all."""

    directions: tuple[Direction, ...]
    peers: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: what (kind), to which packets (match), and how (netem, or flapping of another)."""

    kind: Kind
    match: Match
    netem: Netem | None = None
    of: Fault | None = None
    down_s: float = 0.0
    up_s: float = 0.0

    @property
    def core(self) -> Fault:
        """The fault that flaps, or this one."""
        return self.of or self

    @property
    def cuts_all(self) -> bool:
        """Whether no packet that it matches gets through."""
        if self.netem is not None:
            return self.netem.expected_loss_ratio >= 1
        return self.core.kind in {"silent_drop", "link_down"}


def parse_fault(given: Mapping[str, object]) -> Fault:
    """Return the fault that a request describes.

    Raises:
        AgentError: unknown kind, unknown key, a value out of range, or a filter that cannot apply.
    """
    kind = wire.text(given, "kind")
    if kind not in KINDS:
        raise bad_request(f"fault kind={kind!r}: want one of {', '.join(KINDS)}")
    wire.only(given, _COMMON_KEYS | _EXTRA_KEYS.get(kind, frozenset()), f"fault {kind}")
    match = _parse_match(given)
    if kind == "netem":
        netem = parse_netem(wire.mapping(given.get("netem"), "netem"))
        return Fault(kind="netem", match=match, netem=netem)
    if kind == "flap":
        return _parse_flap(given)
    if kind == "link_down" and (match.peers or match.ports or len(match.directions) == 1):
        raise bad_request("link_down with peers, ports or one direction: want direction both and "
                          "no filter; for a cut to some peers use silent_drop")  # fmt: skip
    return Fault(kind=kind, match=match)  # type: ignore[arg-type]  # checked against KINDS above


def _parse_flap(given: Mapping[str, object]) -> Fault:
    inner = parse_fault(wire.mapping(given.get("of"), "of"))
    if inner.kind not in {"link_down", "silent_drop"}:
        raise bad_request(f"flap of {inner.kind}: want of link_down or silent_drop")
    return Fault(
        kind="flap",
        match=inner.match,
        of=inner,
        down_s=wire.number(given, "down_s", None, low=_FLAP_SHORTEST_S),
        up_s=wire.number(given, "up_s", None, low=_FLAP_SHORTEST_S),
    )


def _parse_match(given: Mapping[str, object]) -> Match:
    direction = wire.text(given, "direction", "both")
    if direction not in _DIRECTIONS:
        raise bad_request(f"direction={direction!r}: want egress, ingress or both")
    peers, ports = wire.addresses(given, "peers"), wire.ports(given, "ports")
    if 4 * max(len(peers), 1) * max(len(ports), 1) > _FILTER_LIMIT:
        raise bad_request(f"{len(peers)} peers and {len(ports)} ports: want at most "
                          f"{_FILTER_LIMIT // 4} pairs; name fewer, or none for all")  # fmt: skip
    return Match(directions=_DIRECTIONS[direction], peers=peers, ports=ports)
