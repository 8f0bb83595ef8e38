"""Reading values out of a request, with errors that say what was given and what is wanted."""

from __future__ import annotations

import ipaddress
import math
from typing import TYPE_CHECKING, Final

from chaoslab.agent.errors import bad_request

if TYPE_CHECKING:
    from collections.abc import Mapping

Wire = dict[str, object]

MAX_SECONDS: Final = 1e9
_PORT_MAX: Final = 65535


def only(given: Mapping[str, object], allowed: frozenset[str], what: str) -> None:
    """Refuse keys that nobody reads, so that a misspelt attribute is never silently ignored.

    Raises:
        AgentError: an unknown key.
    """
    unknown = sorted(set(given) - allowed)
    if unknown:
        raise bad_request(
            f"{what} with {', '.join(unknown)}: want only {', '.join(sorted(allowed))}"
        )


def mapping(given: object, what: str) -> Wire:
    """Return `given` as a mapping.

    Raises:
        AgentError: it is none.
    """
    if not isinstance(given, dict):
        raise bad_request(f"{what}={given!r}: want an object")
    return given


def text(given: Mapping[str, object], key: str, default: str | None = None) -> str:
    """Return the text under `key`.

    Raises:
        AgentError: it is missing and has no default, or is no text.
    """
    value = given.get(key, default)
    if not isinstance(value, str) or not value:
        raise bad_request(f"{key}={value!r}: want text")
    return value


def number(
    given: Mapping[str, object],
    key: str,
    default: float | None = 0.0,
    *,
    low: float = 0.0,
    high: float = MAX_SECONDS,
) -> float:
    """Return the number under `key`, within low..high.

    Raises:
        AgentError: it is missing and has no default, or is no finite number within the limits.
    """
    value = given.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise bad_request(f"{key}={value!r}: want a number from {low:g} to {high:g}")
    if not low <= value <= high:
        hint = f"; for {value:g} % write {value / 100:g}" if key.endswith("_ratio") else ""
        raise bad_request(f"{key}={value!r}: want a number from {low:g} to {high:g}{hint}")
    return float(value)


def ratio(given: Mapping[str, object], key: str, default: float | None = 0.0) -> float:
    """Return the ratio 0..1 under `key`.

    Raises:
        AgentError: it is no number from 0 to 1.
    """
    return number(given, key, default, high=1.0)


def whole(
    given: Mapping[str, object], key: str, default: int | None = 0, *, low: int = 0, high: int
) -> int:
    """Return the whole number under `key`, within low..high.

    Raises:
        AgentError: it is missing and has no default, or is no such whole number.
    """
    value = given.get(key)
    if value is None:
        value = default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise bad_request(f"{key}={value!r}: want a whole number from {low} to {high}")
    return value


def addresses(given: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Return the IPv4 addresses under `key`; a missing key is an empty tuple.

    Raises:
        AgentError: it is no list of IPv4 addresses.
    """
    value = given.get(key) or []
    if not isinstance(value, list):
        raise bad_request(f"{key}={value!r}: want a list of IPv4 addresses")
    try:
        return tuple(str(ipaddress.IPv4Address(str(item))) for item in value)
    except ValueError as error:
        raise bad_request(f"{key}={value!r}: want IPv4 addresses; {error}") from error


def ports(given: Mapping[str, object], key: str) -> tuple[int, ...]:
    """Return the port numbers under `key`; a missing key is an empty tuple.

    Raises:
        AgentError: it is no list of ports.
    """
    value = given.get(key) or []
    if not isinstance(value, list):
        raise bad_request(f"{key}={value!r}: want a list of ports")
    for item in value:
        if isinstance(item, bool) or not isinstance(item, int) or not 0 < item <= _PORT_MAX:
            raise bad_request(f"{key}={value!r}: want ports from 1 to {_PORT_MAX}")
    return tuple(value)
