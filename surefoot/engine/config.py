"""The settings of collecting and of gradient steps. No torch import: the command line reads this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from surefoot.errors import UsageError
from surefoot.schedules import Schedule
from surefoot.settings import Settings, setting

Minibatches = int | Literal["auto"]
AUTO_SAMPLES = 64  # of an automatic minibatch, at least; benchmarks/defaults.py has the evidence
AUTO_PARTS = 32  # at most: with very many envs larger minibatches keep the speed
AUTO_PARTS_OF_ENVS = 4  # at most, where a memory needs whole envs: a minibatch of one or two would be slow and alike


@dataclass(frozen=True, kw_only=True)
class CollectConfig(Settings):
    """Rollouts."""

    may_change = True

    num_envs: int = setting(
        8, "N: environments stepped together (with several agents: copies of the world).", low=1, high=1_000_000
    )
    rollout_length: int = setting(128, "T: steps of each env per update.", low=1)
    reset_each_rollout: bool = setting(
        False,
        "Reset all envs before each rollout; its end truncates every open episode.",
    )


@dataclass(frozen=True, kw_only=True)
class GradientConfig(Settings):
    """Gradient steps."""

    learning_rate: float = setting(3e-4, "α of the optimizer.", above=0.0)
    learning_rate_schedule: Literal["constant", "linear"] = setting(
        "constant", "Linear: α falls to zero over total_steps, update by update; short for learning_rate=linear:α."
    )
    optimizer: Literal["adam", "rmsprop"] = setting("adam", "Adam (eps 1e-5) or RMSprop (α 0.99, eps 1e-5).")
    max_grad_norm: float | None = setting(
        0.5, "Clip the global norm of the gradient to this; none: disabled.", above=0.0
    )


@dataclass(frozen=True, kw_only=True)
class AdaptiveRateConfig(GradientConfig):
    """Gradient steps of a policy."""

    adaptive_kl: float | None = setting(
        None,
        "Adapt α to reach this KL per update: ÷1.5 above twice, ×1.5 below half of it, within [1e-5, 1e-2]; none: off.",
        above=0.0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        scheduled = isinstance(self.learning_rate, Schedule) or self.learning_rate_schedule != "constant"
        if self.adaptive_kl is not None and scheduled:
            raise UsageError("adaptive_kl sets the learning rate itself; use learning_rate_schedule=constant with it")


@dataclass(frozen=True, kw_only=True)
class CriticRateConfig(Settings):
    """A critic that is trained with the policy."""

    critic_learning_rate: float | None = setting(
        None, "α of the critic's own parameters; none: that of learning_rate.", above=0.0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.critic_learning_rate, Schedule):
            raise UsageError(
                "critic_learning_rate keeps its ratio to learning_rate; give one number, schedule the other"
            )


@dataclass(frozen=True, kw_only=True)
class EpochConfig(Settings):
    """Passes over a rollout."""

    num_epochs: int = setting(10, "K: passes over each rollout.", low=1)
    num_minibatches: Minibatches = setting(
        "auto",
        "M: equal parts of the shuffled rollout, with one gradient step each; auto: of 64 samples or a little more, at "
        "most 32 (4 with a memory).",
        low=1,
    )
    stop_kl: float | None = setting(
        None,
        "Stop the epochs of an update once the exact KL(old‖new) over the rollout exceeds this; none: disabled.",
        above=0.0,
    )
    recompute_advantage: bool = setting(False, "Recompute values, advantages and targets before every epoch.")


def nearest_divisor(number: int, wanted: int) -> int:
    """Of `number`, the smaller of two that are as near."""
    return min((m for m in range(1, number + 1) if number % m == 0), key=lambda m: (abs(m - wanted), m))


def count_minibatches(wanted: Minibatches, samples: int, units: int) -> int:
    """How many parts a rollout is cut into. `units`: what is shuffled, samples or (with a memory) whole envs."""
    if wanted != "auto":
        return wanted
    most = min(samples // AUTO_SAMPLES, AUTO_PARTS if units == samples else AUTO_PARTS_OF_ENVS)
    return max(parts for parts in range(1, max(most, 1) + 1) if units % parts == 0)


def check_minibatches(batch_size: int, num_minibatches: int, normalized: bool) -> None:
    """Minibatches must be equal, and a minibatch of one cannot be normalised."""
    if batch_size % num_minibatches:
        near = nearest_divisor(batch_size, num_minibatches)
        raise UsageError(f"num_minibatches={num_minibatches} does not divide {batch_size} samples; try {near}")
    if normalized and batch_size // num_minibatches == 1:
        raise UsageError(
            "advantages cannot be normalised over minibatches of one sample; "
            "use fewer num_minibatches or normalize_advantage=batch"
        )
