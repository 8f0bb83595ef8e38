"""Fixtures of the agent's tests; the measured table is printed at the end of the run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from lab import Lab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lab import AgentClient

_ROWS: list[str] = []
_CAPABILITIES: dict[str, Any] = {}


@pytest.fixture(scope="module")
def module_lab() -> Iterator[Lab]:
    """Three nodes on a bridge, shared by one file's tests."""
    with Lab(3) as made:
        yield made


@pytest.fixture
def lab(module_lab: Lab) -> Iterator[Lab]:
    """Yield the file's lab; the sockets and agents made in it end with the test."""
    yield module_lab
    module_lab.scratch.close()


@pytest.fixture
def agent(lab: Lab) -> AgentClient:
    """Return an agent in node 0, set up."""
    return lab.nodes[0].agent()


@pytest.fixture
def need(agent: AgentClient) -> Callable[..., None]:
    """Skip, with the agent's own reason, where this kernel lacks a capability."""

    def check(*names: str) -> None:
        if not _CAPABILITIES:
            _CAPABILITIES.update(agent.ask("probe")["capabilities"])
        for name in names:
            if _CAPABILITIES[name] is not True:
                pytest.skip(f"NotAvailable: {_CAPABILITIES[name]}")

    return check


@pytest.fixture
def measured() -> Callable[[str, object, object, str], None]:
    """Add a row to the measured table: what, asked, measured, and how it was judged."""

    def add(what: str, asked: object, found: object, judged: str) -> None:
        def show(value: object) -> str:
            return f"{value:.5g}" if isinstance(value, float) else str(value)

        _ROWS.append(f"| {what} | {show(asked)} | {show(found)} | {judged} |")

    return add


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the measured table."""
    if _ROWS:
        terminalreporter.section("measured")
        terminalreporter.write_line("| what | asked | measured | judged by |")
        terminalreporter.write_line("|---|---|---|---|")
        for row in _ROWS:
            terminalreporter.write_line(row)
