"""What the trust-region instruments cost: the same run with them and without them.

    python benchmarks/instruments.py [--rounds 7]

The two sides are the same run, step for step: instruments change no weight. Both run in one process and by turns, and
the processor's time of each is compared, because other programs disturb it less than the clock on the wall. The cost is
that of the fastest round with instruments over the fastest one without: whatever else a machine does can only slow a
round down. The median of the ratios, round by round, and its range are shown beside it. The cost must be at most 2 %.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, NamedTuple

import machine

from surefoot.bench.measure import only_training
from surefoot.engine.torch.learner import Learner
from surefoot.training.callbacks import Callback
from surefoot.training.config.resolve import resolve
from surefoot.training.life.launch import train_config

if TYPE_CHECKING:
    from surefoot.training.config.resolve import TrainConfig
    from surefoot.training.trainer import Trainer

WANTED = 0.02


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
    """The processor's time from the first step to the last."""

    def __init__(self) -> None:
        self.start = self.seconds = 0.0

    def on_start(self, trainer: Trainer) -> None:
        self.start = process_time()

    def on_end(self, trainer: Trainer) -> None:
        self.seconds = process_time() - self.start


def seconds(config: TrainConfig, *, instruments: bool) -> float:
    watch, before = Watch(), Learner.instruments
    Learner.instruments = instruments
    try:
        with tempfile.TemporaryDirectory() as folder:
            train_config(config, run_dir=Path(folder) / "run", callbacks=[watch], progress=False, trust=True)
    finally:
        Learner.instruments = before
    return watch.seconds


def rounds_of(case: Case, rounds: int) -> dict[str, list[float]]:
    overrides = {"seed": 0, "threads": 1, "total_steps": case.steps, **case.settings}
    config = only_training(resolve(case.env, case.algo, overrides=overrides), endless=False)
    config = replace(config, run=replace(config.run, engine=case.engine), engine_class=None)
    found: dict[str, list[float]] = {"with": [], "without": []}
    seconds(config, instruments=True)  # first calls are slow
    for number in range(rounds):
        for side in ("with", "without")[:: -1 if number % 2 else 1]:
            found[side].append(seconds(config, instruments=side == "with"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--case", choices=list(CASES), action="append", help="only this one; may be repeated")
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "instruments.json", metavar="FILE.json")
    arguments = parser.parse_args()
    result = {"machine": machine.describe(), "wanted": WANTED, "cases": {}}
    table = machine.head("run", "cost, fastest rounds", "cost, round by round")
    worst = 0.0
    for name in arguments.case or CASES:
        found = rounds_of(CASES[name], arguments.rounds)
        cost = min(found["with"]) / min(found["without"]) - 1.0
        pairs = zip(found["with"], found["without"], strict=True)
        spread = machine.spread([100.0 * (ours / bare - 1.0) for ours, bare in pairs])
        result["cases"][name] = {"cpu_seconds": found, "cost": cost}
        table.append(machine.row(name, f"{cost:.1%}", f"{machine.ratio(spread, 1)} %"))
        print(table[-1], flush=True)
        worst = max(worst, cost)
    machine.write(result, table, arguments.out)
    if worst > WANTED:
        raise SystemExit(f"the instruments cost {worst:.1%}; at most {WANTED:.0%} was wanted")


if __name__ == "__main__":
    main()
