"""Text that came from a job, a path or a kernel, made harmless for a terminal and Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SYNTAX = re.compile(
    r"[\\`*\[\]<>#|~&@$]"  # spans, links, tags, tables, entities, mentions, formulas
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"  # emphasis; within a word it is none
    r"|:(?=//)|(?<=www)\."  # links that some readers make of bare addresses
    r"|^[-+=]|(?<=^\d)[.)]|(?<=^\d\d)[.)]"  # a list or a heading at the beginning
)


def plain(text: object) -> str:
    """Give text on one line, without control or direction characters: safe to print."""
    return "".join(_visible(char) for char in str(text))


def _visible(char: str) -> str:
    if char in "\n\r\t":
        return " "
    if char.isprintable():
        return char
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"  # noqa: PLR2004


def escaped(text: object) -> str:
    """Give text that Markdown shows as it is: whatever of its syntax it holds is escaped.

    Source: CommonMark 0.31, section 2.4: any ASCII punctuation may be backslash-escaped.
    """
    return _SYNTAX.sub(r"\\\g<0>", plain(text).strip())


def code(text: object) -> str:
    """Give a code span, whatever backticks the text holds."""
    shown = plain(text)
    if not shown.strip():
        return ""
    fence = "`" * (_longest_run(shown) + 1)
    space = " " if "`" in shown or shown != shown.strip() else ""
    return f"{fence}{space}{shown}{space}{fence}"


def block(text: str, language: str = "") -> str:
    """Give a fenced block that the text cannot close."""
    shown = "\n".join(plain(line) for line in text.split("\n"))
    fence = "`" * max(3, _longest_run(shown) + 1)
    return f"{fence}{language}\n{shown}\n{fence}"


def markdown_table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Give a table of cells that are Markdown already."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    """Escape the pipes that are not: in a table also those within a code span. Source: GFM."""
    return re.sub(r"(?<!\\)\|", r"\\|", text)


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)
