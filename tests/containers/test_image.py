"""The Dockerfile, built for real on a base of one's own, without any registry; and used."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker_lab import REPOSITORY

from chaoslab import Options, Verdict, run
from chaoslab.cluster.containers.engine import Engine
from chaoslab.cluster.containers.images import OWN
from scenarios.test_kill_during_save import KILL

pytestmark = [pytest.mark.netem(needed=False), pytest.mark.nightly]

BASE, MINE = "chaoslab-test-base:1", "somebodys-job:1"
BUILT_FROM = ["chaoslab", "Dockerfile", ".dockerignore", "constraints.txt", "LICENSE"]
BUILT_FROM += ["pyproject.toml", "README.md"]


@pytest.fixture
def built(fresh_engine: Engine, tmp_path: Path) -> Iterator[Engine]:
    """Give an engine that has chaoslab's image, made on Debian as debootstrap makes it."""
    if shutil.which("debootstrap") is None:
        pytest.skip("NotAvailable: want `sudo apt-get install debootstrap`")
    root, api = tmp_path / "base", fresh_engine.api
    subprocess.run(
        [
            "debootstrap",
            "--variant=minbase",
            "--include=python3,python3-venv",
            "bookworm",
            str(root),
        ],
        check=True,
        capture_output=True,
    )
    archive = tmp_path / "base.tar"
    subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True)
    repository, _, tag = BASE.partition(":")
    with archive.open("rb") as file:
        api.import_image_from_data(file, repository=repository, tag=tag)
    context = tmp_path / "context"
    context.mkdir()
    for name in BUILT_FROM:
        source = REPOSITORY / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, context / name)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--constraint", "constraints.txt"]
    subprocess.run([*pip, "--wheel-dir", "wheels", ".", "hatchling"], cwd=context, check=True)
    said = list(
        api.build(
            path=str(context),
            tag=OWN,
            buildargs={"BASE_IMAGE": BASE, "NO_INDEX": "1"},
            network_mode="none",
            rm=True,
            decode=True,
        )
    )
    assert not any("error" in line for line in said), said[-20:]
    api.tag(OWN, *MINE.split(":"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        yield fresh_engine


def test_scenarios_run_on_the_built_image(built: Engine, tmp_path: Path) -> None:  # noqa: ARG001
    """By default, and as somebody's own image by name; the agents' is chaoslab's in both."""
    short = dataclasses.replace(KILL, job=dataclasses.replace(KILL.job, steps=100))
    for image in ("", MINE):
        options = Options(backend="docker", image=image, kernel="host", reports=tmp_path)
        assert run(short, options=options).verdict is Verdict.PASSED
