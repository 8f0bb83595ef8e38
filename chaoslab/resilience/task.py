"""Task: what a runner trains, and how its state lies in a checkpoint."""

from __future__ import annotations

from typing import Any, Protocol

from chaoslab.resilience.state import PER_RANK, random_states


class Task(Protocol):
    """What the runner trains: implement these and give it to `FaultTolerantRunner.run`."""

    def reset(self) -> None:
        """Put model, optimizer and random states to what they are before the first step."""

    def attach(self) -> None:
        """Wrap the model in DDP, on the default process group."""

    def detach(self) -> None:
        """Drop every reference to DDP; called twice it does no harm."""

    def step(self, step: int) -> float:
        """Do one step (1-based) and give its loss."""

    def state_dict(self) -> dict[str, Any]:
        """Give all state but the random states, loadable with weights_only=True.

        What is this rank's own (its place in the data, say) belongs under `state.PER_RANK`.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave; without PER_RANK when another world size saved it."""


def saved_state(of_task: dict[str, Any]) -> dict[str, Any]:
    """Give what a checkpoint holds: the task's state, and apart from it what is one rank's own."""
    own = {"random": random_states()}
    if PER_RANK in of_task:
        own["task"] = of_task[PER_RANK]
    shared = {key: value for key, value in of_task.items() if key != PER_RANK}
    return {"task": shared, PER_RANK: own}


def state_of_task(saved: dict[str, Any]) -> dict[str, Any]:
    """Give the task's state out of what a checkpoint holds."""
    shared: dict[str, Any] = saved["task"]
    own = saved.get(PER_RANK, {})
    return shared | ({PER_RANK: own["task"]} if "task" in own else {})
