"""Writes docs/defaults.md from the results of defaults.py."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from peers.untuned import TASKS

Runs: TypeAlias = dict[str, dict[str, float]]  # {task: {seed: score}}
SIDES = {"before": "Before", "now": "Now", "sb3": "Stable-Baselines3"}
RESAMPLES = 5_000
SEEDS = 5


def normalized(found: Runs, task: str) -> list[float]:
    """Scores by seed: 0 is random play, 1 is a good score."""
    low, high = TASKS[task].low, TASKS[task].high
    return [(score - low) / (high - low) for _, score in sorted(found[task].items())]


def middle_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The interquartile mean of each row."""
    cut = values.shape[1] // 4
    return np.sort(values, 1)[:, cut : values.shape[1] - cut].mean(1)


def summary(found: Runs, tasks: list[str]) -> tuple[float, float, float]:
    """(interquartile mean of all runs, and its 95 % interval from resampling the seeds within each task)."""
    scores = [np.array(normalized(found, task)) for task in tasks]
    draw = np.random.default_rng(0)
    resampled = [x[draw.integers(len(x), size=(RESAMPLES, len(x)))] for x in scores]
    low, high = np.percentile(middle_mean(np.concatenate(resampled, 1)), [2.5, 97.5])
    return float(middle_mean(np.concatenate(scores)[None])[0]), float(low), float(high)


def cell(found: Runs, task: str) -> str:
    """Mean over the seeds / worst seed."""
    scores = list(found.get(task, {}).values())
    digits = 2 if TASKS[task].high <= 1.0 else 1
    return f"{np.mean(scores):.{digits}f} / {min(scores):.{digits}f}" if scores else "–"


def seeds_of(found: Runs, tasks: list[str]) -> int:
    """How many seeds each of the tasks has, at least."""
    return min((len(found.get(task, {})) for task in tasks), default=0)


def heading(side: str, seeds: int) -> str:
    """The name of a side, and how many seeds it has, if fewer than the page says."""
    return SIDES[side] if seeds >= SEEDS else f"{SIDES[side]} ({seeds} seeds)"


def comparison(sides: dict[str, Runs]) -> list[str]:
    """A row per task, a column per side, and the summary below."""
    tasks = [task for task in TASKS if task in sides["now"]]
    seeds = {side: seeds_of(sides[side], tasks) for side in SIDES if side in sides}
    shown = [side for side, number in seeds.items() if number > 1]  # what is only begun says nothing
    lines = ["| Task | Steps | " + " | ".join(heading(side, seeds[side]) for side in shown) + " |"]
    lines.append("| --- | ---: |" + " ---: |" * len(shown))
    for task in tasks:
        cells = " | ".join(cell(sides[side], task) for side in shown)
        lines.append(f"| {task} | {TASKS[task].steps // 1000}k | {cells} |")
    found = [summary(sides[side], tasks) for side in shown]
    cells = " | ".join(f"**{middle:.2f}** ({low:.2f} to {high:.2f})" for middle, low, high in found)
    lines.append(f"| *normalised, interquartile mean* | | {cells} |")
    return lines


def tried_table(candidates: dict[str, Runs]) -> list[str]:
    """A row per candidate: its normalised mean on each task that all of them were tried on."""
    common = [task for task in TASKS if all(task in found for found in candidates.values())]
    lines = ["| Settings | " + " | ".join(common) + " | mean |", "| --- |" + " ---: |" * (len(common) + 1)]
    means = {name: [float(np.mean(normalized(found, task))) for task in common] for name, found in candidates.items()}
    for name in sorted(means, key=lambda name: -float(np.mean(means[name]))):
        numbers = " | ".join(f"{x:.2f}" for x in [*means[name], float(np.mean(means[name]))])
        lines.append(f"| {name.replace(',', ', ') or 'defaults'} | {numbers} |")
    return lines


INTRO = """# Evidence for the defaults

A task without a preset is trained with the library's defaults, so they must work well in general. This page tests them
on such tasks and compares them with the defaults of Stable-Baselines3. No preset is used here. Each toy task covers one
kind of action space; the other tasks are Gymnasium's. Every number is the mean return of 20 greedy episodes with the
final weights, averaged over seeds 0 to 4, followed by the worst seed after the slash. Candidates were compared on other
seeds, from 100 on.

```sh
python benchmarks/defaults.py --algo ppo                               # as they are now
python benchmarks/defaults.py --algo ppo --side before                 # as they were in 0.1.0
python benchmarks/defaults.py --algo ppo --side sb3 --peers DIR        # DIR: what benchmarks/make_peers.sh made
```

## Changes and reasons

In 0.1.0 a rollout was always split into four minibatches: 256 samples each with eight envs. On dense continuous tasks
that is too few gradient steps. Now `num_minibatches` (and `value_minibatches`, with which NPG and TRPO fit their
critic) is `auto`: minibatches of 64 samples or slightly more, but at most 32 of them, and at most four if a memory
needs whole envs. A run records the number in its `config.toml`; presets set their own, so their results are unchanged.

Acrobot pays for it: with PPO, about one seed in five no longer reaches the goal within 100k steps, while with four
minibatches all do. Every reward there is −1 until the goal is reached for the first time. Until then, standardised
advantages are noise, and more gradient steps follow the noise further. An entropy bonus or longer rollouts alone did
not help (see the candidates), and over all tasks the change gains more than it loses. The preset for Acrobot has its
own numbers.
"""


def page(results: dict[str, dict[str, dict[str, Runs]]]) -> str:
    """The whole page."""
    lines = [INTRO]
    for algo, sides in results["reported"].items():
        lines += [f"## {algo}", "", "Mean / worst of the seeds.", "", *comparison(sides), ""]
    for algo, candidates in results["tried"].items():
        if candidates:
            lines += [
                f"## {algo}: candidates tried",
                "",
                "0 is random play, 1 is a good score.",
                "",
                *tried_table(candidates),
                "",
            ]
    return "\n".join(lines).rstrip() + "\n"
