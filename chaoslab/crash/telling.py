"""Telling: an exploration as a table, as JSON, and as a script that shows one failing state."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from chaoslab.crash.disk import Content
from chaoslab.crash.exploration import Exploration, Failure, Result
from chaoslab.crash.judging import ORDER, Verdict

FORMAT: Final = 1
_SHOWN: Final = 3
_LINE: Final = 76


def table(explored: Exploration) -> str:
    """Give the table by model and verdict, and under it the failures in words."""
    heads = ["model", "verdict", "states", "unique", *(verdict.value for verdict in ORDER), "s"]
    rows = [heads, *(_row(result) for result in explored.results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)  # noqa: PLR2004  names, then figures
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    for result in explored.results:
        lines += ["", *_told(result)] if result.failures or result.is_bounded else []
    if explored.unseen:
        lines += ["", f"UNKNOWN: not recorded: {'; '.join(explored.unseen)}"]
    return "\n".join(lines) + "\n"


def _row(result: Result) -> list[str]:
    counts = [str(result.counts.get(verdict, 0)) for verdict in ORDER]
    more = "+" if result.is_bounded else ""
    return [
        result.model,
        result.verdict.value,
        f"{result.states}{more}",
        str(result.unique),
        *counts,
        f"{result.seconds:.1f}",
    ]


def _told(result: Result) -> list[str]:
    lines = []
    if result.is_bounded:
        lines.append(f"{result.model}: there are more states than the {result.states} tried")
    for failure in result.failures[:_SHOWN]:
        states = "state" if failure.states == 1 else "states"
        lines.append(f"{result.model}: {failure.verdict.value} in {failure.states} {states}")
        lines += [f"    {failure.words}", f"    {_one_line(failure.reason)}"]
    if len(result.failures) > _SHOWN:
        lines.append(f"{result.model}: {len(result.failures) - _SHOWN} more kinds of failure")
    return lines


def _one_line(text: str) -> str:
    """Give a restore's words without what a terminal would take for its own."""
    return "".join(one if one.isprintable() else " " for one in text)


def as_json(explored: Exploration) -> dict[str, Any]:
    """Give the exploration as JSON values, without the states' files."""
    return {
        "format": FORMAT,
        "verdict": explored.verdict.value,
        "operations": explored.operations,
        "unseen": list(explored.unseen),
        "models": [
            {
                "model": result.model,
                "verdict": result.verdict.value,
                "states": result.states,
                "unique": result.unique,
                "is_bounded": result.is_bounded,
                "seconds": round(result.seconds, 3),
                "counts": {verdict.value: result.counts.get(verdict, 0) for verdict in Verdict},
                "failures": [_failure_as_json(failure) for failure in result.failures],
            }
            for result in explored.results
        ],
    }


def _failure_as_json(failure: Failure) -> dict[str, Any]:
    return {
        "verdict": failure.verdict.value,
        "states": failure.states,
        "crash": failure.words,
        "reason": failure.reason,
        "files": {path: _size(content) for path, content in failure.files},
    }


def _size(content: Content) -> int | str | None:
    return len(content) if isinstance(content, bytes) else content


def write_report(directory: Path, explored: Exploration, restore: str) -> list[Path]:
    """Write crashtest.json, crashtest.txt, and for each model that fails a script; give them.

    restore: MODULE:FUNCTION, for the scripts. Each file is whole or not there. Raises: OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    texts = {
        "crashtest.json": json.dumps(as_json(explored), indent=2) + "\n",
        "crashtest.txt": table(explored),
    }
    for result in explored.results:
        if result.failures:
            worst = max(result.failures, key=lambda one: ORDER.index(one.verdict))
            texts[f"reproduce-{result.model}.py"] = script(worst, restore)
    for name, text in texts.items():
        partial = directory / f".{name}.partial"
        partial.write_text(text, encoding="utf-8")
        partial.replace(directory / name)
    return [directory / name for name in texts]


def script(failure: Failure, restore: str) -> str:
    """Give a script that builds the failing state and restores from it; it needs nothing else."""
    module, _, function = restore.partition(":")
    return _SCRIPT.format(
        words=_one_line(failure.words).replace("\\", "/").replace('"""', "'''"),
        verdict=failure.verdict.value,
        reason=repr(_one_line(failure.reason)),
        module=repr(module),
        function=repr(function),
        files=_files(dict(failure.files)),
    )


def _files(found: Mapping[str, Content]) -> str:
    lines = []
    for path, content in found.items():
        if isinstance(content, bytes):
            packed = base64.b85encode(zlib.compress(content, 9)).decode()
            pieces = [packed[begin : begin + _LINE] for begin in range(0, len(packed), _LINE)]
            lines.append(f"    {path!r}: (\n")
            lines += [f"        {piece!r}\n" for piece in pieces]
            lines.append("    ),\n")
        else:
            lines.append(f"    {path!r}: {None if content is None else [content]!r},\n")
    return "".join(lines)


_SCRIPT: Final = '''\
"""Builds the directory that one crash leaves, and restores from it. Made by chaoslab crashtest.

The crash: {words}
"""

import base64
import importlib
import pathlib
import sys
import tempfile
import zlib

VERDICT, REASON = {verdict!r}, {reason}
FILES = {{  # text: a file's bytes; a list: a symbolic link; None: a directory
{files}}}


def build(root: pathlib.Path) -> None:
    for path, content in FILES.items():
        if content is None:
            (root / path).mkdir()
        elif isinstance(content, list):
            (root / path).symlink_to(content[0])
        else:
            (root / path).write_bytes(zlib.decompress(base64.b85decode(content)))


if __name__ == "__main__":
    sys.path.insert(0, "")
    where = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    build(where)
    print(f"{{where}} holds the state; its verdict was {{VERDICT}}: {{REASON}}")
    print(repr(getattr(importlib.import_module({module}), {function})(where))[:500])
'''
