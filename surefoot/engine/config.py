"""The settings of collecting and of gradient steps. No torch import: the command line reads this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from surefoot.errors import UsageError
from surefoot.settings import Settings, setting

Minibatches = int | Literal["auto"]
AUTO_SAMPLES = 64  # of an automatic minibatch, at least; benchmarks/defaults.py has the evidence
AUTO_PARTS = 32  # at most: with very many envs larger minibatches keep the speed
AUTO_PARTS_OF_ENVS = 4  # at most, where a memory needs whole envs: a minibatch of one or two would be slow and alike


@dataclass(frozen=True, kw_only=True)
class CollectConfig(Settings):
    """Rollouts."""

    num_envs: int = setting(8, "N: environments stepped together (of several agents: copies).", low=1, high=1_000_000)
    rollout_length: int = setting(128, "T: steps of each env per update.", low=1)
    reset_each_rollout: bool = setting(
        False,
        "Reset all envs before each rollout, whose end is then the end of every open episode (a truncation).",
    )


@dataclass(frozen=True, kw_only=True)
class GradientConfig(Settings):
    """Gradient steps."""

    learning_rate: float = setting(3e-4, "α of the optimizer.", above=0.0)
    learning_rate_schedule: Literal["constant", "linear"] = setting(
        "constant", "Linear: falls to zero over total_steps, stepped by update."
    )
    optimizer: Literal["adam", "rmsprop"] = setting("adam", "Adam (eps 1e-5) or RMSprop (α 0.99, eps 1e-5).")
    max_grad_norm: float | None = setting(0.5, "Global gradient-norm clip; none: no clipping.", above=0.0)


@dataclass(frozen=True, kw_only=True)
class AdaptiveRateConfig(GradientConfig):
    """Gradient steps of a policy."""

    adaptive_kl: float | None = setting(
        None,
        "Adapt α to this KL per update: ÷1.5 when KL > 2×, ×1.5 when KL < ½×, within [1e-5, 1e-2].",
        above=0.0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adaptive_kl is not None and self.learning_rate_schedule != "constant":
            raise UsageError("adaptive_kl sets the learning rate itself; use learning_rate_schedule=constant with it")


@dataclass(frozen=True, kw_only=True)
class EpochConfig(Settings):
    """Passes over a rollout."""

    num_epochs: int = setting(10, "K: passes over each rollout.", low=1)
    num_minibatches: Minibatches = setting(
        "auto",
        "M: equal parts of a freshly shuffled rollout, one gradient step each; auto: of 64 samples or a little more, "
        "but at most 32 of them (4 with a memory).",
        low=1,
    )
    stop_kl: float | None = setting(
        None, "Stop the epochs early once the exact KL(old‖new) of the rollout exceeds this.", above=0.0
    )
    recompute_advantage: bool = setting(False, "Recompute values, advantages and targets before every epoch.")


def count_minibatches(wanted: Minibatches, samples: int, units: int) -> int:
    """How many parts a rollout is cut into. `units`: what is shuffled, samples or (with a memory) whole envs."""
    if wanted != "auto":
        return wanted
    most = min(samples // AUTO_SAMPLES, AUTO_PARTS if units == samples else AUTO_PARTS_OF_ENVS)
    return max(parts for parts in range(1, max(most, 1) + 1) if units % parts == 0)


def check_minibatches(batch_size: int, num_minibatches: int, normalized: bool) -> None:
    """Minibatches must be equal, and a minibatch of one cannot be normalised."""
    if batch_size % num_minibatches:
        near = min(
            (m for m in range(1, batch_size + 1) if batch_size % m == 0),
            key=lambda m: (abs(m - num_minibatches), m),
        )
        raise UsageError(f"num_minibatches={num_minibatches} does not divide {batch_size} samples; try {near}")
    if normalized and batch_size // num_minibatches == 1:
        raise UsageError(
            "advantages cannot be normalised over minibatches of one sample; "
            "use fewer num_minibatches or normalize_advantage=batch"
        )
