"""Options of a run: read from CHAOS_* environment variables, which the pytest options set."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from chaoslab.errors import InvalidScenario

BACKENDS: Final = ("namespaces", "docker")
KERNELS: Final = ("auto", "host", "uml")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How to run scenarios.

    backend: what a node is. image: of the training containers ("" for chaoslab's own where it is
    built, else "host": this machine's files). kernel: auto, host or uml. seed: draws
    `one_rank()` and `ranks(k)`. reports: directory that each run's report goes to. repeat: runs of
    each scenario; every one must pass.
    """

    backend: str = "namespaces"
    image: str = ""
    kernel: str = "auto"
    seed: int = 0
    reports: Path = Path("reports")
    repeat: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot be. Raises: InvalidScenario."""
        if self.backend not in BACKENDS:
            raise InvalidScenario(f"--chaos-backend={self.backend}: want one of {BACKENDS}")
        if self.kernel not in KERNELS:
            raise InvalidScenario(f"--chaos-kernel={self.kernel}: want one of {KERNELS}")
        if self.repeat < 1:
            raise InvalidScenario(f"--chaos-repeat={self.repeat}: want a whole number >= 1")


def from_environment(environment: Mapping[str, str] = os.environ) -> Options:
    """Read the options. Raises: InvalidScenario for a value that is none."""
    given = {}
    for field in dataclasses.fields(Options):
        text = environment.get(f"CHAOS_{field.name.upper()}")
        if text is None:
            continue
        if field.name in ("seed", "repeat"):
            try:
                given[field.name] = int(text)
            except ValueError:
                raise InvalidScenario(f"--chaos-{field.name}={text}: want a whole number") from None
        else:
            given[field.name] = Path(text) if field.name == "reports" else text  # type: ignore[assignment]
    return Options(**given)  # type: ignore[arg-type]
