"""Parts shared by several algorithms: settings, the advantage estimate, the joint loss, schedules."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

from surefoot.engine.config import CriticRateConfig
from surefoot.engine.losses import Loss, Surrogate
from surefoot.math.operations import OPERATIONS
from surefoot.ranges import among
from surefoot.settings import Settings, setting
from surefoot.types import Batch

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.losses import LossFunction
    from surefoot.math.operations import Operations
    from surefoot.types import Metrics, Outputs, Rollout

ConfigT = TypeVar("ConfigT")
Normalize = Literal["none", "batch", "minibatch"]
GAMMAS = among(0.9, 0.95, 0.98, 0.99, 0.995, 0.997, 0.999)
Schedule = Literal["constant", "linear"]


class Base(Generic[ConfigT]):
    """Defaults for what an algorithm declares; the mathematics stays in the algorithm's own file."""

    uses_critic: ClassVar[bool] = True
    train_actor: ClassVar[bool] = True  # by gradient descent; False: the algorithm updates the actor itself
    decides_nothing: ClassVar[bool] = False  # in the class itself: `update` reads no number on its way
    preset_of: ClassVar[str | None] = None  # an algorithm whose presets suit this one, as far as they apply

    def __init__(self, config: ConfigT) -> None:
        self.config = config
        self.state: dict[str, float] = {}  # values that change over the run (such as β); saved with it

    def terms(self, remaining: float) -> Loss | None:
        """The loss as a declaration that compiled kernels understand too. None: only `loss` defines it.

        `remaining`: the fraction of the step budget that is left, for schedules.
        """
        return None

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """The loss of a batch and its metrics, in PyTorch. Override it for a loss that `terms` cannot express."""
        terms = self.terms(batch.remaining)
        assert terms is not None, f"{type(self).__name__} declares no terms and has no loss"
        return terms(outputs, batch)

    def current_loss(self, remaining: float) -> LossFunction:
        """The loss passed to a learner: the declared terms, unless a subclass overrides `loss` after them."""
        return self.loss if self._has_own_loss else self.terms(remaining) or self.loss

    @cached_property  # every update asks
    def _has_own_loss(self) -> bool:
        """Whether `loss` is overridden after `terms`."""
        lineage = type(self).__mro__
        loss, terms = (next(at for at, cls in enumerate(lineage) if name in vars(cls)) for name in ("loss", "terms"))
        return loss < terms

    @property
    def episodes_per_env(self) -> int | None:
        """Whole episodes per env and update, or None for rollouts of fixed length."""
        return None


@dataclass(frozen=True, kw_only=True)
class AdvantageConfig(Settings):
    """Advantages and value targets."""

    gamma: float = setting(0.99, "γ: discount.", low=0.0, high=1.0, search=GAMMAS)
    gae_lambda: float = setting(
        0.95,
        "λ of GAE: 0 gives the TD error, 1 the bootstrapped return minus V.",
        low=0.0,
        high=1.0,
        search=among(0.8, 0.9, 0.95, 0.98, 1.0),
    )
    value_lambda: float | None = setting(
        None, "λ of the critic's target: 0 is TD, 1 is Monte Carlo; none: the same as gae_lambda.", low=0.0, high=1.0
    )
    segment_length: int | None = setting(None, "Cut the advantage sum after this many steps; none: disabled.", low=1)
    normalize_advantage: Normalize = setting(
        "none", "Standardise advantages (population std) over the rollout (batch) or over each minibatch."
    )


@dataclass(frozen=True, kw_only=True)
class EntropyConfig(Settings):
    """Exploration."""

    entropy_coef: float = setting(
        0.0, "c_e: weight of the entropy bonus.", low=0.0, search=among(0.0, 0.001, 0.005, 0.01, 0.03)
    )


@dataclass(frozen=True, kw_only=True)
class CriticConfig(Settings):
    """The critic's loss."""

    value_loss: Literal["mse", "smooth_l1"] = setting(
        "mse", "Mean squared error (without ½), or the Huber loss with β = 1."
    )
    value_clip: float | None = setting(
        None, "Keep V within this distance of the old V, taking the larger loss; none: disabled.", above=0.0
    )


@dataclass(frozen=True, kw_only=True)
class JointLossConfig(CriticConfig, CriticRateConfig, EntropyConfig):
    """A critic trained jointly with the policy."""

    value_coef: float = setting(0.5, "c_v: weight of the critic's loss.", low=0.0)


def estimate(rollout: Rollout, config: AdvantageConfig, operations: Operations = OPERATIONS) -> Batch:
    """Advantages by GAE(λ), the critic's targets by TD(λ), everything flattened to `[B]`."""
    value_lambda = config.gae_lambda if config.value_lambda is None else config.value_lambda
    advantage, value_target = operations.advantages(
        rollout, config.gamma, config.gae_lambda, value_lambda, config.segment_length
    )
    return flatten(rollout, advantage, value_target, config.normalize_advantage == "batch", operations)


def flatten(
    rollout: Rollout,
    advantage: Tensor,
    value_target: Tensor,
    normalize: bool,
    operations: Operations = OPERATIONS,
) -> Batch:
    """`[T, N, ...]` → `[B, ...]`; invalid steps get weight 0 and a harmless advantage."""
    weight, flat = None, advantage.flatten()
    # On a GPU, asking would wait for the device.
    if not (rollout.complete or (rollout.valid.is_cpu and rollout.valid.numpy().all())):
        weight = rollout.valid.flatten().to(advantage.dtype)
        flat = flat.where(weight > 0, 0.0)
    return Batch(
        obs=rollout.inputs[:-1].flatten(0, 1),
        action=rollout.action.flatten(0, 1),
        log_prob=rollout.log_prob.flatten(),
        dist_params=rollout.dist_params.flatten(0, 1),
        advantage=operations.standardize(flat, weight) if normalize else flat,
        value_target=value_target.flatten(),
        value=rollout.value.flatten(),
        weight=weight,
        remaining=rollout.remaining,
        context=None if rollout.context is None else rollout.context.upto(len(rollout.reward)),
        num_envs=rollout.reward.shape[1],
    )


def joint_loss(
    surrogate: Surrogate,
    config: JointLossConfig,
    *parameters: float,
    kl_coef: float = 0.0,
    metrics: tuple[str, ...] = (),
) -> Loss:
    """−E[surrogate − β·KL] + c_v·L_V − c_e·H."""
    return Loss(
        surrogate,
        parameters,
        kl_coef=kl_coef,
        value_coef=config.value_coef,
        value_loss=config.value_loss,
        value_clip=config.value_clip,
        entropy_coef=config.entropy_coef,
        metrics=metrics,
    )


def critic_loss(config: CriticConfig) -> Loss:
    """L_V alone."""
    return Loss(None, value_coef=1.0, value_loss=config.value_loss, value_clip=config.value_clip)
