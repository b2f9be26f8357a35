"""Gradient steps: single steps, epochs of minibatches, fitting a critic. An update happens completely or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NotRequired, Protocol, TypeAlias, TypedDict

import torch
from torch import Tensor

from surefoot.engine.config import Minibatches, count_minibatches
from surefoot.engine.contract import Threads
from surefoot.engine.group import ALONE, Group
from surefoot.engine.random_state import STATE_SHAPE, continued
from surefoot.engine.rollouts import fill_values
from surefoot.engine.torch.actor import TorchActor
from surefoot.engine.torch.flat import FlatParameters
from surefoot.engine.torch.natural import NaturalStep, fisher_by_autograd, fisher_samples, natural_step
from surefoot.engine.torch.optimizers import FlatOptimizer
from surefoot.errors import NonFiniteError, SurefootError, UsageError
from surefoot.math.operations import OPERATIONS, Operations
from surefoot.math.statistics import explained_variance, standardize
from surefoot.math.trust_region import flat_gradient
from surefoot.schedules import Schedule
from surefoot.schema import Flag, Number, Optional, Record, Shape
from surefoot.types import Batch, Outputs

if TYPE_CHECKING:
    from surefoot.engine.config import EpochConfig, GradientConfig
    from surefoot.engine.contract import Actor, Observer
    from surefoot.engine.losses import Loss, LossFunction
    from surefoot.engine.torch.optimizers import OptimizerState
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.types import Metrics, Rollout

    Estimate: TypeAlias = Callable[[Rollout, Operations], Batch]

RATE_RANGE = (1e-5, 1e-2)  # of the KL-adaptive learning rate
RATIO_TOLERANCE = 1e-3  # above rounding, also that of a GPU: a broken invariant (dropout, a drifting normaliser)
MOST_QUANTILES = 1_000_000  # values that torch.quantile takes
CHUNK = 65_536  # samples per pass where no gradient is needed


class ValueFit(Protocol):
    """How long a critic is fitted."""

    @property
    def value_epochs(self) -> int: ...

    @property
    def value_minibatches(self) -> Minibatches: ...


class LearnerState(TypedDict):
    optimizer: OptimizerState
    rate_scale: float
    rate_is_set: NotRequired[bool | None]
    shuffle: Tensor


class Learner:
    """A policy, its optimizer and their state. `train_actor=False`: the optimizer trains only the critic.

    Algorithms use `epochs`, `fit_value` and `natural_step`, or build their own passes from `minibatches` and `step`.
    """

    operations: Operations = OPERATIONS

    def __init__(
        self,
        policy: ActorCritic,
        config: GradientConfig,
        generator: torch.Generator,
        *,
        group: Group = ALONE,
        train_actor: bool = True,
        critic_learning_rate: float | None = None,
        adaptive_kl: float | None = None,
    ) -> None:
        self.policy, self.config, self.generator, self.adaptive_kl = policy, config, generator, adaptive_kl
        self.group = group
        self.flat = FlatParameters(policy)
        self.first_trained = 0 if train_actor else self.flat.actor_size
        self.optimizer = self._build_optimizer(train_actor, critic_learning_rate or config.learning_rate)
        self.max_grad_norm = config.max_grad_norm
        self.rate_scale = 1.0  # moved by adaptive_kl, or set by a callback
        self.rate_is_set = False  # by a callback, which has ended the schedule
        self.used: set[str] = set()  # the engines that computed gradients so far
        self.threads = Threads(1)
        self.actor: Actor = TorchActor(policy)
        self.observer: Observer | None = None  # is shown every gradient; it changes no result

    def _build_optimizer(self, train_actor: bool, critic_rate: float) -> FlatOptimizer:
        flat, rate = self.flat, self.config.learning_rate
        split, end = flat.actor_size, len(flat.vector)
        if not train_actor:
            slices = [(split, end, critic_rate)]
        elif rate == critic_rate:
            slices = [(0, end, rate)]
        else:
            slices = [(0, split, rate), (split, end, critic_rate)]
        return FlatOptimizer(self.config.optimizer, flat.vector, flat.gradient, slices)

    def set_rates(self, remaining: float) -> None:
        """Learning rates for the coming update: schedule × adaptive scale."""
        rate, factor = self.config.learning_rate, 1.0
        if not self.rate_is_set:
            falls = self.config.learning_rate_schedule == "linear"
            factor = rate.factor(remaining) if isinstance(rate, Schedule) else remaining if falls else 1.0
        self.optimizer.rate_factor = self.rate_scale * factor
        self.max_grad_norm = self.config.at(remaining).max_grad_norm

    def adapt_rate(self, kl: float) -> None:
        """÷1.5 when the update's KL was over twice `adaptive_kl`, ×1.5 when under half of it."""
        target = self.adaptive_kl
        if target is None:
            return
        if kl > 2.0 * target:
            self.rate_scale /= 1.5
        elif kl < target / 2.0:
            self.rate_scale *= 1.5
        low, high = (bound / self.config.learning_rate for bound in RATE_RANGE)
        self.rate_scale = min(max(self.rate_scale, low), high)

    @property
    def learning_rate(self) -> float:
        """α of the coming gradient steps. Set it, and it stays: it ends a schedule; `adaptive_kl` goes on
        from it. A critic's own rate keeps its ratio to it. Saved with the run.
        """
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        if not 0.0 <= rate < float("inf"):
            raise UsageError(f"learning_rate={rate} must be a finite number that is not negative")
        self.rate_scale, self.rate_is_set = rate / self.optimizer.base_rate, True
        self.optimizer.rate_factor = self.rate_scale

    def descend(self, loss: Tensor) -> Tensor:
        """One gradient step on `loss`; returns the gradient's norm before clipping, unread."""
        self.used.add("torch")
        self.flat.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        gradient = self.flat.gradient[self.first_trained :]
        if self.group.size > 1:
            self.share(gradient)
        if self.observer is not None:
            self.observer("minibatch", gradient)
        norm = torch.linalg.vector_norm(gradient)
        if self.max_grad_norm is not None:
            gradient.mul_((self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        self.optimizer.step()
        return norm  # type: ignore[no-any-return]

    def share(self, gradient: Tensor) -> None:
        """The mean over all processes in the place of this one's gradient."""
        self.group.sum_(gradient).div_(self.group.size)

    def epochs(
        self,
        loss: LossFunction,
        estimate: Estimate,
        rollout: Rollout,
        config: EpochConfig,
        *,
        normalize: bool = False,
    ) -> dict[str, float]:
        """K passes of M shuffled minibatches over a rollout; `normalize` standardises advantages per minibatch.

        The metrics are means over every minibatch of the update, apart from KL(old‖new), which is exact, over the
        whole rollout, after the last step.
        """
        batch = estimate(rollout, self.operations)
        parts = count_minibatches(config.num_minibatches, len(batch), batch.units)
        whole = parts == 1  # then the minibatch is the batch, and normalised once

        def prepare(batch: Batch) -> Batch:
            return normalized(batch) if normalize and whole else batch

        batch = prepare(batch)
        history: list[Metrics] = []
        first: Metrics = {}
        epochs = 0
        with self.all_or_nothing():
            for epoch in range(config.num_epochs):
                if epoch and config.recompute_advantage:
                    fill_values(rollout, self.actor)
                    # value_clip holds to the critic that collected
                    batch = replace(prepare(estimate(rollout, self.operations)), value=batch.value)
                for part in self.minibatches(batch, parts):
                    if normalize and not whole:
                        part = normalized(part)
                    outputs = self.policy.evaluate(part.obs, part.action, part.context)
                    if not first:
                        first = {"ratio_error": max_ratio_error(outputs, part)}
                        if self.policy.has_critic:  # of the critic that collected the rollout
                            first["explained_variance"] = explained_variance(
                                batch.value, batch.value_target, batch.weight
                            )
                    history.append(self._descend_on(loss, outputs, part))
                epochs = epoch + 1
                if config.stop_kl is not None and epochs < config.num_epochs:  # noqa: SIM102 (the read costs)
                    if self.mean_kl(batch) > config.stop_kl:
                        break
            result = self.summarize(batch, history, first)
        return {**result, "epochs": float(epochs)}

    def step(self, loss: LossFunction, part: Batch) -> Metrics:
        """One gradient step on a minibatch; its metrics, unread."""
        return self._descend_on(loss, self.policy.evaluate(part.obs, part.action, part.context), part)

    def _descend_on(self, loss: LossFunction, outputs: Outputs, part: Batch) -> Metrics:
        total, metrics = loss(outputs, part)
        return {**metrics, "grad_norm": self.descend(total)}

    def fit_value(self, loss: Loss, batch: Batch, config: ValueFit) -> list[Metrics]:
        """Regress V on its targets with the critic's own parameters: `value_epochs` of `value_minibatches`."""
        history: list[Metrics] = []
        parts = count_minibatches(config.value_minibatches, len(batch), batch.units)
        for _ in range(config.value_epochs):
            for part in self.minibatches(batch, parts):
                value_loss = loss.of_value(self.policy.value(part.obs, part.context), part)
                history.append({"value_loss": value_loss.detach(), "grad_norm": self.descend(value_loss)})
        return history

    def natural_step(self, loss: Loss, batch: Batch, config: NaturalStep) -> tuple[Tensor, Tensor]:
        """The actor's natural step within `config.max_kl`, and the gain that the gradient predicts for it."""
        self.used.add("torch")
        actor, outputs = self.flat.actor_list, self.policy.evaluate(batch.obs, batch.action, batch.context)
        gradient = flat_gradient(loss.objective(outputs, batch), actor)
        sample = fisher_samples(batch, config.fisher_fraction)
        product = fisher_by_autograd(self.policy, actor, sample, config.cg_damping)
        return natural_step(gradient, product, config, self.observer)

    def measure(self, loss: Loss, batch: Batch) -> float:
        """The objective with the policy as it is now, read on the host (for a line search)."""
        with torch.no_grad():
            return float(loss.objective(self.policy.evaluate(batch.obs, batch.action, batch.context), batch))

    def mean_kl(self, batch: Batch) -> float:
        return float(batch.mean(self.kl_from(batch)))

    def policy_metrics(self, batch: Batch) -> Metrics:
        """Entropy and ratio error of the policy before it moves."""
        with torch.no_grad():
            outputs = self.policy.evaluate(batch.obs, batch.action, batch.context)
            return {
                "entropy": batch.mean(outputs.distribution.entropy()),
                "ratio_error": max_ratio_error(outputs, batch),
            }

    def minibatches(self, batch: Batch, parts: int) -> Iterator[Batch]:
        """The batch in `parts` equal, freshly shuffled parts; each sample is in exactly one of them.

        Where there is a memory, whole envs are shuffled: it runs through their time.
        """
        if parts == 1:
            yield batch
            return
        order = torch.randperm(batch.units, generator=self.generator, device=self.generator.device)
        for index in order.to(batch.obs.device).chunk(parts):
            yield batch.take(index)

    def kl_from(self, batch: Batch) -> Tensor:
        """KL(old‖new) of every sample, from the stored parameters of the old distribution."""
        actions = self.policy.actions
        with torch.no_grad():
            if batch.context is not None:
                new = self.policy.action_params(batch.obs, batch.context)
                return actions.distribution(batch.dist_params).kl_to(actions.distribution(new))
            return torch.cat(
                [
                    actions.distribution(old).kl_to(actions.distribution(self.policy.action_params(obs)))
                    for obs, old in zip(
                        torch.split(batch.obs, CHUNK), torch.split(batch.dist_params, CHUNK), strict=True
                    )
                ]
            )

    def summarize(self, batch: Batch, history: list[Metrics], once: Metrics) -> dict[str, float]:
        """Read everything on the host, once per update, and refuse the update if a number is not finite."""
        kl = self.kl_from(batch)
        valid = kl if batch.weight is None else kl[batch.weight > 0]
        stride = 1 + len(valid) // MOST_QUANTILES
        names = list(history[0]) if history else []
        means = [torch.stack([entry[name] for entry in history]).mean() for name in names]
        last = {
            "kl": batch.mean(kl),
            "kl_p95": torch.quantile(valid[::stride], 0.95),
            "kl_max": valid.max(),
            "parameters_finite": self.flat.vector.isfinite().all(),
        }
        if self.policy.has_critic:
            once.setdefault("explained_variance", explained_variance(batch.value, batch.value_target, batch.weight))
        last.update(once)
        numbers = torch.stack([x.float() for x in (*means, *last.values())]).tolist()
        return self.checked(dict(zip([*names, *last], numbers, strict=True)))

    def checked(self, metrics: dict[str, float]) -> dict[str, float]:
        """The metrics of an update, unless they show that it must not stand."""
        broken = [name for name, x in metrics.items() if x != x or x in (float("inf"), float("-inf"))]
        if not metrics.pop("parameters_finite"):
            broken.append("the parameters")
        if broken:
            raise NonFiniteError(
                f"the update gave values that are not finite ({', '.join(broken)}); it was rejected and the weights "
                f"are as before it. learning_rate={self.learning_rate:g} may be too high, or rewards too large "
                "(try --normalize-rewards or a smaller --reward-scale)"
            )
        if metrics.get("ratio_error", 0.0) > RATIO_TOLERANCE:
            raise SurefootError(
                f"the policy disagrees with itself: the update's first ratio is off by {metrics['ratio_error']:.2g} "
                "(it must be 1). Something in it changes between rollout and update: dropout, batch statistics, noise; "
                "or a GPU rounds its products (torch.set_float32_matmul_precision other than highest)"
            )
        return metrics

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Weights and optimizer come back as they were if anything inside raises."""
        vector, state = self.flat.vector.clone(), self.optimizer.state_dict()
        try:
            yield
        except BaseException:
            self.flat.vector.copy_(vector)
            self.optimizer.load_state_dict(state)
            raise

    def state_dict(self) -> LearnerState:
        return {
            "optimizer": self.optimizer.state_dict(),
            "rate_scale": self.rate_scale,
            "rate_is_set": self.rate_is_set,
            "shuffle": self.generator.get_state(),
        }

    def state_shape(self) -> Shape:
        told = Optional(Flag(), later=True)
        return Record(
            optimizer=self.optimizer.state_shape(), rate_scale=Number(low=0.0), rate_is_set=told, shuffle=STATE_SHAPE
        )

    def load_state_dict(self, state: LearnerState) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.rate_scale = state["rate_scale"]
        self.rate_is_set = bool(state.get("rate_is_set"))  # earlier versions could not be told
        self.generator = continued(self.generator, state["shuffle"])


def normalized(batch: Batch) -> Batch:
    """The batch with standardised advantages."""
    return replace(batch, advantage=standardize(batch.advantage, batch.weight))


def max_ratio_error(outputs: Outputs, batch: Batch) -> Tensor:
    """max |π_new/π_old − 1|, which must be 0 before the first gradient step of an update."""
    error = ((outputs.log_prob.detach() - batch.log_prob).exp() - 1.0).abs()
    return (error if batch.weight is None else error * batch.weight).max()
