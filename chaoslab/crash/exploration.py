"""Exploration: every crash state of a recording that is tried, built, restored from and judged."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from chaoslab.crash.checking import Checkers, Restore
from chaoslab.crash.crashes import crashes
from chaoslab.crash.disk import Content, Impossible
from chaoslab.crash.judging import ORDER, Demand, Restored, Verdict, judge
from chaoslab.crash.models import MODELS, Crash, Model
from chaoslab.crash.operations import Acknowledged
from chaoslab.crash.recording import Recording, marked, record
from chaoslab.crash.reduction import reduced
from chaoslab.crash.states import Replay, State, unique
from chaoslab.crash.words import Words

MOST_STATES: Final = 20_000
"""Of one model, unless told otherwise; a report says when there were more."""

_DRAWN_FROM: Final = 10
"""Where there are more states than are to be tried, they are drawn from so many times as many."""

RESTORE_LIMIT_S: Final = 30.0
_BEFORE_ALL: Final = -1

_Kind = tuple[Verdict, str]
"""Failures that look alike: the verdict, and what the restore raised."""


class ExplorationFailed(Exception):
    """The saver and the restore do not fit together: nothing can be judged."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """One kind of failing state: the shortest crash found, in words, and how many states have it.

    reason: what a restore gave of it and what it had to give. files: by path, what it left.
    """

    verdict: Verdict
    reason: str
    crash: Crash
    words: str
    states: int
    files: tuple[tuple[str, Content], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """Of one model. states: judged; unique: different directories among them.

    is_bounded: there were more states than were to be tried, which were drawn from them.
    """

    model: str
    states: int
    unique: int
    counts: dict[Verdict, int]
    failures: tuple[Failure, ...]
    is_bounded: bool
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """Give the worst verdict."""
        return max(self.counts, key=ORDER.index, default=Verdict.UNKNOWN)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exploration:
    """unseen: what the recording does not hold, in words: then nothing is proven."""

    results: tuple[Result, ...]
    operations: int
    unseen: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """Give the worst verdict; UNKNOWN where something was not seen."""
        if self.unseen:
            return Verdict.UNKNOWN
        return max((one.verdict for one in self.results), key=ORDER.index, default=Verdict.UNKNOWN)


def explore(
    save: Callable[[Path, int], Any],
    restore: Restore,
    *,
    steps: Sequence[int] = (1, 2, 3),
    models: Sequence[str] = tuple(MODELS),
    workers: int | None = None,
    most_states: int = MOST_STATES,
    restore_limit_s: float = RESTORE_LIMIT_S,
    seed: int = 0,
) -> Exploration:
    """Record the saves of some steps, and judge the restore after every crash that is tried.

    save: called with a directory and each step in turn, in a process of its own; it has saved when
    it returns. restore: called with a directory; gives what was saved there last, which must be
    another value for each step; None or an exception when there is nothing. It may change the
    directory, which is a copy.

    Raises: ExplorationFailed; RecordingFailed; ValueError for a model that is none.
    """
    if unknown := sorted(set(models) - set(MODELS)):
        raise ValueError(f"models={unknown}: want some of {', '.join(MODELS)}")
    with tempfile.TemporaryDirectory(prefix="chaoslab-crash-") as place:
        root, marks = Path(place, "root"), Path(place, "marks")
        root.mkdir()
        recording = record(root, lambda: marked(save, root, steps, marks), marks=marks)
    return explore_recording(
        recording,
        restore,
        models=models,
        workers=workers,
        most_states=most_states,
        restore_limit_s=restore_limit_s,
        seed=seed,
    )


def explore_recording(
    recording: Recording,
    restore: Restore,
    *,
    models: Sequence[str] = tuple(MODELS),
    workers: int | None = None,
    most_states: int = MOST_STATES,
    restore_limit_s: float = RESTORE_LIMIT_S,
    seed: int = 0,
) -> Exploration:
    """Judge the restore after every crash of a recording that is tried. See `explore`."""
    operations = recording.operations
    replay = Replay(operations, recording.start)
    count = workers or len(os.sched_getaffinity(0))
    with Checkers(replay, restore, workers=count, limit_s=restore_limit_s) as checkers:
        explorer = _Explorer(recording, replay, checkers)
        results = [explorer.result(MODELS[name], most_states, seed) for name in models]
    return Exploration(results=tuple(results), operations=len(operations), unseen=recording.unseen)


class _Explorer:
    """What the models of one recording share: states that two of them have are checked once."""

    def __init__(self, recording: Recording, replay: Replay, checkers: Checkers) -> None:
        self._operations, self._replay, self._checkers = recording.operations, replay, checkers
        self._words = Words(self._operations, recording.start)
        self._known: dict[object, Restored] = {}
        self._references = self._find_references()

    def result(self, model: Model, most_states: int, seed: int) -> Result:
        began_s = time.monotonic()
        stream = unique(self._replay, crashes(self._operations, model, seed=seed))
        states = [state for state, _ in itertools.islice(stream, most_states * _DRAWN_FROM)]
        is_bounded = len(states) > most_states
        if is_bounded:  # of all places in the recording, not of its beginning
            chooser = random.Random(seed)  # noqa: S311  a choice that can be repeated, no secret
            chosen = chooser.sample(range(len(states)), most_states)
            states = [states[index] for index in sorted(chosen)]
        counts: Counter[Verdict] = Counter()
        kinds: Counter[_Kind] = Counter()
        shortest: dict[_Kind, State] = {}
        for state, restored in self._checked(states):
            verdict, _ = self._judged(state.crash, restored)
            counts[verdict] += 1
            if verdict is not Verdict.INTACT:
                kind = verdict, (restored.error or "").partition(":")[0]
                kinds[kind] += 1
                if kind not in shortest or _length(state.crash) < _length(shortest[kind].crash):
                    shortest[kind] = state
        return Result(
            model=model.name,
            states=len(states),
            unique=len({state.tree for state in states}),
            counts=dict(counts),
            failures=tuple(self._failures(model, shortest, kinds)),
            is_bounded=is_bounded,
            seconds=time.monotonic() - began_s,
        )

    def _find_references(self) -> dict[str, int]:
        """Restore after each save, with nothing lost: what a crash must give as well."""
        references: dict[str, int] = {}
        start = self._restored(Crash(after=0))
        if start.digest is not None:
            references[start.digest] = _BEFORE_ALL
        for index, operation in enumerate(self._operations):
            if isinstance(operation, Acknowledged):
                restored = self._restored(Crash(after=index + 1))
                after = f"after the save of step {operation.step}, with nothing lost,"
                if restored.digest is None:
                    what = restored.error or restored.unknown or "nothing"
                    raise ExplorationFailed(f"{after} the restore gives {what}: want its state")
                # Several ranks may say that a step has been saved.
                if references.get(restored.digest, operation.step) != operation.step:
                    raise ExplorationFailed(
                        f"{after} the restore gives what it gave before: want a state that is "
                        "another at each step, and has its random numbers, if any, from a seed"
                    )
                references[restored.digest] = operation.step
        if not references:
            raise ExplorationFailed("no save has returned: nothing was acknowledged")
        return references

    def _checked(self, states: Sequence[State]) -> Iterator[tuple[State, Restored]]:
        """Restore from states, from each tree once."""
        new = {state.tree: state for state in states if state.tree not in self._known}
        for state, restored in self._checkers.all(new.values()):
            self._known[state.tree] = restored
        yield from ((state, self._known[state.tree]) for state in states)

    def _restored(self, crash: Crash) -> Restored:
        state = self._replay.state(crash)
        if state.tree not in self._known:
            self._known[state.tree] = self._checkers.one(state)
        return self._known[state.tree]

    def _judged(self, crash: Crash, restored: Restored) -> tuple[Verdict, str]:
        demand = Demand(
            acknowledged=self._replay.acknowledged(crash.after),
            begun=self._replay.begun(crash.after),
        )
        return judge(restored, demand, self._references)

    def _failures(
        self,
        model: Model,
        shortest: dict[_Kind, State],
        kinds: Counter[_Kind],
    ) -> Iterator[Failure]:
        for kind, state in shortest.items():
            verdict = kind[0]

            def fails(crash: Crash, wanted: Verdict = verdict) -> bool:
                try:
                    return self._judged(crash, self._restored(crash))[0] is wanted
                except Impossible:
                    return False

            crash = reduced(state.crash, self._operations, model, fails)
            tree = self._replay.state(crash).tree
            yield Failure(
                verdict=verdict,
                reason=self._judged(crash, self._restored(crash))[1],
                crash=crash,
                words=self._words.of_crash(crash),
                states=kinds[kind],
                files=tuple((path, self._replay.content(found)) for path, found in tree),
            )


def _length(crash: Crash) -> tuple[int, int]:
    return len(crash.losses), crash.after
