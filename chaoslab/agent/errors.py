"""The one error that the agent answers with; its kind is part of the protocol."""

from __future__ import annotations

from typing import Literal

ErrorKind = Literal["not_available", "bad_request", "failed"]


class AgentError(Exception):
    """A request cannot be carried out; `kind` says whose doing that is.

    `not_available`: this kernel or container lacks something, the message names what mends it.
    `bad_request`: the request is wrong. `failed`: it was right and did not work.
    """

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind
        self.message = message


def bad_request(message: str) -> AgentError:
    """Return the error for a request that is wrong."""
    return AgentError("bad_request", message)


def not_available(message: str) -> AgentError:
    """Return the error for something this kernel or container lacks."""
    return AgentError("not_available", message)


def failed(message: str) -> AgentError:
    """Return the error for a right request that did not work."""
    return AgentError("failed", message)
