"""Figures of a report.json as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaoslab.measure import number

Data = Mapping[str, Any]
"""The content of a report.json, or a part of it."""


def figure_text(figure: Data) -> str:
    """Give a measurement's value with its unit, `-` where there is none."""
    if figure["value"] is None:
        return "-"
    return "never" if figure["value"] == "never" else number(figure["value"], figure["unit"])
