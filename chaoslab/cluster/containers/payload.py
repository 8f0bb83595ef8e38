"""What is sent into the nodes: chaoslab itself, and the job's files. Tar archives, in memory."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chaoslab import errors
from chaoslab.errors import InvalidScenario

LIMIT_BYTES: Final = 64 << 20
_LEFT_OUT: Final = frozenset({"__pycache__", "node_modules", "reports"})


def of_chaoslab() -> bytes:
    """Give an archive of the package chaoslab as it is installed here."""
    package = Path(errors.__file__).parent
    return _archive(
        [(path, Path("chaoslab") / path.relative_to(package)) for path in _files(package)]
    )


def of_job(cwd: Path, script: Path) -> tuple[bytes, Path]:
    """Give an archive of the job's files, and the script's place in it.

    That is all of the working directory but hidden directories, reports and virtual environments,
    or, where the script is elsewhere, the script's own directory. Raises: InvalidScenario.
    """
    root = cwd if script.is_relative_to(cwd) else script.parent
    chosen, total_bytes = [], 0
    for path in _files(root):
        total_bytes += path.stat().st_size
        if total_bytes > LIMIT_BYTES:
            raise InvalidScenario(
                f"{root}: more than {LIMIT_BYTES >> 20} MiB of files to send into the nodes: want "
                "only the job's code there; put data into the image, or run from a directory that "
                "holds the code alone"
            )
        chosen.append((path, path.relative_to(root)))
    if script not in (path for path, _ in chosen):
        raise InvalidScenario(
            f"{script}: not among what is sent into the nodes (hidden directories, reports and "
            "virtual environments are left out): want the script elsewhere"
        )
    return _archive(chosen), script.relative_to(root)


def directories(*names: str, mode: int = 0o755) -> bytes:
    """Give an archive of empty directories."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
    return buffer.getvalue()


def _files(root: Path) -> Iterator[Path]:
    for directory_name, directories, names in os.walk(root):
        here = Path(directory_name)
        directories[:] = sorted(
            name
            for name in directories
            if not name.startswith(".")
            and name not in _LEFT_OUT
            and not (here / name / "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            path = here / name
            if not name.startswith(".") and path.is_file():
                yield path


def _archive(files: list[tuple[Path, Path]]) -> bytes:
    """Archive files under names, readable by everybody, whoever they belong to here."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        made: set[Path] = set()
        for path, name in files:
            for parent in reversed(name.parents[:-1]):
                if parent not in made:
                    made.add(parent)
                    entry = tarfile.TarInfo(str(parent))
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(entry)
            data = path.read_bytes()
            entry = tarfile.TarInfo(str(name))
            entry.size, entry.mode = len(data), 0o755 if os.access(path, os.X_OK) else 0o644
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
