"""Where an agent of a population first differs from its run alone: which kernel, tensor or file.

    python benchmarks/gpu_population_find.py [--agents 5] [--case CartPole]      # also: gpu_population.py --find

First every kernel and every step of one iteration: two populations, of one agent and of several, are begun from the
same runs, and everything that they launch or give is compared, in order. Then whole runs: the first row of metrics and
the first tensor of the checkpoints that differ.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import gpu_population
import numpy as np
import torch
from safetensors.torch import load_file

from surefoot.engine.contract import Turn
from surefoot.engine.cuda.population.iteration import Parts, Population
from surefoot.engine.cuda.recorder import Recorder
from surefoot.training.config.resolve import TrainConfig
from surefoot.training.life.launch import train_config
from surefoot.training.life.population import joined
from surefoot.training.life.seeds import train_seeds
from surefoot.training.loop.global_generators import seeded_globals
from surefoot.training.trainer import Trainer

Event: TypeAlias = tuple[str, dict[str, torch.Tensor], dict[str, Any]]  # what happened, its tensors, its numbers
COUNTS = ("grid", "aligned", "rows", "num_envs", "programs", "each")  # of all agents, or how rows are divided
UNWRITTEN = ("order_at", "old_at", "dx_at", "limit_at", "shift_at", "scale_at")  # may be a stand-in that is not read


def trainers_of(config: TrainConfig, seeds: range) -> list[Trainer]:
    found = []
    for seed in seeds:
        trainer = Trainer(replace(config, run=replace(config.run, seed=seed)), seed)
        trainer.globals = partial(seeded_globals, seed)
        found.append(trainer)
    return found


@contextmanager
def traced() -> Iterator[list[Event]]:
    """Every launch of a Triton kernel, with copies of its tensors afterwards."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    found: list[Event] = []
    kinds: list[Any] = [JITFunction, InterpretedFunction]
    own = [kind.run for kind in kinds]

    def tracing(run: Callable[..., Any]) -> Callable[..., Any]:
        def traced_run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            result = run(self, *args, grid=grid, warmup=warmup, **kwargs)
            values = dict(zip(self.arg_names, args, strict=False)) | kwargs
            tensors = {name: x.detach().clone() for name, x in values.items() if isinstance(x, torch.Tensor)}
            plain = {name: x for name, x in values.items() if not isinstance(x, torch.Tensor)}
            plain["aligned"] = {name: values[name].data_ptr() % 16 == 0 for name in tensors}
            found.append((self.fn.__name__, tensors, {**plain, "grid": tuple(grid), "code": _code(result)}))
            return result

        return traced_run

    for kind, run in zip(kinds, own, strict=True):
        kind.run = tracing(run)
    try:
        yield found
    finally:
        for kind, run in zip(kinds, own, strict=True):
            kind.run = run


def _code(compiled: Any) -> str:
    """A word for the machine code that was launched; empty in the interpreter."""
    return str(getattr(compiled, "hash", ""))[:12]


def iteration_of(config: TrainConfig, agents: int) -> list[Event]:
    """What the first iteration of so many agents launches, without a graph."""
    trainers = trainers_of(config, range(agents))
    try:
        joined(trainers)  # says what is missing
        parts = [(one.collector, one.learner, one.algorithm) for one in trainers]
        recorder = Recorder()
        recorder.enabled = False
        population = Population([Parts(*part) for part in parts], recorder)  # type: ignore[arg-type]
        for trainer in trainers:
            trainer.learner.recorder.enabled = False  # type: ignore[attr-defined]
        with trainers[0].held():
            if not population.ready():
                raise SystemExit("the kernels were tried and are not used; `surefoot train` says why")
            with traced() as found:
                flight = population.begin([Turn(agent, 0, (1.0,)) for agent in range(agents)])
                assert flight is not None
            page = flight.pages[0]
            page.read(agents, population.num_envs)
            rows = torch.from_numpy(page.rows)
            found.append(("metrics", {name: rows[:, at] for at, name in enumerate(page.names)}, {}))
            live = {f"state {at}": x for at, x in enumerate(population._live)}
            found.append(("state", {name: x.detach().clone() for name, x in live.items()}, {}))
        return found
    finally:
        for trainer in trainers:
            trainer.envs.close()


def own_parts(x: torch.Tensor, mine: torch.Tensor, agents: int) -> Iterator[torch.Tensor]:
    """The ways in which the first agent's numbers may lie among those of all, in the shape that they have alone."""
    if x.shape == mine.shape:
        yield x
    elif mine.dim() and x.numel() == agents * mine.numel():
        yield x.reshape(agents, -1)[0].reshape(mine.shape)  # one agent after another
        if x.dim() == mine.dim() > 1 and x.shape[1] == agents * mine.shape[1]:
            yield x.narrow(1, 0, mine.shape[1])  # envs side by side
        if x.dim() == mine.dim() and len(x) == agents * len(mine):  # rows of several steps, with all envs of each
            for steps in (n for n in range(2, len(mine) + 1) if len(mine) % n == 0):
                yield x.reshape(steps, agents, -1)[:, 0].reshape(mine.shape)


def how_far(x: torch.Tensor, mine: torch.Tensor, agents: int) -> float:
    """0: the same, or they cannot be told apart."""
    ways = (way for way in own_parts(x, mine, agents) if way.numel())
    return min((_farthest(way.double(), mine.double()) for way in ways), default=0.0)


def _farthest(one: torch.Tensor, other: torch.Tensor) -> float:
    """0 where both are NaN, infinity where one of them is."""
    alike = (one == other) | (one.isnan() & other.isnan())
    return float(torch.where(alike, 0.0, (one - other).abs().nan_to_num(nan=torch.inf)).max())


def compared_events(alone: list[Event], both: list[Event], agents: int) -> Iterator[str]:
    """A line for everything that differs, the first one first."""
    if [name for name, *_ in alone] != [name for name, *_ in both]:
        yield f"other launches: {[name for name, *_ in alone]} alone, {[name for name, *_ in both]} together"
        both = list(_matched(alone, both))
    for number, ((name, mine, how), (_, theirs, other)) in enumerate(zip(alone, both, strict=False)):
        changed = [key for key in how if how[key] != other.get(key) and key not in COUNTS]
        if changed:
            yield f"{number:4} {name}: other " + ", ".join(f"{k} {how[k]} | {other.get(k)}" for k in changed)
        if how.get("aligned") != other.get("aligned"):
            yield f"{number:4} {name}: other alignment {how['aligned']} | {other.get('aligned')}"
        for key, x in mine.items():
            if key in theirs and key not in UNWRITTEN and (off := how_far(theirs[key], x, agents)):
                yield f"{number:4} {name}: {key} {tuple(x.shape)} differs by up to {off:.3g}"


def _matched(alone: list[Event], both: list[Event]) -> Iterator[Event]:
    """The launches of several agents that have a partner, in order: some kernels are launched once per agent."""
    rest = iter(both)
    for name, *_ in alone:
        yield next((event for event in rest if event[0] == name), ("nothing", {}, {}))


def compared_runs(config: TrainConfig, agents: int) -> Iterator[str]:
    """The first row and the tensors in which whole runs differ."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        train_seeds(config, range(agents), run_dir=place / "all", progress=False)
        for seed in (0, agents - 1):
            own = replace(config, run=replace(config.run, seed=seed))
            train_config(own, run_dir=place / f"alone{seed}", progress=False)
            yield from _files(place / f"alone{seed}", place / "all" / f"s{seed}", seed)


def _files(alone: Path, together: Path, seed: int) -> Iterator[str]:
    rows = [
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (alone, together)
    ]
    for mine, theirs in zip(*rows, strict=False):
        names = [name for name in dict.fromkeys((*mine, *theirs)) if mine.get(name) != theirs.get(name)]
        if names or list(mine) != list(theirs):
            shown = ", ".join(f"{name} {mine.get(name)} | {theirs.get(name)}" for name in names[:12])
            yield f"seed {seed}: the row of step {mine['step']} differs: {shown or 'the order of its columns'}"
            break
    last = [max((run / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name)) for run in (alone, together)]
    for file in ("policy.safetensors", "state.safetensors"):
        mine, theirs = (load_file(path / file) for path in last)
        for name in dict.fromkeys((*mine, *theirs)):
            if name not in mine or name not in theirs or not torch.equal(mine[name], theirs[name]):
                yield f"seed {seed}: {file} differs in {name}"
    episodes = [np.genfromtxt(run / "episodes.csv", delimiter=",", skip_header=1)[:, :3] for run in (alone, together)]
    if not np.array_equal(*episodes, equal_nan=True):
        yield f"seed {seed}: other episodes"


def find(case: str = "CartPole", agents: int = 5, steps: int = 30_000) -> Iterator[str]:
    env, settings = gpu_population.CASES[case]
    config = gpu_population.config_of(env, steps, settings)
    alone, both = iteration_of(config, 1), iteration_of(config, agents)
    lines = list(compared_events(alone, both, agents))
    yield f"{case}, the first iteration: {len(alone)} launches; " + ("the same" if not lines else "they differ:")
    yield from lines[:40]
    lines = list(compared_runs(config, agents))
    yield f"{case}, whole runs: " + ("the same bytes" if not lines else "they differ:")
    yield from lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=5)
    parser.add_argument("--case", choices=list(gpu_population.CASES), help="default: all")
    parser.add_argument("--steps", type=int, default=30_000, help="of each agent in whole runs")
    given = parser.parse_args()
    for case in [given.case] if given.case else gpu_population.CASES:
        for line in find(case, given.agents, given.steps):
            print(line, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
