"""The learner with compiled gradient steps. Its results equal those of `Learner`, up to rounding."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import torch
from torch import Tensor

from surefoot.engine.losses import Loss
from surefoot.engine.native.actor import NativeActor
from surefoot.engine.native.describe import as_rows, describe, kernel_context, rows_of
from surefoot.engine.native.operations import CompiledOperations
from surefoot.engine.native.threads import fastest
from surefoot.engine.rollouts import fill_values
from surefoot.engine.shares import unit_moments
from surefoot.engine.torch.critic_apart import critic_passes, divided
from surefoot.engine.torch.instruments import (
    CLIPPED,
    QUANTILES,
    SUMS,
    by_dimension,
    from_gradients,
    from_sums,
    sampled_rows,
    with_instruments,
)
from surefoot.engine.torch.learner import Learner
from surefoot.engine.torch.natural import NaturalStep, natural_step
from surefoot.engine.torch.optimizers import step_outwards
from surefoot.engine.torch.verdict import checked
from surefoot.kernels import structs
from surefoot.kernels.network import Network, Share
from surefoot.kernels.scan import explained_variance
from surefoot.kernels.specs import loss_spec, optimizer_spec, surrogates

if TYPE_CHECKING:
    from surefoot.engine.config import EpochConfig, ValueFit
    from surefoot.engine.losses import LossFunction
    from surefoot.engine.torch.instruments import Look
    from surefoot.engine.torch.learner import Estimate
    from surefoot.kernels.arrays import Numbers
    from surefoot.types import Array, Batch, Metrics, Rollout

RATIOS = (*QUANTILES, "ratio_max")
AT_ONCE = 2**22  # numbers of a shuffled order that one call gets


def known(loss: LossFunction) -> TypeGuard[Loss]:
    """Whether the kernels can compute this loss."""
    return isinstance(loss, Loss) and (loss.surrogate is None or loss.surrogate.kernel in surrogates())


class NativeLearner(Learner):
    """A `Learner` on `kernels.network`. The methods of the base class are the reference for those overridden here."""

    net: Network
    operations = CompiledOperations()

    def connect(self, threads: int | None, samples: int) -> None:
        """Set up the kernels for the policy. `threads` None: the fastest number for steps on this many `samples`."""
        description = describe(self.policy, self.first_trained)
        self.net = fastest(description, samples) if threads is None else Network(description, threads)
        self.theta, self.gradient = self.flat.vector, self.flat.gradient
        self._weights = self.theta.numpy()
        self.moments = (self.optimizer.first, self.optimizer.second)
        self.actor = NativeActor(self.policy, self.net, self.theta)
        self.only_kl = loss_spec("none", with_kl=True)
        self._last_packed: tuple[Batch, structs.Batch] | None = None
        self._squares: Tensor | None = None  # Σ of the squares of the first pass's gradients

    def epochs(
        self,
        loss: LossFunction,
        estimate: Estimate,
        rollout: Rollout,
        config: EpochConfig,
        *,
        normalize: bool = False,
    ) -> dict[str, float]:
        if not known(loss):
            return super().epochs(loss, estimate, rollout, config, normalize=normalize)
        loss, of_value = (loss, None) if self.optimizer.of_critic is None else divided(loss)
        batch = estimate(rollout, self.operations)
        parts = self.shares.count(config.num_minibatches, batch)
        once = self._first_look(batch)
        epochs, sums, error = 0, dict[str, float](), 0.0
        # All epochs in one call, unless something must be done between them.
        one_by_one = config.stop_kl is not None or config.recompute_advantage or config.mean_noise > 0.0
        each = 1 if one_by_one else max(1, AT_ONCE // len(batch))
        with self.all_or_nothing() as start:
            seen = self.shifted(batch, config.mean_noise)
            self.begin_look(loss, seen, config.num_epochs, parts, normalize=normalize)
            packed = self._packed(batch)
            shift_error = None if seen is batch else float(self.policy_metrics(batch)["ratio_error"])
            while epochs < config.num_epochs:
                if epochs and config.recompute_advantage:
                    fill_values(rollout, self.actor)
                    # value_clip clips around the values from collection
                    batch = replace(estimate(rollout, self.operations), value=batch.value)
                    packed = self._packed(batch)
                count = min(each, config.num_epochs - epochs)
                look = None if epochs else self.look
                seen = self.shifted(batch, config.mean_noise) if epochs else seen
                taken = packed if seen is batch else self._pack(seen)
                found, first = self._steps(loss, batch, taken, count, parts, normalize, look)
                if not epochs:  # the ratios of shifted actions do not begin at 1
                    error = first if shift_error is None else shift_error
                epochs += count
                sums = {name: sums.get(name, 0.0) + x for name, x in found.items()}
                if config.stop_kl is not None and epochs < config.num_epochs and self.mean_kl(batch) > config.stop_kl:
                    break
            means = {name: x / (epochs * parts) for name, x in sums.items()}
            if of_value is not None:
                (fitted,) = self.fit_value(of_value, batch, critic_passes(config))
                means["value_loss"] = float(fitted["value_loss"])
            step_outwards(self.theta, start, config.outer_learning_rate)
            metrics = self._report(batch, packed, self._loss_metrics(loss, means) | once | {"ratio_error": error})
        return {**metrics, "epochs": float(epochs)}

    def _steps(
        self,
        loss: Loss,
        batch: Batch,
        packed: structs.Batch,
        epochs: int,
        minibatches: int,
        normalize: bool,
        look: Look | None = None,
    ) -> tuple[dict[str, float], float]:
        """(sums of the metrics, the first ratio's error); `look` gets the gradients of the first pass."""
        self.used.add("native")
        total = None if look is None else self.theta.new_empty((2, len(self.theta)))
        order, share = self._order(batch, epochs, minibatches)
        alone = self.optimizer.of_critic if loss.surrogate is None else None
        optimizer = alone or self.optimizer
        slices = [(a, b, rate * optimizer.rate_factor) for a, b, rate in optimizer.ranges]
        optimizer.steps, found, first = self.net.epochs(
            self.theta,
            self.gradient,
            self.moments,
            optimizer.steps,
            self._compiled(loss, with_value=loss.value_coef is not None),
            optimizer_spec(self.config.optimizer, slices, self.max_grad_norm),
            packed,
            order,
            epochs,
            minibatches,
            normalize=normalize,
            reduce=self._between if self.shares.several or self.observer is not None else None,
            total=total,
            share=share,
        )
        if look is not None and total is not None:
            look.total, self._squares = total[:, : self.flat.actor_size]
            look.count = minibatches
            if look.half is not None:
                look.squares = self._squares.sum()
        told = self.shares.metrics({**found, "ratio_error": first})
        return {name: told[name] for name in found}, told["ratio_error"]

    def _order(self, batch: Batch, epochs: int, minibatches: int) -> tuple[Numbers | None, Share | None]:
        """The samples (or, with a memory, the envs) of all minibatches, freshly shuffled; None: all in each.

        Several processes shuffle the samples of all of them; the second tells which minibatches this one's are in.
        """
        several = self.shares.several
        units = self.shares.units(batch) if several else batch.units
        shuffled = range(epochs if minibatches > 1 else 0)
        rows = [torch.randperm(units, generator=self.generator, device="cpu") for _ in shuffled]
        if not several:
            return torch.stack(rows) if rows else None, None
        if not rows:
            sums = self.group.sum_(torch.from_numpy(unit_moments(batch).sum(0, keepdims=True))).numpy()
            return None, Share(None, np.tile(sums, (epochs, 1)), self.group.size)
        order, begins, moments = self.shares.passes(batch, [row.numpy() for row in rows], minibatches)
        return order, Share(begins, moments, self.group.size)

    def gradient_of(self, loss: LossFunction, batch: Batch) -> Tensor:
        if not known(loss):
            return super().gradient_of(loss, batch)
        spec = self._compiled(loss, with_value=loss.value_coef is not None)
        self.net.gradient(self.theta, spec, self._pack(batch), self.gradient)
        return self.flat.gradient[: self.flat.actor_size].clone()

    def _between(self, gradient: Array) -> None:
        """Between a minibatch's backward pass and its step."""
        whole = self.shares.average_(torch.from_numpy(gradient))
        if self.observer is not None:
            self.observer("minibatch", whole[self.first_trained :])

    def _compiled(self, loss: Loss, *, with_value: bool = False) -> structs.LossSpec:
        return loss_spec(
            "none" if loss.surrogate is None else loss.surrogate.kernel or "none",
            *loss.parameters,
            kl_coef=loss.kl_coef,
            value_coef=loss.value_coef or 0.0,
            value_clip=loss.value_clip,
            huber=loss.value_loss != "mse",
            with_value=self.policy.has_critic and with_value,
            entropy_coef=loss.entropy_coef,
        )

    def forget(self) -> None:
        super().forget()
        self._last_packed = self._squares = None  # they would keep a rollout alive

    def _packed(self, batch: Batch) -> structs.Batch:
        """The batch in the kernels' form; the last one is cached."""
        if self._last_packed is None or self._last_packed[0] is not batch:
            self._last_packed = (batch, self._pack(batch))
        return self._last_packed[1]

    def _pack(self, batch: Batch) -> structs.Batch:
        numbers = (batch.log_prob, batch.dist_params, batch.advantage, batch.value_target, batch.value, batch.weight)
        tensors = (None if tensor is None else tensor.contiguous() for tensor in numbers)
        log_prob, params, advantage, target, value, weight = tensors
        rows, action = rows_of(self.policy, batch.obs), as_rows(batch.action)
        context = kernel_context(batch.context)
        return self.net.batch(rows, action, log_prob, params, advantage, target, value, weight, context)

    def _loss_metrics(self, loss: Loss, means: dict[str, float]) -> dict[str, float]:
        metrics = {"policy_loss": loss.kl_coef * means["kl"] - means["surrogate"], "entropy": means["entropy"]}
        if self.policy.has_critic:
            metrics["value_loss"] = means["value_loss"]
        return metrics | {name: means[name] for name in (*loss.metrics, "grad_norm")}

    def _first_look(self, batch: Batch) -> dict[str, float]:
        """Metrics before the first step, when the critic is still the one that collected the rollout."""
        if not self.policy.has_critic:
            return {}
        if self.shares.several:
            return {"explained_variance": self.shares.explained_variance(batch)}
        return {"explained_variance": explained_variance(batch.value, batch.value_target, batch.weight)}

    def fit_value(self, loss: Loss, batch: Batch, config: ValueFit) -> list[Metrics]:
        parts = self.shares.count(config.value_minibatches, batch)
        sums, _ = self._steps(loss, batch, self._packed(batch), config.value_epochs, parts, False)
        steps = config.value_epochs * parts
        return [{name: _scalar(sums[name] / steps) for name in ("value_loss", "grad_norm")}]

    def natural_step(self, loss: Loss, batch: Batch, config: NaturalStep) -> tuple[Tensor, Tensor]:
        if not known(loss):
            return super().natural_step(loss, batch, config)
        self.used.add("native")
        packed, size = self._packed(batch), self.flat.actor_size
        self.net.gradient(self.theta, self._compiled(loss), packed, self.gradient)
        ascent = self.shares.overall_(-self.flat.gradient[:size], batch)
        if self.look is not None:
            self.look.add(-ascent)
        sample = self.shares.fisher_samples(batch, config.fisher_fraction)
        self.shares.of(sample)  # once, before the products need it
        seen = self._packed(sample) if len(sample) else None
        image, along = torch.zeros_like(self.theta), torch.zeros_like(self.theta)

        def product(vector: Tensor) -> Tensor:
            along[:size] = vector
            if seen is not None:
                self.net.fisher_product(self.theta, along, seen, image)
            return self.shares.overall_(image[:size] + config.cg_damping * vector, sample)

        return natural_step(ascent, product, config, self.observer)

    def measure(self, loss: Loss, batch: Batch) -> float:
        if not known(loss):
            return super().measure(loss, batch)
        found = self.net.evaluate(self.theta, self._compiled(loss), self._packed(batch))
        return self.shares.mean(found["surrogate"] + loss.entropy_coef * found["entropy"], batch)

    def mean_kl(self, batch: Batch) -> float:
        own = self.net.evaluate(self.theta, self.only_kl, self._packed(batch))["kl"]
        return self.shares.mean(own, batch)

    def policy_metrics(self, batch: Batch) -> Metrics:
        found = self.net.evaluate(self.theta, loss_spec("ratio"), self._packed(batch))
        entropy = self.shares.of(batch) * found["entropy"]
        return {"entropy": _scalar(entropy), "ratio_error": _scalar(found["ratio_error"])}

    def kl_from(self, batch: Batch) -> Tensor:
        kl = torch.empty(len(batch), dtype=torch.float32, device="cpu")
        self.net.evaluate(self.theta, self.only_kl, self._packed(batch), kl)
        return kl

    def _report(self, batch: Batch, packed: structs.Batch, metrics: dict[str, float]) -> dict[str, float]:
        """With the exact KL(old‖new) of the whole rollout, checked; and the instruments, where they are due."""
        looked: dict[str, float] = {}
        if self.look is None:
            kl = torch.empty(len(batch), dtype=torch.float32, device="cpu")
            mean = self.net.evaluate(self.theta, self.only_kl, packed, kl)["kl"]
        else:
            kl, mean, looked = self._inspect(self.look, batch, packed)
        everyone = self.shares.concatenated(kl if batch.weight is None else kl[batch.weight > 0])
        ordered, mean = np.sort(everyone.numpy()), self.shares.mean(mean, batch)
        # NumPy's sum: a third of the time of PyTorch's for a small network. A finite sum has finite terms only.
        sound = math.isfinite(self._weights.sum()) or bool(self.theta.isfinite().all())
        metrics |= {"kl": mean, "kl_p95": quantile(ordered, 0.95), "kl_max": float(ordered[-1])}
        return with_instruments(
            checked(metrics | {"parameters_finite": float(sound)}, self.learning_rate), self.shares.metrics(looked)
        )

    def look_over(self, batch: Batch) -> tuple[Tensor, Metrics]:
        if not self._begun or self.look is None or not known(self.look.loss):
            return super().look_over(batch)
        kl, _, looked = self._inspect(self.look, batch, self._packed(batch))
        return kl, {name: _scalar(x) for name, x in looked.items()}

    def _inspect(self, look: Look, batch: Batch, packed: structs.Batch) -> tuple[Tensor, float, dict[str, float]]:
        """(KL(old‖new) of every sample, its mean, the instruments); what `look_over` of the base class computes."""
        found, kl, means = self.net.inspect(
            self.theta, self._compiled(look.loss), packed, sampled_rows(batch), normalize=look.normalize
        )
        clips = look.loss.surrogate is not None and look.loss.surrogate.clipped is not None
        metrics = {name: float(getattr(found, name)) for name in RATIOS}
        metrics |= from_sums(
            self.shares.sums({name: getattr(found, name) for name in (*SUMS, *(CLIPPED if clips else ()))})
        )
        if self.policy.has_critic:
            metrics["explained_variance_after"] = found.explained_variance
        if self.policy.has_hidden:
            metrics |= {"dead_units": found.dead_units, "effective_rank": found.effective_rank}
        (all_of, continuous), middle = self.net.description.num_dimensions, len(means) // 2
        metrics |= by_dimension(means[:all_of].tolist(), means[middle : middle + continuous].tolist())
        return kl, found.kl / max(found.weight, 1.0), metrics | self._gradients(look, batch)

    def _gradients(self, look: Look, batch: Batch) -> dict[str, float]:
        """What `gradient_metrics` of the base class computes."""
        if look.total is None or look.half is not None or self._squares is None:
            found = self.gradient_metrics(look, batch)
            return {name: float(x) for name, x in found.items()}
        sums = self.net.gradient_look(look.total, self._squares, look.start, self.flat.actor)
        return from_gradients(*sums, look.count, float(len(batch) * self.group.size))


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32, device="cpu")


def quantile(ordered: Array, q: float) -> float:
    """A quantile of sorted values, interpolated linearly like `torch.quantile`."""
    at = q * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (at - below) * (ordered[above] - ordered[below]))
