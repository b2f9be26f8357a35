"""Does a setting help? PPO with each optional setting on and off, over seeds and envs.

    python benchmarks/ablation.py                                          # everything, seeds 0 to 4, two at a time
    python benchmarks/ablation.py --minutes 60                             # a slice: stop after an hour
    python benchmarks/ablation.py --setting spo adam-rel --task cartpole hopper --seeds 0 1 2
    python benchmarks/ablation.py --scale 0.01 --seeds 0 1 --task cartpole --out /tmp/try.json    # a quick try

Every arm of a task has the same settings (the shipped preset, if there is one) except for the one in question. The
score is the mean return of 20 greedy episodes with the final weights. Runs with the same seed begin alike, so the
difference is taken seed by seed; its 95 % interval is that of `surefoot compare`. The summary of a setting compares all
tasks at once: the probability that a run with the setting beats one without it.

Stop it in any way and call it again: runs in progress go on where they were. `python benchmarks/report.py` then puts
the table into docs/improvements.md. What does not help is reported as well.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import machine
import numpy as np
from jobs import Job, Outcome, carry_out, digest, forget, only_one, our_run, our_words, write_json

from surefoot.analysis.intervals import Estimate, improvement_interval, interval

EPISODES = 20
OUT = machine.RESULTS / "ablation.json"
HERE = Path(__file__).resolve().parent / "peers"
HIDDEN_WIND, RANDOMISED = f"{HERE / 'hidden_wind.py'}:make", f"{HERE / 'randomised.py'}:make"
Runs: TypeAlias = dict[str, dict[str, Outcome]]  # {"cartpole spo 3f2a…": {seed: outcome}}

SETTINGS: dict[str, dict[str, Any]] = {
    "spo": {"surrogate": "spo"},
    "adam-rel": {"optimizer": "adam-rel"},
    "mean-noise": {"mean_noise": 0.5},
    "outer": {"outer_learning_rate": 1.5},
    "critic-apart": {"value_epochs": 10},
    "value-lambda": {"value_lambda": 1.0},
    "layer-norm": {"layer_norm": True},
    "critic-obs": {"critic_obs": ["hidden"]},
}
BOX_ONLY, PRIVILEGED_ONLY = ("mean-noise",), ("critic-obs",)
MUJOCO = {"normalize_observations": True, "normalize_rewards": True, "rollout_length": 256}


@dataclass(frozen=True)
class Task:
    """`privileged`: an env whose critic may see more; `kwargs`: what its factory gets."""

    env: str
    steps: int
    box: bool = False
    preset: str = "auto"
    settings: dict[str, Any] = field(default_factory=dict)
    privileged: bool = False
    kwargs: dict[str, Any] = field(default_factory=dict)


def randomised(env: str, steps: int, *, box: bool = False, **settings: Any) -> Task:
    return Task(RANDOMISED, steps, box, "none", settings, privileged=True, kwargs={"env": env})


TASKS = {
    "cartpole": Task("CartPole-v1", 50_000),
    "acrobot": Task("Acrobot-v1", 100_000),
    "pendulum": Task("Pendulum-v1", 200_000, box=True),
    "lunarlander": Task("LunarLander-v3", 300_000),
    "lunarlander-box": Task("LunarLanderContinuous-v3", 300_000, box=True),
    "hopper": Task("Hopper-v5", 300_000, box=True, preset="none", settings=MUJOCO),
    "halfcheetah": Task("HalfCheetah-v5", 300_000, box=True, preset="none", settings=MUJOCO),
    "walker2d": Task("Walker2d-v5", 300_000, box=True, preset="none", settings=MUJOCO),
    "hidden-wind": Task(HIDDEN_WIND, 200_000, box=True, preset="none", privileged=True),
    "random-cartpole": randomised("CartPole-v1", 30_000),
    "random-acrobot": randomised("Acrobot-v1", 200_000),
    "random-pendulum": randomised("Pendulum-v1", 200_000, box=True, gamma=0.9, normalize_rewards=True),
    "random-lunarlander": randomised("LunarLander-v3", 300_000, gamma=0.997, normalize_rewards=True),
}


def settings_for(task: Task) -> list[str]:
    """`off`, and the settings that make sense on a task. Where a critic may see more, only that is asked."""
    if task.privileged:
        return ["off", *PRIVILEGED_ONLY]
    left_out = PRIVILEGED_ONLY if task.box else (*BOX_ONLY, *PRIVILEGED_ONLY)
    return ["off", *(name for name in SETTINGS if name not in left_out)]


def overrides(task: Task, setting: str, scale: float) -> dict[str, Any]:
    """The settings of one arm. Without `critic_obs`, nobody sees what is hidden."""
    shown = {"env_kwargs": {**task.kwargs, "shown": setting in PRIVILEGED_ONLY}} if task.privileged else {}
    steps = {"total_steps": max(20_000, int(task.steps * scale))}
    return shown | task.settings | steps | SETTINGS.get(setting, {})


@dataclass
class Study:
    """What has been found so far."""

    runs: Runs
    scale: float = 1.0

    def key(self, name: str, setting: str) -> str:
        """With other settings it is another arm."""
        task = TASKS[name]
        where = task.env.rpartition("/")[2]  # wherever this folder is
        return f"{name} {setting} {digest(where, task.preset, overrides(task, setting, self.scale))}"

    def arm(self, name: str, setting: str) -> dict[str, Outcome]:
        """By seed."""
        return self.runs.get(self.key(name, setting), {})

    def note(self, name: str, setting: str, seed: int, outcome: Outcome) -> None:
        self.runs.setdefault(self.key(name, setting), {})[str(seed)] = outcome

    def scores(self, name: str, setting: str) -> dict[str, float]:
        """By seed, without runs that failed."""
        return {seed: float(one["score"]) for seed, one in self.arm(name, setting).items() if "score" in one}

    def pairs(self, name: str, setting: str) -> tuple[np.ndarray, np.ndarray]:
        """(without, with) over the seeds that both have."""
        off, on = self.scores(name, "off"), self.scores(name, setting)
        seeds = sorted(set(off) & set(on), key=int)
        return np.array([off[seed] for seed in seeds]), np.array([on[seed] for seed in seeds])

    def job(self, name: str, setting: str, seed: int, work: Path) -> Job:
        task = TASKS[name]
        words = our_words(task.env, "ppo", overrides(task, setting, self.scale), preset=task.preset)
        key = self.key(name, setting)
        return our_run(f"{key} {seed}", work / key.replace(" ", "/") / f"s{seed}", words, seed, EPISODES)


def difference(off: np.ndarray, on: np.ndarray) -> Estimate:
    """The mean of on − off, seed by seed."""
    return interval([on - off], lambda tasks: np.asarray(tasks[0].mean(-1)))


def verdict(found: Estimate) -> str:
    if np.isnan(found.low):
        return "one seed"
    return "helps" if found.low > 0.0 else "hurts" if found.high < 0.0 else "unclear"


def flags(setting: str) -> str:
    """As typed."""
    ((name, value),) = SETTINGS[setting].items()
    words = "" if value is True else f" {' '.join(value) if isinstance(value, list) else value}"
    return f"`--{name.replace('_', '-')}{words}`"


def table(study: Study) -> list[str]:
    """A row for each setting over all tasks, and then one for each setting and task."""
    above = machine.head("setting", "tasks", "helps", "unclear", "hurts", "P(on > off) (95 %)")
    below = machine.head("setting", "task", "seeds", "off", "on", "difference (95 %)", "verdict")
    for setting in SETTINGS:
        found = {name: study.pairs(name, setting) for name in TASKS}
        measured = {name: pair for name, pair in found.items() if len(pair[0])}
        if not measured:
            continue
        verdicts = []
        for name, (off, on) in measured.items():
            change = difference(off, on)
            verdicts.append(verdict(change))
            ends = "" if np.isnan(change.low) else f" ({change.low:+.1f} to {change.high:+.1f})"
            cells = (len(off), f"{off.mean():.1f}", f"{on.mean():.1f}", f"{change.value:+.1f}{ends}", verdicts[-1])
            below.append(machine.row(flags(setting), name, *cells))
        wins = improvement_interval([on for _, on in measured.values()], [off for off, _ in measured.values()])
        ends = "" if np.isnan(wins.low) else f" ({wins.low:.2f} to {wins.high:.2f})"
        counts = [verdicts.count(kind) for kind in ("helps", "unclear", "hurts")]
        above.append(machine.row(flags(setting), len(measured), *counts, f"{wins.value:.2f}{ends}"))
    return [*above, "", *below]


def wanted(arguments: argparse.Namespace) -> Iterable[tuple[str, str, int]]:
    """(task, setting, seed), the first seed of everything first."""
    for seed in arguments.seeds:
        for name in arguments.task:
            for setting in settings_for(TASKS[name]):
                if setting in ("off", *arguments.setting):
                    yield name, setting, seed


def measure(study: Study, arguments: argparse.Namespace) -> int:
    """Carry out what is missing; returns the signal that stopped it, or 0."""
    facts = {"machine": machine.describe(), "scale": study.scale}
    known = {}

    def missing() -> list[Job]:
        found = [one for one in wanted(arguments) if str(one[2]) not in study.arm(*one[:2])]
        jobs = [study.job(*one, arguments.work) for one in found]
        known.update({job.name: one for job, one in zip(jobs, found, strict=True)})
        return jobs

    def ended(job: Job, outcome: Outcome) -> None:
        name, setting, seed = known[job.name]
        study.note(name, setting, seed, outcome)
        write_json({**facts, "runs": study.runs}, arguments.out)
        said = outcome.get("error") or f"{outcome['score']:10.2f}"
        print(f"{name:16} {setting:13} seed {seed:<3} {said}", flush=True)

    with only_one(arguments.work):
        return carry_out(missing, ended, arguments.jobs, arguments.minutes)


def try_again(study: Study, arguments: argparse.Namespace) -> None:
    """Forget the runs that failed."""
    for name, setting, seed in wanted(arguments):
        if "error" in study.arm(name, setting).get(str(seed), {}):
            del study.arm(name, setting)[str(seed)]
            forget(study.job(name, setting, seed, arguments.work))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4], metavar="S")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time [2]")
    parser.add_argument("--minutes", type=float, help="stop after so many; the next call goes on")
    parser.add_argument("--work", type=Path, default=Path("runs/ablation"), metavar="DIR", help="for the runs")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the steps; needs --out if not 1 [1]")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE.json")
    parser.add_argument("--retry", action="store_true", help="try again what failed")
    arguments = parser.parse_args()
    arguments.work, out = arguments.work.absolute(), arguments.out
    if arguments.scale != 1.0 and out == OUT:
        parser.error("with --scale the scores are others; give --out as well")
    stored = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"scale": arguments.scale, "runs": {}}
    if stored["scale"] != arguments.scale:
        parser.error(f"{out} has scores of --scale {stored['scale']:g}; give another --out")
    study = Study(stored["runs"], arguments.scale)
    if arguments.retry:
        try_again(study, arguments)
    received = measure(study, arguments)
    lines = table(study)
    out.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n" + "\n".join(lines))
    return 128 + received if received else 0


if __name__ == "__main__":
    sys.exit(main())
