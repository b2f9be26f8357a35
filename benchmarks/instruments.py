"""What the trust-region instruments cost: the same run with them and without them.

    python benchmarks/instruments.py [--rounds 7]

The two sides are the same run, step for step: instruments change no weight. Both run in one process and by turns, and
the processor's time is measured, because other programs disturb it less than the clock on the wall.

- *inside*: the share of a run's time that is spent in the functions which instruments add work to (what an update
  begins and ends with, and the rows of metrics), with them minus without them. Of each the median round counts.
- *whole*: the whole run with instruments over the one without, fastest rounds. On a busy machine it says little.

The cost inside must be at most 2 %.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import process_time, thread_time
from typing import TYPE_CHECKING, Any, NamedTuple

import machine

from surefoot.bench.measure import only_training
from surefoot.engine.native.learner import NativeLearner
from surefoot.engine.torch.instruments import Look
from surefoot.engine.torch.learner import Learner
from surefoot.training.callbacks import Callback
from surefoot.training.config.resolve import resolve
from surefoot.training.life.launch import train_config
from surefoot.training.loop.journal import Journal
from surefoot.training.reports.loggers import FileLog, TensorBoardLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from surefoot.training.config.resolve import TrainConfig
    from surefoot.training.trainer import Trainer

WANTED = 0.02
PARTS = (  # what instruments add work to; none calls another
    (Learner, "begin_look"),
    (Learner, "summarize"),
    (NativeLearner, "_report"),
    (Look, "add"),
    (Journal, "row"),
    (FileLog, "on_log"),
    (TensorBoardLog, "on_log"),
)


class Case(NamedTuple):
    env: str
    algo: str
    engine: str
    steps: int
    settings: dict[str, object]


WIDE = {"hidden_sizes": [256, 256]}
CASES = {
    "PPO on CartPole, tuned": Case("CartPole-v1", "ppo", "native", 65_536, {}),
    "PPO on Pendulum, tuned": Case("Pendulum-v1", "ppo", "native", 65_536, {}),
    "PPO on CartPole, 256-256": Case("CartPole-v1", "ppo", "native", 10_240, WIDE),
    "TRPO on CartPole, tuned": Case("CartPole-v1", "trpo", "native", 40_960, {}),
    "A2C on CartPole, tuned": Case("CartPole-v1", "a2c", "native", 60_000, {}),
    "VPG on CartPole, tuned": Case("CartPole-v1", "vpg", "native", 200_000, {}),
    "PPO on CartPole, tuned, torch": Case("CartPole-v1", "ppo", "torch", 10_240, {}),
}


class Watch(Callback):
    """The processor's time from the first step to the last, and how much of it was spent in `PARTS`."""

    def __init__(self) -> None:
        self.start = self.whole = self.inside = 0.0

    def on_start(self, trainer: Trainer) -> None:
        self.start = process_time()

    def on_end(self, trainer: Trainer) -> None:
        self.whole = process_time() - self.start

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.inside += thread_time() - start

        return call


def measured(config: TrainConfig, *, instruments: bool) -> Watch:
    watch, before = Watch(), [(owner, name, vars(owner)[name]) for owner, name in PARTS]
    Learner.instruments = instruments
    try:
        for owner, name, function in before:
            setattr(owner, name, watch.timed(function))
        with tempfile.TemporaryDirectory() as folder:
            train_config(config, run_dir=Path(folder) / "run", callbacks=[watch], progress=False, trust=True)
    finally:
        Learner.instruments = True
        for owner, name, function in before:
            setattr(owner, name, function)
    return watch


def rounds_of(case: Case, rounds: int) -> dict[str, list[Watch]]:
    overrides = {"seed": 0, "threads": 1, "total_steps": case.steps, **case.settings}
    config = only_training(resolve(case.env, case.algo, overrides=overrides), endless=False)
    config = replace(config, run=replace(config.run, engine=case.engine), engine_class=None)
    found: dict[str, list[Watch]] = {"with": [], "without": []}
    measured(config, instruments=True)  # first calls are slow
    for number in range(rounds):
        for side in ("with", "without")[:: -1 if number % 2 else 1]:
            found[side].append(measured(config, instruments=side == "with"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--case", choices=list(CASES), action="append", help="only this one; may be repeated")
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "instruments.json", metavar="FILE.json")
    arguments = parser.parse_args()
    result = {"machine": machine.describe(), "wanted": WANTED, "cases": {}}
    table = machine.head("run", "cost inside", "cost of the whole")
    worst = 0.0
    for name in arguments.case or CASES:
        found = rounds_of(CASES[name], arguments.rounds)
        inside, whole = (
            {side: [getattr(watch, part) for watch in watches] for side, watches in found.items()}
            for part in ("inside", "whole")
        )
        shares = {side: [a / b for a, b in zip(inside[side], whole[side], strict=True)] for side in found}
        cost = median(shares["with"]) - median(shares["without"])
        of_all = min(whole["with"]) / min(whole["without"]) - 1.0
        result["cases"][name] = {"cost": cost, "cost_of_whole": of_all, "inside": inside, "whole": whole}
        table.append(machine.row(name, f"{cost:.1%}", f"{of_all:+.1%}"))
        print(table[-1], flush=True)
        worst = max(worst, cost)
    machine.write(result, table, arguments.out)
    if worst > WANTED:
        raise SystemExit(f"the instruments cost {worst:.1%}; at most {WANTED:.0%} was wanted")


if __name__ == "__main__":
    main()
