"""What is sent into the nodes: the job's code and chaoslab, nothing that is hidden or huge."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from chaoslab.cluster.containers import payload
from chaoslab.errors import InvalidScenario


def names(data: bytes) -> list[str]:
    """List the files of an archive."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return sorted(entry.name for entry in tar if entry.isfile())


def make(root: Path, *files: str) -> None:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def test_the_working_directory_is_sent_without_what_is_not_code(tmp_path: Path) -> None:
    """No hidden directory, no virtual environment by any name, no reports, no caches."""
    make(tmp_path, "a/train.py", "b/data.txt", ".git/config", ".env", "reports/r/report.json")
    make(tmp_path, "venv/pyvenv.cfg", "venv/lib/x.py", "a/__pycache__/train.pyc")
    data, script = payload.of_job(tmp_path, tmp_path / "a" / "train.py")
    assert names(data) == ["a/train.py", "b/data.txt"]
    assert script == Path("a/train.py")


def test_a_script_from_elsewhere_brings_its_own_directory(tmp_path: Path) -> None:
    """It may import what lies beside it."""
    make(tmp_path, "here/x.py", "there/train.py", "there/model/net.py")
    data, script = payload.of_job(tmp_path / "here", tmp_path / "there" / "train.py")
    assert (names(data), script) == (["model/net.py", "train.py"], Path("train.py"))


def test_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    """Before anything starts, with what to do; what is exactly at the limit is sent."""
    make(tmp_path, "train.py")
    room = payload.LIMIT_BYTES - (tmp_path / "train.py").stat().st_size
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(room + 1)
    with pytest.raises(InvalidScenario, match="more than 64 MiB of files to send"):
        payload.of_job(tmp_path, tmp_path / "train.py")
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(room)
    assert len(names(payload.of_job(tmp_path, tmp_path / "train.py")[0])) == 2


def test_chaoslab_itself_is_sent_whole() -> None:
    """The agent, the pod and the library, with what they read besides."""
    sent = names(payload.of_chaoslab())
    for name in ("agent/__main__.py", "cluster/pod.py", "resilience/store.py", "probe.py"):
        assert f"chaoslab/{name}" in sent
    assert not any("__pycache__" in name for name in sent)
