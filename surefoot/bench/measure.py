"""How fast this installation trains: the same settings on each engine, in turn, in one process."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, TypedDict

from surefoot.engine.registry import NotAvailable
from surefoot.training.callbacks import Callback
from surefoot.training.life.launch import train_config
from surefoot.training.reports.screen import paragraphs

if TYPE_CHECKING:
    from surefoot.training.config.resolve import TrainConfig
    from surefoot.training.trainer import Trainer

ENGINES = ("torch", "native")
PHASES = ("env", "act", "learn", "log", "save", "other")
ENDLESS = 10**12  # steps
WARM_UP = 0.5  # seconds per engine that are not counted, because first calls are slow


class Stopwatch(Callback):
    """Ends a run after `seconds` (None: does not) and records where the time went."""

    reads_tensors = False

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self.start = seconds, 0.0
        self.spent: dict[str, float] = {}  # fraction of the time per phase

    def on_start(self, trainer: Trainer) -> None:
        self.start = perf_counter()

    def on_update(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        if self.seconds is not None and perf_counter() - self.start >= self.seconds:
            trainer.stop("bench")

    def on_end(self, trainer: Trainer) -> None:
        whole = trainer.seconds or 1.0
        self.spent = {name: seconds / whole for name, seconds in trainer.timer.seconds.items()}
        self.spent["other"] = max(0.0, 1.0 - sum(self.spent.values()))


class Measured(TypedDict):
    """One run on one engine."""

    total_steps: int
    updates: int
    seconds: float
    steps_per_second: float
    train_return: float | None
    split: dict[str, float]  # fraction of the time per phase


class Spread(TypedDict):
    median: float
    low: float
    high: float


class Summary(TypedDict):
    """The runs of one engine."""

    steps_per_second: Spread
    microseconds_per_update: Spread
    split: dict[str, float]


class Found(TypedDict):
    env: str
    algo: str
    preset: str | None
    settings: dict[str, object]
    engines: dict[str, Summary]
    ratios: dict[str, Spread]  # relative to the first engine
    missing: dict[str, str]  # why an engine was left out
    rounds: list[dict[str, Measured]]


def bench(
    config: TrainConfig,
    engines: Sequence[str] = ENGINES,
    *,
    rounds: int = 3,
    seconds: float | None = 4.0,
    say: Callable[[str], None] = lambda _: None,
) -> Found:
    """Steps per second of each engine, alternating for several rounds; ratios to the first are taken within a round.

    `seconds`: per run; None: as many steps as the config says. Logging and saving are included, as in any run;
    evaluation is not. An engine that does not support the policy is left out, and `missing` says why.
    """
    config = only_training(config, endless=seconds is not None)
    missing: dict[str, str] = {}
    for engine in engines:
        try:
            measure(config, engine, WARM_UP)
        except NotAvailable as error:
            missing[engine] = str(error)
            say(str(error))
    present = [engine for engine in engines if engine not in missing]
    found: list[dict[str, Measured]] = []
    for number in range(rounds if present else 0):
        order = present[number % len(present) :] + present[: number % len(present)]  # none is always first
        results = {engine: measure(config, engine, seconds) for engine in order}
        found.append({engine: results[engine] for engine in present})
        speeds = ", ".join(f"{engine} {found[-1][engine]['steps_per_second']:,.0f} steps/s" for engine in present)
        say(f"round {number + 1} of {rounds}: {speeds}")
    return {
        "env": config.env.env,
        "algo": config.run.algo,
        "preset": config.preset,
        "settings": config.flat(),
        "engines": {engine: _sum_up([results[engine] for results in found]) for engine in present},
        "ratios": {
            engine: spread([_speed(results, engine) / _speed(results, present[0]) for results in found])
            for engine in present[1:]
        },
        "missing": missing,
        "rounds": found,
    }


def only_training(config: TrainConfig, *, endless: bool) -> TrainConfig:
    """The config without anything else that takes time, and with a seed, so that all rounds do the same work.

    `endless`: a fast engine must not finish before its seconds are over; it still writes as many rows as it would.
    """
    if endless:
        config = replace(config, run=replace(config.run, total_steps=ENDLESS, log_every=config.run.log_interval))
    seed = 0 if config.run.seed is None else config.run.seed
    run = replace(
        config.run,
        seed=seed,
        max_time=None,
        callbacks=(),
        trackers=(),
        eval_every=None,
        eval_episodes=0,
        target_return=None,
        video_every=None,
    )
    return replace(config, run=run)


def measure(config: TrainConfig, engine: str, seconds: float | None) -> Measured:
    """One run on an engine, in a temporary directory."""
    watch = Stopwatch(seconds)
    config = replace(config, run=replace(config.run, engine=engine), engine_class=None)
    with tempfile.TemporaryDirectory(prefix="surefoot-bench-") as folder:
        try:
            result = train_config(config, run_dir=Path(folder) / "run", callbacks=[watch], progress=False, trust=True)
        except KeyboardInterrupt:  # there is nothing to resume
            raise KeyboardInterrupt("; nothing is kept of a bench") from None
    return {
        "total_steps": result["total_steps"],
        "updates": result["updates"],
        "seconds": result["seconds"],
        "steps_per_second": result["steps_per_second"],
        "train_return": result["train_return"],
        "split": watch.spent,
    }


def _speed(results: dict[str, Measured], engine: str) -> float:
    return results[engine]["steps_per_second"]


def _sum_up(runs: list[Measured]) -> Summary:
    phases = [*PHASES[:-1], *(name for run in runs for name in run["split"] if name not in PHASES), PHASES[-1]]
    return {
        "steps_per_second": spread([run["steps_per_second"] for run in runs]),
        "microseconds_per_update": spread([1e6 * run["seconds"] / max(1, run["updates"]) for run in runs]),
        "split": {
            name: statistics.fmean(run["split"].get(name, 0.0) for run in runs) for name in dict.fromkeys(phases)
        },
    }


def spread(values: Sequence[float]) -> Spread:
    """Median, lowest and highest of several rounds."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def as_table(found: Found, width: int | None = None) -> list[str]:
    """The results as a Markdown table, or as paragraphs if `width` columns are too few for it."""
    phases = list(dict.fromkeys(name for own in found["engines"].values() for name in own["split"]))
    heading = ["engine", "steps/s, median (range)", "µs per update", *phases]
    rows = []
    for engine, own in found["engines"].items():
        speed = own["steps_per_second"]
        shares = [f"{own['split'].get(name, 0.0):.0%}" for name in phases]
        numbers = f"{speed['median']:,.0f} ({speed['low']:,.0f} to {speed['high']:,.0f})"
        rows.append([engine, numbers, f"{own['microseconds_per_update']['median']:,.0f}", *shares])
    lines = [_row(heading), "|" + "---|" * len(heading), *map(_row, rows)]
    if width is not None and max(map(len, lines)) > width:
        lines = list(paragraphs(heading, rows, width))
    base = next(iter(found["engines"]))
    for engine, ratio in found["ratios"].items():
        lines += ["", f"{engine} / {base}: {ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"]
    return lines


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
