"""The job that the scenarios break: four nodes, a small transformer, a save every 20 steps."""

from chaoslab import Job, on_failure

CHARLM = Job(
    script="examples/charlm.py",
    nodes=4,
    steps=200,
    args=("--save-every", "20", "--step-floor-s", "0.05"),
    restart=on_failure(limit=3),
)
