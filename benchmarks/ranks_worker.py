"""One process of a measurement by `ranks.py`, which starts it with torchrun. Writes its part to FOLDER/INDEX.json.

torchrun --nproc-per-node R benchmarks/ranks_worker.py FOLDER TASK.json
"""

from __future__ import annotations

import json
import os
import pickle
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, NamedTuple, TypeVar

import gymnasium as gym
import numpy as np
import torch

import surefoot.engine.group
import surefoot.engine.nearby
from surefoot.engine.group import Group, Processes, joined
from surefoot.training.callbacks import Callback
from surefoot.training.config.resolve import resolve
from surefoot.training.life.launch import train_config
from surefoot.training.trainer import Trainer

T = TypeVar("T")
WARM_UP = 3  # exchanges or updates that are not counted


class Computing(gym.Env[Any, Any]):
    """An env whose step is a fixed amount of work, `additions` in Python; it takes longer if the core is shared."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, additions: int = 0) -> None:
        self._additions, self._obs, self._time, self._sum = additions, np.zeros(8, np.float32), 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = int(self.np_random.integers(100))  # episodes of different envs end at different times
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._sum = work(self._additions)
        self._time += 1
        return self._obs, 1.0, self._time >= 200, False, {}


def cheetah() -> gym.Env[Any, Any]:
    """HalfCheetah-v5, stepped in Python: by its id, MuJoCo would step all envs of a process together."""
    return gym.make("HalfCheetah-v5")


def work(additions: int) -> int:
    total = 0
    for number in range(additions):
        total += number
    return total


def additions_for(seconds: float) -> int:
    """The fixed work that takes this long here, when the core is free."""
    fastest = min(_seconds(20_000) for _ in range(20))
    return round(20_000 * seconds / fastest)


def _seconds(additions: int) -> float:
    start = perf_counter()
    work(additions)
    return perf_counter() - start


class Note(NamedTuple):
    """An exchange with the other processes."""

    kind: str
    size: int  # bytes
    start: float
    seconds: float


class Counted(Processes):
    """The group of a run, with a note of every exchange."""

    notes: ClassVar[list[Note]] = []

    @contextmanager
    def _noted(self, kind: str, size: int) -> Iterator[None]:
        start = perf_counter()
        yield
        self.notes.append(Note(kind, size, start, perf_counter() - start))

    def sum_(self, numbers: torch.Tensor) -> torch.Tensor:
        with self._noted("sum", numbers.nbytes):
            return super().sum_(numbers)

    def max_(self, numbers: torch.Tensor) -> torch.Tensor:
        with self._noted("max", numbers.nbytes):
            return super().max_(numbers)

    def agree(self, value: T) -> T:
        with self._noted("agree", _pickled(value)):
            return super().agree(value)

    def gather(self, value: T) -> list[T]:
        with self._noted("gather", _pickled(value)):
            return super().gather(value)


def _pickled(value: object) -> int:
    return len(pickle.dumps(value))


class Diary(Callback):
    """Where the time of every update went, in this process."""

    def __init__(self) -> None:
        self.updates: list[dict[str, Any]] = []
        self._timer: dict[str, float] = {}
        self._before = 0.0

    def on_start(self, trainer: Trainer) -> None:
        Counted.notes.clear()
        self._before = perf_counter()

    def on_update(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        now, timer = perf_counter(), dict(trainer.timer.seconds)
        spent = {name: timer.get(name, 0.0) - self._timer.get(name, 0.0) for name in ("env", "act", "learn")}
        self.updates.append(
            {
                "seconds": now - self._before,
                **spent,
                "waited": sum(note.seconds for note in Counted.notes),
                "exchanges": [(note.kind, note.size) for note in Counted.notes],
                "gradients": _between(Counted.notes),
            }
        )
        Counted.notes.clear()
        self._before, self._timer = now, timer


def _between(notes: list[Note]) -> list[float]:
    """Seconds from the end of each gradient's reduction to the start of the next: this process's own work."""
    largest = max((note.size for note in notes if note.kind == "sum"), default=0)
    pairs = [(a, b) for a, b in pairwise(notes) if a.kind == b.kind == "sum" and a.size == b.size == largest]
    return [b.start - a.start - a.seconds for a, b in pairs]


def updates(task: dict[str, Any]) -> dict[str, Any]:
    """Train for some updates, and report all but the first ones."""
    config = resolve(task["env"], task["algo"], "none", None, task["settings"])
    diary = Diary()
    surefoot.engine.group.Processes = Counted  # type: ignore[misc]
    train_config(config, run_dir=task["run_dir"], callbacks=[diary], progress=False)
    return {"updates": diary.updates[WARM_UP:]}


def reductions(task: dict[str, Any]) -> dict[str, Any]:
    """Seconds per sum by its bytes, and per gather of a small object."""
    with joined() as group:
        sums = {str(size): _timed(group, size, task["repeats"]) for size in task["sizes"]}
        gathers = []
        for _ in range(task["repeats"] + WARM_UP):
            start = perf_counter()
            group.gather((0, None, False))
            gathers.append(perf_counter() - start)
    return {"sums": sums, "gather": statistics.median(gathers[WARM_UP:])}


def _timed(group: Group, size: int, repeats: int) -> list[float]:
    numbers, found = torch.ones(max(1, size // 4)), []
    for _ in range(repeats + WARM_UP):
        start = perf_counter()
        group.sum_(numbers)
        found.append(perf_counter() - start)
        numbers.fill_(1.0)  # or it would grow to infinity
    return found[WARM_UP:]


def main() -> None:
    folder, task = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    if task["gloo"]:  # as on several machines
        surefoot.engine.nearby.find_nearby = lambda *_: None
    found = {"updates": updates, "reductions": reductions}[task["what"]](task)
    (folder / f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
