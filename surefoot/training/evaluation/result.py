"""The result of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from surefoot import notebook
from surefoot.analysis.resampling import bootstrap_interval
from surefoot.analysis.statistics import iqm
from surefoot.training.reports.progress import as_return


class Summary(TypedDict):
    """An evaluation without its individual episodes."""

    mean_return: float
    std_return: float
    median_return: float
    iqm_return: float
    mean_return_low: float
    mean_return_high: float
    min_return: float
    max_return: float
    mean_length: float
    min_length: int
    max_length: int
    episodes: int
    cut: int
    deterministic: bool


class WithEpisodes(Summary):
    returns: list[float]
    lengths: list[int]


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation; returns are undiscounted sums of the env's own rewards."""

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
        return float(iqm([np.asarray(self.returns, np.float64)]))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of the mean return over episodes of this policy; other training seeds may differ."""
        return bootstrap_interval(self.returns)

    @property
    def mean_length(self) -> float:
        return float(np.mean(self.lengths))

    def summary(self) -> Summary:
        """Everything except the individual episodes."""
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

    def __repr__(self) -> str:
        low, high = self.interval
        mean = as_return(self.mean_return, low, high)
        between = f"{as_return(low, self.mean_return, high)} to {as_return(high, self.mean_return, low)}"
        return f"Evaluation(mean return {mean} [{between}], {self._played})"

    @property
    def _played(self) -> str:
        how = "greedy" if self.deterministic else "drawn actions"
        return f"{self.episodes:,} episodes, {how}{f', {self.cut:,} cut' if self.cut else ''}"

    def _repr_html_(self) -> str:
        """For notebooks."""
        low, high = (as_return(end, self.mean_return) for end in self.interval)
        rows = {
            "mean return": f"{as_return(self.mean_return)} (95 % interval {low} to {high})",
            "std": as_return(self.std_return),
            "median": as_return(self.median_return),
            "interquartile mean": as_return(self.iqm_return),
            "min to max": f"{as_return(min(self.returns))} to {as_return(max(self.returns))}",
            "mean length": f"{self.mean_length:,.1f} steps",
        }
        return notebook.table(self._played, rows)

    def as_dict(self) -> WithEpisodes:
        return {**self.summary(), "returns": list(self.returns), "lengths": list(self.lengths)}
