"""The images of a run: the training containers', and chaoslab's own for the agents and the store.

`host` is an image without files: this machine's /usr and Python environment are mounted into it,
read-only. It needs no registry and no build, and an engine on this machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import io
import sys
import tarfile
from pathlib import Path
from typing import Final

import docker.errors
import docker.types

from chaoslab.cluster.containers.engine import ENGINE_LABEL, Engine
from chaoslab.errors import NotAvailable

HOST: Final = "host"
OWN: Final = f"chaoslab:{importlib.metadata.version('chaoslab')}"
"""What `docker build -t chaoslab:VERSION .` of the Dockerfile makes."""

USER: Final = 1000
"""Whom ranks run as: uid and gid, in every image."""

_LINKS: Final = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
_EMPTY: Final = ("usr", "dev", "proc", "sys", "run", "root", "var", "etc", "opt", "home")
_ACCOUNTS: Final = {
    "etc/passwd": f"root:x:0:0:root:/root:/bin/sh\nrank:x:{USER}:{USER}:rank:/tmp:/bin/sh\n",
    "etc/group": f"root:x:0:\nrank:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_ALSO: Final = ("/etc/ssl", "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Image:
    """An image by name, the interpreter in it, and what is mounted into it read-only."""

    name: str
    python: str
    mounts: tuple[Path, ...] = ()

    def mount_options(self) -> list[docker.types.Mount]:
        """Give the mounts in the engine's terms."""
        return [
            docker.types.Mount(str(path), str(path), type="bind", read_only=True)
            for path in self.mounts
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images:
    """training: of the ranks. own: of the agents and the store."""

    training: Image
    own: Image


def choose(engine: Engine, wanted: str) -> Images:
    """Find the images of a run. wanted: a name, "host", or "" for chaoslab's own where it is built.

    Raises: NotAvailable with the command that mends it.
    """
    host_works = engine.about.is_local and sys.platform == "linux"
    has_own = _has(engine, OWN)
    if wanted == HOST and not host_works:
        raise NotAvailable(
            f"--chaos-image=host: the engine ({engine.about.system}) does not share this machine's "
            f"files: build chaoslab's image for it (`docker build -t {OWN} .`)"
        )
    if wanted not in ("", HOST) and not _has(engine, wanted):
        raise NotAvailable(
            f"--chaos-image={wanted}: the engine has no such image: pull or build it"
        )
    if not has_own and not host_works:
        raise NotAvailable(f"the engine has no image {OWN}: `docker build -t {OWN} .` in chaoslab")
    host = _host_image(engine) if host_works and (wanted == HOST or not has_own) else None
    own = Image(name=OWN, python="python3") if has_own and wanted != HOST else host
    assert own is not None
    if wanted in ("", HOST):
        return Images(training=own, own=own)
    return Images(training=Image(name=wanted, python="python3"), own=own)


def _has(engine: Engine, name: str) -> bool:
    try:
        engine.api.inspect_image(name)
    except docker.errors.NotFound:
        return False
    return True


def _host_image(engine: Engine) -> Image:
    data = _skeleton()
    name = f"chaoslab-host:{hashlib.sha256(data).hexdigest()[:12]}"
    if not _has(engine, name):
        repository, _, tag = name.partition(":")
        engine.api.import_image_from_data(
            data, repository=repository, tag=tag, changes=[f"LABEL {ENGINE_LABEL}=1"]
        )
    return Image(name=name, python=sys.executable, mounts=_mounts())


def _mounts() -> tuple[Path, ...]:
    """List what of this machine a Python process needs; nothing lies inside another."""
    wanted = [Path("/usr"), *(Path(name) for name in _ALSO)]
    wanted += [Path(prefix).resolve() for prefix in (sys.base_prefix, sys.prefix)]
    chosen: list[Path] = []
    for path in sorted(set(wanted), key=lambda path: len(path.parts)):
        if path.exists() and not any(path.is_relative_to(other) for other in chosen):
            chosen.append(path)
    return tuple(chosen)


def _skeleton() -> bytes:
    """Give an archive of a root without programs: links, empty directories, accounts."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, mode in (
            *((name, 0o755) for name in _EMPTY),
            ("tmp", 0o1777),
            ("var/tmp", 0o1777),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        for name, target in _LINKS.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
        for name, text in _ACCOUNTS.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()
