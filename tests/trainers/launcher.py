"""A launcher: starts counter.py as a child in a session of its own, and ends as it does."""

import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    command = [sys.executable, str(Path(__file__).with_name("counter.py")), *sys.argv[1:]]
    sys.exit(subprocess.run(command, check=False, start_new_session=True).returncode)
