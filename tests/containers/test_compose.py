"""docker-compose.yml: what it says is what the compose tool, chaoslab and this directory know."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from docker_lab import REPOSITORY
from own_engine import skip_or_fail

from chaoslab.cluster.containers.images import OWN

SOCKET = "/var/run/docker.sock"
TOOLS = ["docker-compose"], ["docker", "compose"]


def tool() -> list[str]:
    """Give the compose tool that is there: Debian's, or the engine's own."""
    for command in TOOLS:
        if shutil.which(command[0]) is not None:
            told = subprocess.run([*command, "version"], capture_output=True, check=False)
            if told.returncode == 0:
                break
    else:
        skip_or_fail("NotAvailable: no compose tool: want `sudo apt-get install docker-compose`")
    return command


def read(file: Path, **environment: str) -> dict[str, Any]:
    """Have the tool read a file, resolve it and print it. Raises: ValueError with its words."""
    told = subprocess.run(
        [*tool(), "--file", str(file), "config"],
        cwd=REPOSITORY,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if told.returncode != 0 or told.stderr.strip():
        raise ValueError(told.stderr)
    return yaml.safe_load(told.stdout)


def missing(lab: dict[str, Any]) -> list[str]:
    """List what a compose file names and what is not there."""
    found = []
    for name, service in lab["services"].items():
        if "build" in service:
            context = Path(service["build"]["context"])
            if not (context / "Dockerfile").is_file():
                found.append(f"{name}: no Dockerfile in {context}")
            if service["image"] != OWN:
                found.append(f"{name}: {service['image']} is not {OWN}, which chaoslab looks for")
        elif service["image"].startswith("chaoslab"):
            found.append(f"{name}: {service['image']} is built nowhere")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0] if isinstance(volume, str) else volume["source"]
            if source.startswith("/") and source != SOCKET and not Path(source).exists():
                found.append(f"{name}: nothing at {source}")
    return found


@pytest.fixture(scope="module")
def lab() -> dict[str, Any]:
    return read(REPOSITORY / "docker-compose.yml")


def test_the_compose_tool_takes_it_and_all_that_it_names_is_there(lab: dict[str, Any]) -> None:
    """The harness with the engine's socket, MinIO, a page server; nothing open to the network."""
    assert set(lab["services"]) == {"lab", "minio", "bucket", "reports"}
    assert missing(lab) == []
    assert f"{SOCKET}:{SOCKET}:rw" in map(str, lab["services"]["lab"]["volumes"])
    ports = [str(port) for service in lab["services"].values() for port in service.get("ports", [])]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_a_base_image_and_keys_of_ones_own_are_taken(tmp_path: Path) -> None:  # noqa: ARG001
    """By variables: the same keys for MinIO and for those who upload."""
    lab = read(REPOSITORY / "docker-compose.yml", BASE_IMAGE="mine:1", MINIO_PASSWORD="chosen-one")
    services = lab["services"]
    assert services["lab"]["build"]["args"] == {"BASE_IMAGE": "mine:1"}
    assert services["minio"]["environment"]["MINIO_ROOT_PASSWORD"] == "chosen-one"
    for name in ("lab", "bucket"):
        assert services[name]["environment"]["AWS_SECRET_ACCESS_KEY"] == "chosen-one"


def test_pytest_takes_the_options_that_the_lab_gives_it(lab: dict[str, Any]) -> None:
    """`docker compose run lab pytest scenarios/`: its options are ones that the plugin has."""
    given = lab["services"]["lab"]["environment"]["PYTEST_ADDOPTS"]
    assert "--chaos-backend=docker" in shlex.split(given)
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "scenarios/", "--collect-only", "-q"],
        cwd=REPOSITORY,
        env=os.environ | {"PYTEST_ADDOPTS": given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "test_a_hard_disconnect" in told.stdout or "test_hard_disconnect" in told.stdout


BROKEN = [
    ("  lab:\n", "  lab:\n    imagine: nothing\n", "imagine"),
    ("      - minio\n", "      - minimo\n", "minimo"),
    ("      - checkpoints:/data\n", "      - check:/data\n", "check"),
    ("127.0.0.1:9000:9000", "127.0.0.1:9000:none", r"minio\.ports"),
]


@pytest.mark.parametrize(("was", "becomes", "named"), BROKEN)
def test_a_mistake_in_it_would_be_found(tmp_path: Path, was: str, becomes: str, named: str) -> None:
    """Planted: an unknown key, a service, a volume and a port that are not there."""
    text = (REPOSITORY / "docker-compose.yml").read_text()
    assert was in text
    broken = tmp_path / "docker-compose.yml"
    broken.write_text(text.replace(was, becomes, 1))
    with pytest.raises(ValueError, match=named):
        read(broken)


def test_a_reference_that_leads_nowhere_would_be_found(tmp_path: Path) -> None:
    """Planted: the same file where there is no Dockerfile and no reports, and another version."""
    text = (REPOSITORY / "docker-compose.yml").read_text()
    moved = tmp_path / "docker-compose.yml"
    moved.write_text(text.replace(OWN, "chaoslab:0.0.9", 1))
    found = "\n".join(missing(read(moved)))
    assert "no Dockerfile in" in found
    assert "chaoslab:0.0.9 is not" in found
    assert f"nothing at {tmp_path / 'reports'}" in found
