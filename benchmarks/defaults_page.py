"""docs/defaults.md from what defaults.py measured."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from peers.untuned import TASKS

Runs: TypeAlias = dict[str, dict[str, float]]  # {task: {seed: score}}
SIDES = {"before": "Before", "now": "Now", "sb3": "Stable-Baselines3"}
RESAMPLES = 5_000


def normalized(found: Runs, task: str) -> list[float]:
    """Scores by seed: 0 is random play, 1 a good score."""
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


def comparison(sides: dict[str, Runs]) -> list[str]:
    """A row per task, a column per side, and the summary below."""
    shown = [side for side in SIDES if side in sides]
    tasks = [task for task in TASKS if any(task in sides[side] for side in shown)]
    lines = ["| Task | Steps | " + " | ".join(SIDES[side] for side in shown) + " |"]
    lines.append("| --- | ---: |" + " ---: |" * len(shown))
    for task in tasks:
        cells = " | ".join(cell(sides[side], task) for side in shown)
        lines.append(f"| {task} | {TASKS[task].steps // 1000}k | {cells} |")
    common = [task for task in tasks if all(task in sides[side] for side in shown)]
    found = [summary(sides[side], common) for side in shown]
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
        lines.append(f"| {name.replace(',', ', ') or 'as they are'} | {numbers} |")
    return lines


def page(results: dict[str, dict[str, dict[str, Runs]]]) -> str:
    """The whole of it."""
    return ""
