"""`python -m chaoslab.agent`: the agent of a container, over standard input and output."""

import sys

from chaoslab.agent.entry import command

sys.exit(command(sys.argv[1:]))
