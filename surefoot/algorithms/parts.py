"""Parts that several algorithms are made of: settings, the advantage estimate, the critic's loss, schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

from surefoot.math.returns import gae, td_error
from surefoot.math.statistics import standardize
from surefoot.settings import Settings, setting
from surefoot.types import Batch, LossSpec

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.types import Metrics, Outputs, Rollout

ConfigT = TypeVar("ConfigT")
Normalize = Literal["none", "batch", "minibatch"]
Schedule = Literal["constant", "linear"]


class Base(Generic[ConfigT]):
    """What an algorithm declares, with the usual answers; the mathematics stays in its own file."""

    uses_critic: ClassVar[bool] = True
    train_actor: ClassVar[bool] = True  # by gradient descent; False: the algorithm moves the actor itself

    def __init__(self, config: ConfigT) -> None:
        self.config = config
        self.state: dict[str, float] = {}  # whatever changes over the run (β, say); saved with it

    def __init_subclass__(cls) -> None:
        """A loss of its own is not what an inherited `spec` says."""
        super().__init_subclass__()
        if {"loss", "objective"} & vars(cls).keys() and "spec" not in vars(cls):
            cls.spec = Base.spec  # type: ignore[method-assign]

    def spec(self, remaining: float) -> LossSpec | None:
        """What `loss` (or `objective`) is made of, for compiled kernels; None: it is learned in PyTorch.

        `remaining`: the share of the step budget that is still ahead, for schedules.
        """
        return None

    @property
    def episodes_per_env(self) -> int | None:
        """Whole episodes per env and update, or None for rollouts of fixed length."""
        return None


@dataclass(frozen=True, kw_only=True)
class AdvantageConfig(Settings):
    """Advantages and value targets."""

    gamma: float = setting(0.99, "γ: discount.", low=0.0, high=1.0)
    gae_lambda: float = setting(
        0.95, "λ of GAE: 0 is the TD error, 1 the bootstrapped return minus V.", low=0.0, high=1.0
    )
    value_lambda: float | None = setting(
        None, "λ of the critic's target: 0 is TD, 1 Monte Carlo; none: that of gae_lambda.", low=0.0, high=1.0
    )
    segment_length: int | None = setting(
        None, "Cut the sum of the advantage after this many steps; none: disabled.", low=1
    )
    normalize_advantage: Normalize = setting(
        "none", "Subtract the mean and divide by the (population) std of the rollout (batch) or of each minibatch."
    )


@dataclass(frozen=True, kw_only=True)
class EntropyConfig(Settings):
    """Exploration."""

    entropy_coef: float = setting(0.0, "c_e: weight of the entropy bonus.", low=0.0)


@dataclass(frozen=True, kw_only=True)
class CriticConfig(Settings):
    """The critic's loss."""

    value_loss: Literal["mse", "smooth_l1"] = setting(
        "mse", "Mean squared error (without ½), or Huber's loss with β = 1."
    )
    value_clip: float | None = setting(
        None, "Keep V within this distance of the old V, taking the larger loss; none: disabled.", above=0.0
    )


@dataclass(frozen=True, kw_only=True)
class JointLossConfig(CriticConfig, EntropyConfig):
    """A critic trained in one loss with the policy."""

    value_coef: float = setting(0.5, "c_v: weight of the critic's loss.", low=0.0)
    critic_learning_rate: float | None = setting(
        None, "α of the critic's own parameters; none: that of learning_rate.", above=0.0
    )


def estimate(rollout: Rollout, config: AdvantageConfig) -> Batch:
    """Advantages by GAE(λ), the critic's targets by TD(λ), everything flattened to `[B]`."""
    advantage, value_target = advantages(rollout, config)
    return flatten(rollout, advantage, value_target, config.normalize_advantage == "batch")


def advantages(rollout: Rollout, config: AdvantageConfig) -> tuple[Tensor, Tensor]:
    """(advantages, the critic's targets), both `[T, N]`."""
    value_lambda = config.gae_lambda if config.value_lambda is None else config.value_lambda
    if rollout.compiled is not None:
        settings = (config.gamma, config.gae_lambda, value_lambda, config.segment_length)
        found: tuple[Tensor, Tensor] = rollout.compiled.advantages(rollout, *settings)
        return found
    delta = td_error(rollout.reward, rollout.value, rollout.next_value, rollout.terminated, config.gamma)
    delta = delta.masked_fill(~rollout.valid, 0.0)  # a step that is no transition says nothing to those before it
    done = rollout.done
    advantage = correction = gae(delta, done, config.gamma, config.gae_lambda, config.segment_length)
    if value_lambda != config.gae_lambda:
        correction = gae(delta, done, config.gamma, value_lambda, config.segment_length)
    return advantage, rollout.value + correction


def flatten(rollout: Rollout, advantage: Tensor, value_target: Tensor, normalize: bool) -> Batch:
    """`[T, N, ...]` → `[B, ...]`; invalid steps get weight 0 and a harmless advantage."""
    weight = None if bool(rollout.valid.all()) else rollout.valid.flatten().to(advantage.dtype)
    flat = advantage.flatten()
    if weight is not None:
        flat = flat.where(weight > 0, 0.0)
    return Batch(
        obs=rollout.inputs[:-1].flatten(0, 1),
        action=rollout.action.flatten(0, 1),
        log_prob=rollout.log_prob.flatten(),
        dist_params=rollout.dist_params.flatten(0, 1),
        advantage=standardize(flat, weight) if normalize else flat,
        value_target=value_target.flatten(),
        value=rollout.value.flatten(),
        weight=weight,
        remaining=rollout.remaining,
        context=None if rollout.context is None else rollout.context.upto(len(rollout.reward)),
        num_envs=rollout.reward.shape[1],
    )


def critic_loss(value: Tensor, batch: Batch, config: CriticConfig) -> Tensor:
    """E[(V(s) − target)²], or Huber's, optionally the larger of the clipped and the unclipped one."""

    def distance(v: Tensor) -> Tensor:
        error = v - batch.value_target
        if config.value_loss == "mse":
            return error * error
        size = error.abs()
        return (0.5 * error * error).where(size < 1.0, size - 0.5)

    loss = distance(value)
    if config.value_clip is not None:
        near = batch.value + (value - batch.value).clamp(-config.value_clip, config.value_clip)
        loss = loss.maximum(distance(near))
    return batch.mean(loss)


def joint_loss(surrogate: Tensor, outputs: Outputs, batch: Batch, config: JointLossConfig) -> tuple[Tensor, Metrics]:
    """−surrogate + c_v·L_V − c_e·H, and the three terms."""
    value_loss = critic_loss(outputs.value, batch, config)
    entropy = batch.mean(outputs.distribution.entropy())
    loss = -surrogate + config.value_coef * value_loss
    if config.entropy_coef:  # a term times zero would still cost its backward pass
        loss = loss - config.entropy_coef * entropy
    return loss, {
        "policy_loss": -surrogate.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy.detach(),
    }


def joint_spec(surrogate: str, config: JointLossConfig, metrics: tuple[str, ...] = (), **more: float) -> LossSpec:
    """What `joint_loss` is made of, for compiled kernels."""
    return LossSpec(
        surrogate,
        value_coef=config.value_coef,
        value_loss=config.value_loss,
        value_clip=config.value_clip,
        entropy_coef=config.entropy_coef,
        metrics=metrics,
        **more,
    )


def critic_spec(config: CriticConfig) -> LossSpec:
    """`critic_loss` alone."""
    return LossSpec("none", value_coef=1.0, value_loss=config.value_loss, value_clip=config.value_clip)


def scheduled(value: float, schedule: Schedule, remaining: float) -> float:
    """`value`, or `value` falling linearly to zero with the share of the training that remains."""
    return value * remaining if schedule == "linear" else value


def ratio_of(outputs: Outputs, batch: Batch) -> Tensor:
    """r_t(θ) = π_θ(a_t|s_t) / π_old(a_t|s_t), as exp of the difference of logarithms."""
    return (outputs.log_prob - batch.log_prob).exp()


def approx_kl(outputs: Outputs, batch: Batch, ratio: Tensor) -> Tensor:
    """E[(r − 1) − log r]: an unbiased, non-negative estimate of KL(old‖new) from the samples alone."""
    return batch.mean(ratio.detach() - 1.0 - (outputs.log_prob.detach() - batch.log_prob))
