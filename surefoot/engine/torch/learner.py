"""Gradient steps: single steps, epochs of minibatches, fitting a critic. An update happens completely or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from surefoot.engine.contract import Threads
from surefoot.engine.group import ALONE, Group
from surefoot.engine.losses import RATIO, Loss
from surefoot.engine.random_state import STATE_SHAPE, continued
from surefoot.engine.rollouts import fill_values
from surefoot.engine.shares import Shares, averaged
from surefoot.engine.torch.actor import TorchActor
from surefoot.engine.torch.critic_apart import critic_passes, divided
from surefoot.engine.torch.flat import FlatParameters
from surefoot.engine.torch.instruments import Look, due, half_of, kl_of, look_at, max_ratio_error, normalized, tail
from surefoot.engine.torch.mean_noise import with_mean_noise
from surefoot.engine.torch.natural import NaturalStep, fisher_by_autograd, natural_step
from surefoot.engine.torch.optimizers import adapted, build_optimizer, step_outwards
from surefoot.engine.torch.passes import EagerPasses, Passes
from surefoot.engine.torch.permutation import permutation
from surefoot.engine.torch.summary import understood, unread
from surefoot.engine.torch.verdict import RATIO_TOLERANCE
from surefoot.errors import UsageError
from surefoot.math.operations import OPERATIONS, Operations
from surefoot.math.statistics import explained_variance
from surefoot.math.trust_region import flat_gradient
from surefoot.schedules import Schedule
from surefoot.schema import Flag, Number, Optional, Record, Shape
from surefoot.types import Batch, Outputs, weighted_mean

if TYPE_CHECKING:
    from surefoot.engine.config import EpochConfig, GradientConfig, ValueFit
    from surefoot.engine.contract import Actor, Observer
    from surefoot.engine.losses import LossFunction
    from surefoot.engine.torch.optimizers import FlatOptimizer, LearnerState
    from surefoot.engine.torch.summary import Names
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.types import Metrics, Rollout

    Estimate: TypeAlias = Callable[[Rollout, Operations], Batch]


class Learner:
    """A policy, its optimizer and their state. `train_actor=False`: the optimizer trains only the critic.

    Algorithms use `epochs`, `fit_value` and `natural_step`, or build their own passes from `minibatches` and `step`.
    """

    operations: Operations = OPERATIONS
    engine = "torch"  # what `used` says of the gradients that these methods compute
    instruments = True  # off only to measure what they cost
    ratio_tolerance = RATIO_TOLERANCE

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
        critic_apart: bool = False,
    ) -> None:
        """`critic_apart`: the critic has passes of its own, and an optimizer of its own."""
        self.policy, self.config, self.generator, self.adaptive_kl = policy, config, generator, adaptive_kl
        self.group, self.shares = group, Shares(group)
        if group.size > 1:
            self.operations = self.operations.over_all(group.sum_)
        self.flat = FlatParameters(policy)
        self.first_trained = 0 if train_actor else self.flat.actor_size
        self.optimizer = build_optimizer(
            self.flat, config, train_actor, critic_learning_rate or config.learning_rate, apart=critic_apart
        )
        self.max_grad_norm = config.max_grad_norm
        self.rate_scale = 1.0  # changed by adaptive_kl or by a callback
        self.rate_is_set = False  # a callback has set the rate, which ends the schedule
        self.used: set[str] = set()  # the engines that computed gradients so far
        self.threads = Threads(1)
        self.update = 0  # the number of the current one, which decides whether it is measured in full
        self.look: Look | None = None  # what is kept of such an update
        self._begun = False  # `begin_look` was asked in this update
        self.measured: tuple[int, int, int] | None = None  # passes, samples and minibatches that it was asked for last
        self.actor: Actor = TorchActor(policy)
        self.observer: Observer | None = None  # is shown every gradient; it changes no result
        self.meanwhile: Callable[[], None] | None = None  # is called when a GPU has work and the host only waits
        self.keep: Callable[[Names, Tensor], None] | None = None  # takes the metrics of an update that is not read yet

    def set_rates(self, remaining: float) -> None:
        """Before each update: its learning rates, schedule × adaptive scale, and the clock of Adam-Rel."""
        self.optimizer.begin_update()
        rate, factor = self.config.learning_rate, 1.0
        if not self.rate_is_set:
            falls = self.config.learning_rate_schedule == "linear"
            factor = rate.factor(remaining) if isinstance(rate, Schedule) else remaining if falls else 1.0
        self.optimizer.rate_factor = self.rate_scale * factor
        self.max_grad_norm = self.config.at(remaining).max_grad_norm

    def adapt_rate(self, kl: float) -> None:
        """÷1.5 when the update's KL was over twice `adaptive_kl`, ×1.5 when under half of it."""
        self.rate_scale = adapted(self.rate_scale, kl, self.adaptive_kl, self.config.learning_rate)

    @property
    def learning_rate(self) -> float:
        """α of the next gradient steps. If set, it stays and replaces a schedule; `adaptive_kl` continues from it. A
        critic's own rate keeps its ratio to it. Saved with the run.
        """
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        if not 0.0 <= rate < float("inf"):
            raise UsageError(f"learning_rate={rate} must be a finite number that is not negative")
        self.rate_scale, self.rate_is_set = rate / self.optimizer.base_rate, True
        self.optimizer.rate_factor = self.rate_scale

    def descend(self, loss: Tensor | None, optimizer: FlatOptimizer | None = None) -> Tensor:
        """One gradient step on `loss`; returns the gradient's norm before clipping, as a tensor.

        Several processes take the step together, along the average of their gradients; None: this one has no sample.
        `optimizer`: the one that takes the step, if not `self.optimizer`.
        """
        self.used.add(self.engine)
        self.flat.gradient.zero_()
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]
        gradient = self.shares.average_(self.flat.gradient[self.first_trained :])
        if self.observer is not None:
            self.observer("minibatch", gradient)
        norm = torch.linalg.vector_norm(gradient)
        if self.look is not None:
            self.look.add(self.flat.gradient[: self.flat.actor_size])
        if self.max_grad_norm is not None:
            gradient.mul_((self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        (optimizer or self.optimizer).step()
        return norm  # type: ignore[no-any-return]

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

        The metrics are means over all minibatches of the update, except KL(old‖new), which is exact: it is computed on
        the whole rollout after the last step.
        """
        loss, of_value = (loss, None) if self.optimizer.of_critic is None else divided(loss)
        batch = estimate(rollout, self.operations)
        parts = self.shares.count(config.num_minibatches, batch)
        whole = parts == 1  # the minibatch is the whole batch, so normalise once

        def prepare(batch: Batch) -> Batch:
            return self.normalized(batch) if normalize and whole else batch

        batch = prepare(batch)
        epochs = 0
        with self.all_or_nothing() as start:
            each, noise = normalize and not whole, config.mean_noise
            seen = self.shifted(batch, noise)
            self.begin_look(loss, seen, config.num_epochs, parts, normalize=each)
            passes = self.passes(loss, seen, parts, config.num_epochs, normalize=each)
            once, collected = self._before(batch, shifted=bool(noise)), batch
            for epoch in range(config.num_epochs):
                if epoch and config.recompute_advantage:
                    fill_values(rollout, self.actor)
                    # value_clip clips around the values from collection
                    batch = replace(prepare(estimate(rollout, self.operations)), value=batch.value)
                if epoch and (config.recompute_advantage or noise):
                    passes.load(self.shifted(batch, noise))
                passes.once()
                epochs = epoch + 1
                if config.stop_kl is not None and epochs < config.num_epochs and self.mean_kl(batch) > config.stop_kl:
                    break
            if self.policy.has_critic:  # of the critic that collected the rollout; late, so that a GPU begins at once
                once["explained_variance"] = self.explained_variance(collected)
            if of_value is not None:
                once["value_loss"] = averaged(self.fit_value(of_value, batch, critic_passes(config)))["value_loss"]
            step_outwards(self.flat.vector, start, config.outer_learning_rate)
            result = self.summarize(batch, passes.history, passes.first | once)
        return {**result, "epochs": float(epochs)}

    def _before(self, batch: Batch, *, shifted: bool) -> Metrics:
        """Metrics before the first step. `shifted`: the passes see shifted actions, whose ratio is not 1."""
        return {"ratio_error": self.policy_metrics(batch)["ratio_error"]} if shifted else {}

    def passes(self, loss: LossFunction, batch: Batch, parts: int, number: int, *, normalize: bool) -> Passes:
        """What takes up to `number` passes over a batch; `normalize` standardises advantages per minibatch."""
        return EagerPasses(self, loss, batch, parts, normalize=normalize)

    def shifted(self, batch: Batch, alpha: float) -> Batch:
        """The batch with RPO's noise for one epoch; the batch itself if there is none."""
        return with_mean_noise(batch, alpha, self.policy.actions, self.generator, self.shares) if alpha else batch

    def step(self, loss: LossFunction, part: Batch) -> Metrics:
        """One gradient step on a minibatch; returns its metrics as tensors."""
        outputs = self.policy.evaluate(part.obs, part.action, part.context) if len(part) else None
        return self.descend_on(loss, outputs, part)

    def descend_on(self, loss: LossFunction, outputs: Outputs | None, part: Batch) -> Metrics:
        """`outputs` None: this process has no sample of the minibatch."""
        if outputs is None:
            return {"grad_norm": self.descend(None)}
        total, metrics = loss(outputs, part)
        if self.shares.several:  # then the average over all processes is the mean over all samples
            share = self.shares.of(part)
            total, metrics = share * total, {name: share * x for name, x in metrics.items()}
        return {**metrics, "grad_norm": self.descend(total)}

    def fit_value(self, loss: Loss, batch: Batch, config: ValueFit) -> list[Metrics]:
        """Regress V on its targets with the critic's own parameters: `value_epochs` of `value_minibatches`."""
        history: list[Metrics] = []
        parts = self.shares.count(config.value_minibatches, batch)
        for _ in range(config.value_epochs):
            for part in self.minibatches(batch, parts):
                if not len(part):
                    history.append({"grad_norm": self.descend(None, self.optimizer.of_critic)})
                    continue
                value_loss = loss.of_value(self.policy.value(part.obs, part.context), part)
                value_loss = self.shares.of(part) * value_loss if self.shares.several else value_loss
                norm = self.descend(value_loss, self.optimizer.of_critic)
                history.append({"value_loss": value_loss.detach(), "grad_norm": norm})
        return history

    def begin_look(
        self, loss: LossFunction, batch: Batch, passes: int, minibatches: int = 1, *, normalize: bool = False
    ) -> None:
        """Before the first step of an update of so many passes: have it measured in full where that is due.

        `normalize`: the loss sees advantages that are standardised in each minibatch.
        """
        self.measured = passes, len(batch) * self.group.size, minibatches
        whole, halves = due(self.update, *self.measured[:2])
        self._begun, self.look = True, None
        if not self.instruments or not whole:
            return
        self.look = Look(loss, self.flat.actor.clone(), minibatches, normalize=normalize)
        if minibatches == 1 and halves and batch.units > 1 and not self.shares.several:
            self.look.half = self.half_gradient(loss, normalized(batch) if normalize else batch, passes)

    def half_gradient(self, loss: LossFunction, batch: Batch, passes: int) -> Tensor:
        """The actor's part of the gradient over one half of a batch, before so many passes of one minibatch each."""
        return self.gradient_of(loss, half_of(batch))

    def gradient_of(self, loss: LossFunction, batch: Batch) -> Tensor:
        """The actor's part of the loss's gradient over a batch; nothing is learned from it."""
        self.flat.gradient.zero_()
        loss(self.policy.evaluate(batch.obs, batch.action, batch.context), batch)[0].backward()  # type: ignore[no-untyped-call]
        return self.flat.gradient[: self.flat.actor_size].clone()

    def natural_step(self, loss: Loss, batch: Batch, config: NaturalStep) -> tuple[Tensor, Tensor]:
        """The actor's natural step within `config.max_kl`, and its predicted gain."""
        self.used.add(self.engine)
        actor, outputs = self.flat.actor_list, self.policy.evaluate(batch.obs, batch.action, batch.context)
        gradient = self.shares.overall_(flat_gradient(loss.objective(outputs, batch), actor), batch)
        if self.look is not None:
            self.look.add(-gradient)
        sample = self.shares.fisher_samples(batch, config.fisher_fraction)
        own = fisher_by_autograd(self.policy, actor, sample, config.cg_damping) if len(sample) else torch.zeros_like
        self.shares.of(sample)  # once, before the products need it
        return natural_step(gradient, lambda v: self.shares.overall_(own(v), sample), config, self.observer)

    def measure(self, loss: Loss, batch: Batch) -> float:
        """The objective under the current policy, read on the host (for a line search)."""
        with torch.no_grad():
            own = float(loss.objective(self.policy.evaluate(batch.obs, batch.action, batch.context), batch))
        return self.shares.mean(own, batch)

    def mean_kl(self, batch: Batch) -> float:
        return self.shares.mean(float(batch.mean(self.kl_from(batch))), batch)

    def policy_metrics(self, batch: Batch) -> Metrics:
        """Entropy and ratio error of the policy before it moves."""
        with torch.no_grad():
            outputs = self.policy.evaluate(batch.obs, batch.action, batch.context)
            return {
                "entropy": self.shares.of(batch) * batch.mean(outputs.distribution.entropy()),
                "ratio_error": max_ratio_error(outputs, batch),
            }

    def minibatches(self, batch: Batch, parts: int) -> Iterator[Batch]:
        """The batch in `parts` equal, freshly shuffled parts; each sample is in exactly one of them.

        With a memory, whole envs are shuffled, because their time order must be kept.
        """
        if parts == 1:
            yield batch
            return
        units = self.shares.units(batch) if self.shares.several else batch.units
        order = permutation(units, self.generator)
        if self.shares.several:
            yield from self.shares.minibatches(batch, order.cpu().numpy(), parts)
            return
        for index in order.to(batch.obs.device).chunk(parts):
            yield batch.take(index)

    def normalized(self, part: Batch) -> Batch:
        """The batch with advantages standardised over the samples of all processes."""
        return self.shares.normalized(part) if self.shares.several else normalized(part)

    def spread_of_kl(self, kl: Tensor, weight: Tensor | None) -> Metrics:
        """Mean, 95th percentile and largest of the valid samples' KL, unread."""
        everyone = self.shares.concatenated(kl if weight is None else kl[weight > 0])
        return {"kl": everyone.mean() if self.shares.several else self.mean(kl, weight), **tail(everyone)}

    def explained_variance(self, batch: Batch) -> Tensor:
        if self.shares.several:
            return self.flat.vector.new_tensor(self.shares.explained_variance(batch))
        return explained_variance(batch.value, batch.value_target, batch.weight)

    def kl_from(self, batch: Batch) -> Tensor:
        """KL(old‖new) of every sample, from the stored parameters of the old distribution."""
        return kl_of(self.policy, batch)

    def summarize(self, batch: Batch, history: list[Metrics], once: Metrics) -> dict[str, float]:
        """Read everything on the host, once per update, and refuse the update if a number is not finite."""
        names, numbers = unread(self, batch, history, once)
        if self.keep is not None:
            self.keep(names, numbers)
            return {}
        if self.meanwhile is not None:
            self.meanwhile()
        return understood(self, names, numbers.tolist())

    def absorb(self, rollout: Rollout) -> Metrics:
        """After an update: add the rollout to the observations' statistics. Returns what its actions show, unread."""
        clipped = self.policy.actions.clip_fraction(rollout.action)
        if self.policy.normalizer is not None:
            self.policy.normalizer.merge(rollout.obs[:-1], rollout.valid, self.operations)
        return {} if clipped is None else {"action_clip_fraction": self.mean(clipped, rollout.valid.float())}

    def mean(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return weighted_mean(x, weight)

    def look_over(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """(KL(old‖new) of every sample, the instruments where they are due), in one pass over the batch."""
        if not self._begun:  # an algorithm that makes its own passes
            self.begin_look(Loss(RATIO), batch, passes=1)
        if (look := self.look) is None:
            return self.kl_from(batch), {}
        kl, looked = look_at(self.policy, look, batch)
        return kl, looked | self.gradient_metrics(look, batch)

    def gradient_metrics(self, look: Look, batch: Batch) -> Metrics:
        """Metrics of the gradients that the update began with; several processes share them."""
        return look.metrics(self.flat.actor, float(len(batch) * self.group.size))

    @contextmanager
    def all_or_nothing(self) -> Iterator[Tensor]:
        """Restore weights and optimizer if anything inside raises. Gives the weights before."""
        vector, state = self.flat.vector.clone(), self.optimizer.state_dict()
        try:
            yield vector
        except BaseException:
            self.flat.vector.copy_(vector)
            self.optimizer.load_state_dict(state)
            raise
        finally:
            self.forget()

    def forget(self) -> None:
        """The update is over."""
        self.look, self._begun = None, False
        self.shares.forget()

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
        self.rate_is_set = bool(state.get("rate_is_set"))  # missing in earlier versions
        self.generator = continued(self.generator, state["shuffle"])
