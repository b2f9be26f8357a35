"""What an evaluation found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from surefoot.math.robust import bootstrap_interval, interquartile_mean

Summary: TypeAlias = dict[str, float | int | bool]


@dataclass(frozen=True)
class Evaluation:
    """What evaluation found; returns are undiscounted sums of the env's own rewards."""

    returns: tuple[float, ...]  # by episode
    lengths: tuple[int, ...]
    cut: int  # episodes that ran into eval_max_steps
    deterministic: bool

    @property
    def episodes(self) -> int:
        return len(self.returns)

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std_return(self) -> float:
        return float(np.std(self.returns))

    @property
    def median_return(self) -> float:
        return float(np.median(self.returns))

    @property
    def iqm_return(self) -> float:
        """Mean of the middle half of the returns."""
        return interquartile_mean(self.returns)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of the mean return. Over episodes of one policy: other seeds may train other ones."""
        return bootstrap_interval(self.returns)

    @property
    def mean_length(self) -> float:
        return float(np.mean(self.lengths))

    def summary(self) -> Summary:
        """Everything but the single episodes."""
        low, high = self.interval
        return {
            "mean_return": self.mean_return,
            "std_return": self.std_return,
            "median_return": self.median_return,
            "iqm_return": self.iqm_return,
            "mean_return_low": low,
            "mean_return_high": high,
            "min_return": min(self.returns),
            "max_return": max(self.returns),
            "mean_length": self.mean_length,
            "min_length": min(self.lengths),
            "max_length": max(self.lengths),
            "episodes": self.episodes,
            "cut": self.cut,
            "deterministic": self.deterministic,
        }

    def as_dict(self) -> dict[str, float | int | bool | list[float] | list[int]]:
        return {**self.summary(), "returns": list(self.returns), "lengths": list(self.lengths)}
