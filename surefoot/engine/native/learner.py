"""The learner with compiled gradient steps. Its results equal those of `Learner`, up to rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import torch
from torch import Tensor

from surefoot.engine.config import count_minibatches
from surefoot.engine.losses import Loss
from surefoot.engine.native.actor import NativeActor
from surefoot.engine.native.describe import as_rows, describe, kernel_context, rows_of
from surefoot.engine.native.operations import CompiledOperations
from surefoot.engine.native.threads import fastest
from surefoot.engine.rollouts import fill_values
from surefoot.engine.torch.learner import Learner, ValueFit
from surefoot.engine.torch.natural import NaturalStep, fisher_samples, natural_step
from surefoot.kernels import structs
from surefoot.kernels.network import Network
from surefoot.kernels.scan import explained_variance
from surefoot.kernels.specs import loss_spec, optimizer_spec, surrogates

if TYPE_CHECKING:
    from surefoot.engine.config import EpochConfig
    from surefoot.engine.losses import LossFunction
    from surefoot.engine.torch.learner import Estimate
    from surefoot.types import Array, Batch, Metrics, Rollout

AT_ONCE = 2**22  # numbers of a shuffled order that one call gets


def known(loss: LossFunction) -> TypeGuard[Loss]:
    """Whether the kernels compute it."""
    return isinstance(loss, Loss) and (loss.surrogate is None or loss.surrogate.kernel in surrogates())


class NativeLearner(Learner):
    """A `Learner` on `kernels.network`. The methods of the base class are the reference for those overridden here."""

    net: Network
    operations = CompiledOperations()

    def connect(self, threads: int | None, samples: int) -> None:
        """Make the kernels of the policy. `threads` None: as many as are fastest for steps on so many `samples`."""
        description = describe(self.policy, self.first_trained)
        self.net = fastest(description, samples) if threads is None else Network(description, threads)
        self.theta, self.gradient = self.flat.vector, self.flat.gradient
        self.moments = (self.optimizer.first, self.optimizer.second)
        self.actor = NativeActor(self.policy, self.net, self.theta)
        self.only_kl = loss_spec("none", with_kl=True)
        self._last_packed: tuple[Batch, structs.Batch] | None = None

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
        batch = estimate(rollout, self.operations)
        parts = count_minibatches(config.num_minibatches, len(batch), batch.units)
        once = self._first_look(batch)
        epochs, sums, error = 0, dict[str, float](), 0.0
        # All epochs in one call, unless something has to be looked at between them.
        one_by_one = config.stop_kl is not None or config.recompute_advantage
        each = 1 if one_by_one else max(1, AT_ONCE // len(batch))
        with self.all_or_nothing():
            packed = self._packed(batch)
            while epochs < config.num_epochs:
                if epochs and config.recompute_advantage:
                    fill_values(rollout, self.actor)
                    # value_clip holds to the critic that collected
                    batch = replace(estimate(rollout, self.operations), value=batch.value)
                    packed = self._packed(batch)
                count = min(each, config.num_epochs - epochs)
                found, first = self._steps(loss, packed, count, parts, normalize)
                error = error if epochs else first
                epochs += count
                sums = {name: sums.get(name, 0.0) + x for name, x in found.items()}
                if config.stop_kl is not None and epochs < config.num_epochs and self.mean_kl(batch) > config.stop_kl:
                    break
            means = {name: x / (epochs * parts) for name, x in sums.items()}
            metrics = self._report(batch, packed, self._loss_metrics(loss, means) | once | {"ratio_error": error})
        return {**metrics, "epochs": float(epochs)}

    def _steps(
        self, loss: Loss, packed: structs.Batch, epochs: int, minibatches: int, normalize: bool
    ) -> tuple[dict[str, float], float]:
        self.used.add("native")
        order = None
        if minibatches > 1:
            units = packed.sequences or packed.size  # whole envs where there is a memory
            rows = [torch.randperm(units, generator=self.generator, device="cpu") for _ in range(epochs)]
            order = torch.stack(rows)
        slices = [(a, b, rate * self.optimizer.rate_factor) for a, b, rate in self.optimizer.ranges]
        optimizer = optimizer_spec(self.config.optimizer, slices, self.max_grad_norm)
        self.optimizer.steps, found, first = self.net.epochs(
            self.theta,
            self.gradient,
            self.moments,
            self.optimizer.steps,
            self._compiled(loss, with_value=True),
            optimizer,
            packed,
            order,
            epochs,
            minibatches,
            normalize=normalize,
            reduce=None if self.group.size == 1 and self.observer is None else self._between,
        )
        return found, first

    def _between(self, gradient: Array) -> None:
        """Between a minibatch's backward pass and its step."""
        whole = torch.from_numpy(gradient)
        if self.group.size > 1:
            self.share(whole)
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

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        try:
            with super().all_or_nothing():
                yield
        finally:
            self._last_packed = None  # it would keep a rollout alive

    def _packed(self, batch: Batch) -> structs.Batch:
        """The batch as the kernels take it; the one that was asked for last is kept."""
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
        """Of the critic that collected the rollout."""
        if not self.policy.has_critic:
            return {}
        return {"explained_variance": explained_variance(batch.value, batch.value_target, batch.weight)}

    def fit_value(self, loss: Loss, batch: Batch, config: ValueFit) -> list[Metrics]:
        parts = count_minibatches(config.value_minibatches, len(batch), batch.units)
        sums, _ = self._steps(loss, self._packed(batch), config.value_epochs, parts, False)
        steps = config.value_epochs * parts
        return [{name: _scalar(sums[name] / steps) for name in ("value_loss", "grad_norm")}]

    def natural_step(self, loss: Loss, batch: Batch, config: NaturalStep) -> tuple[Tensor, Tensor]:
        if not known(loss):
            return super().natural_step(loss, batch, config)
        self.used.add("native")
        packed, size = self._packed(batch), self.flat.actor_size
        self.net.gradient(self.theta, self._compiled(loss), packed, self.gradient)
        ascent = -self.flat.gradient[:size]
        sample = fisher_samples(batch, config.fisher_fraction)
        seen = self._packed(sample)
        image, along = torch.zeros_like(self.theta), torch.zeros_like(self.theta)

        def product(vector: Tensor) -> Tensor:
            along[:size] = vector
            self.net.fisher_product(self.theta, along, seen, image)
            return image[:size] + config.cg_damping * vector

        return natural_step(ascent, product, config, self.observer)

    def measure(self, loss: Loss, batch: Batch) -> float:
        if not known(loss):
            return super().measure(loss, batch)
        found = self.net.evaluate(self.theta, self._compiled(loss), self._packed(batch))
        return found["surrogate"] + loss.entropy_coef * found["entropy"]

    def mean_kl(self, batch: Batch) -> float:
        return self.net.evaluate(self.theta, self.only_kl, self._packed(batch))["kl"]

    def policy_metrics(self, batch: Batch) -> Metrics:
        found = self.net.evaluate(self.theta, loss_spec("ratio"), self._packed(batch))
        return {name: _scalar(found[name]) for name in ("entropy", "ratio_error")}

    def kl_from(self, batch: Batch) -> Tensor:
        kl = torch.empty(len(batch), dtype=torch.float32, device="cpu")
        self.net.evaluate(self.theta, self.only_kl, self._packed(batch), kl)
        return kl

    def _report(self, batch: Batch, packed: structs.Batch, metrics: dict[str, float]) -> dict[str, float]:
        """With the exact KL(old‖new) of the whole rollout, checked."""
        kl = torch.empty(len(batch), dtype=torch.float32, device="cpu")
        mean = self.net.evaluate(self.theta, self.only_kl, packed, kl)["kl"]
        ordered = np.sort((kl if batch.weight is None else kl[batch.weight > 0]).numpy())
        finite = math.isfinite(float(self.theta.sum())) or bool(self.theta.isfinite().all())
        metrics |= {"kl": mean, "kl_p95": quantile(ordered, 0.95), "kl_max": float(ordered[-1])}
        return self.checked(metrics | {"parameters_finite": float(finite)})


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32, device="cpu")


def quantile(ordered: Array, q: float) -> float:
    """Linear between the two nearest of sorted values, as `torch.quantile`."""
    at = q * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (at - below) * (ordered[above] - ordered[below]))
