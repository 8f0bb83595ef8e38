"""Names what a run was made with: a figure without its versions cannot be compared."""

from __future__ import annotations

import importlib.metadata
import os
import platform

from chaoslab.cluster.containers.engine import About
from chaoslab.options import Options

_PACKAGES = ("chaoslab", "torch", "pyroute2", "pytest")


def of_a_run(options: Options, engine: About | None) -> dict[str, str]:
    """Give versions of Python, the packages, the kernel, and what the run was done with.

    engine: that the nodes were containers of (None: they were none).
    """
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    in_uml = os.environ.get("CHAOSLAB_IN_UML") == "1"
    found |= {
        "backend": options.backend,
        "kernel_choice": "uml" if in_uml else "host",
        "processors": str(os.cpu_count()),
    }
    return found | ({} if engine is None else engine.versions())
