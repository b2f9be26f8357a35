"""The settings of collecting and of gradient steps. No torch import: the command line reads this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from surefoot.errors import UsageError
from surefoot.ranges import among, between
from surefoot.schedules import Schedule
from surefoot.settings import Settings, setting

Minibatches = int | Literal["auto"]
Optimizer = Literal["adam", "rmsprop", "adam-rel"]
AUTO_SAMPLES = 64  # smallest automatic minibatch; benchmarks/defaults.py has the evidence
AUTO_PARTS = 32  # most automatic minibatches: with very many envs, larger minibatches keep training fast
AUTO_PARTS_OF_ENVS = 4  # the same with a memory, which needs whole envs: one or two are slow and too similar


@dataclass(frozen=True, kw_only=True)
class CollectConfig(Settings):
    """Rollouts."""

    may_change = True

    num_envs: int = setting(
        8,
        "N: environments stepped together (with several agents: copies of the environment).",
        low=1,
        high=1_000_000,
        search=among(4, 8, 16, 32),
    )
    rollout_length: int = setting(128, "T: steps per env and update.", low=1, search=among(32, 64, 128, 256, 512, 1024))
    reset_each_rollout: bool = setting(
        False,
        "Reset all envs before each rollout; the end of a rollout truncates every open episode.",
    )


@dataclass(frozen=True, kw_only=True)
class GradientConfig(Settings):
    """Gradient steps."""

    learning_rate: float = setting(
        3e-4, "α: learning rate of the optimizer.", above=0.0, search=between(1e-4, 5e-3, log=True)
    )
    learning_rate_schedule: Literal["constant", "linear"] = setting(
        "constant",
        "Linear: α falls to zero over total_steps; short for learning_rate=linear:α.",
        search=among("constant", "linear"),
    )
    optimizer: Optimizer = setting(
        "adam",
        "Adam (eps 1e-5); RMSprop (α 0.99, eps 1e-5); or Adam-Rel, which is Adam with its clock t restarted for every "
        "rollout and its moments kept.",
    )
    max_grad_norm: float | None = setting(
        0.5,
        "Clip the global gradient norm to this value; none: disabled.",
        above=0.0,
        search=between(0.2, 5.0, log=True),
    )


@dataclass(frozen=True, kw_only=True)
class AdaptiveRateConfig(GradientConfig):
    """Gradient steps of the policy."""

    adaptive_kl: float | None = setting(
        None,
        "Keep the KL per update near this: divide α by 1.5 if it was over twice as large, multiply it by 1.5 if it was "
        "under half (α stays within [1e-5, 1e-2]); none: disabled.",
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
        None, "Learning rate of the critic's own parameters; none: the same as learning_rate.", above=0.0
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

    num_epochs: int = setting(10, "K: passes over each rollout.", low=1, search=between(3, 20))
    num_minibatches: Minibatches = setting(
        "auto",
        "M: minibatches per epoch, with one gradient step each; auto: minibatches of 64 samples or slightly more, at "
        "most 32 (4 with a memory).",
        low=1,
    )
    stop_kl: float | None = setting(
        None,
        "End an update early once the exact KL(old‖new) over the rollout exceeds this; none: disabled.",
        above=0.0,
    )
    recompute_advantage: bool = setting(False, "Recompute values, advantages and targets before every epoch.")
    mean_noise: float = setting(
        0.0,
        "α of RPO: in every epoch, shift the means of Gaussian actions by noise from U(−α, α); 0: disabled.",
        low=0.0,
    )
    outer_learning_rate: float = setting(
        1.0,
        "σ: after the last epoch, take an outer step along the whole update, θ ← θ_old + σ·(θ − θ_old); 1: disabled.",
        above=0.0,
    )
    value_epochs: int | None = setting(
        None,
        "Train the critic apart from the actor, after it, in this many passes (DNA without its distillation); none: "
        "both together.",
        low=1,
    )


def nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of `number` nearest to `wanted`; the smaller one if two are equally near."""
    return min((m for m in range(1, number + 1) if number % m == 0), key=lambda m: (abs(m - wanted), m))


def count_minibatches(wanted: Minibatches, samples: int, units: int) -> int:
    """Number of minibatches per rollout. `units`: items to shuffle, which are samples or (with a memory) whole envs."""
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


class ValueFit(Protocol):
    """How long a critic is fitted."""

    @property
    def value_epochs(self) -> int: ...

    @property
    def value_minibatches(self) -> Minibatches: ...
