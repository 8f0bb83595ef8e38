"""Every error that chaoslab raises, in one place.

Two families that pytest must tell apart: a broken promise of the job under test is an
`AssertionError` (pytest shows a failure), a fault of the harness, the machine or the input is
not (pytest shows an error).
"""

from __future__ import annotations


class ChaoslabError(Exception):
    """A fault of the input, the machine or the harness: never a verdict on the job."""


class InvalidScenario(ChaoslabError, ValueError):
    """A scenario, fault or option that can be refused before anything starts."""


class NotAvailable(ChaoslabError):
    """Something that this machine lacks; the message holds the command that mends it."""


class NeedsNetem(NotAvailable):
    """The scenario needs netem and this kernel has none; said before anything starts."""


class HarnessError(ChaoslabError):
    """The harness could not do its own work: neither PASSED nor FAILED follows."""


class ClusterError(HarnessError):
    """Nodes could not be started, reached or removed."""


class AgentError(HarnessError):
    """An agent refused a request, or did not answer within its limit."""


class BoundExceeded(AssertionError):
    """At least one bound of the scenario is broken: the verdict is FAILED."""


class NotProven(AssertionError):
    """The verdict is UNKNOWN: something that a judgement needs is missing."""
