"""Experiments that take longer than a chapter may, measured beforehand by the scripts in benchmarks/."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TypedDict

import numpy as np

from surefoot.analysis.curves import Curve


class Measured(TypedDict):
    """One run: the return of its final evaluation, and a value per update of each metric."""

    eval: float
    step: list[float]
    episode_return: list[float | None]
    clip_fraction: list[float | None]
    kl: list[float | None]
    explained_variance: list[float | None]


def stored(name: str) -> dict[str, list[Measured]]:
    """A list of runs for each variant. `homework_ppo`: the homework's PPO with one thing changed at a time;
    `homework_gae`: its GAE, repaired.
    """
    text = files("surefoot.course").joinpath(f"{name}.json").read_text(encoding="utf-8")
    variants: dict[str, dict[str, Measured]] = json.loads(text)["variants"]
    return {name: list(runs.values()) for name, runs in variants.items()}


def curve(run: Measured) -> Curve:
    """The return of training episodes, for `curves`."""
    rows = [(x, y) for x, y in zip(run["step"], run["episode_return"], strict=True) if y is not None]
    return Curve(np.array([x for x, _ in rows]), np.array([y for _, y in rows]))
