"""Runs a command under a user-mode Linux kernel that has netem; needs no root.

In reading order: ``availability`` (does the host have netem?), ``uml`` (is user-mode Linux
here?), ``xstate`` (what it needs on a CPU with AMX), ``run`` (the host's side of one guest),
``launch`` (its lines), ``prefault``
(makes fresh memory cheap in a guest), ``guardian`` (a script
that owns the guest and leaves nothing), ``guest_init`` (a script that is the guest's process 1).
"""

from chaoslab.kernel.availability import Availability, host_has_netem
from chaoslab.kernel.errors import KernelError
from chaoslab.kernel.run import run_in_uml
from chaoslab.kernel.uml import user_mode_linux

__all__ = ["Availability", "KernelError", "host_has_netem", "run_in_uml", "user_mode_linux"]
