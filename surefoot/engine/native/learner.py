"""The learner whose gradient steps are compiled. What it learns is what `Learner` learns, to rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from surefoot.engine.collect import Collector, past_limit
from surefoot.engine.config import count_minibatches
from surefoot.engine.episodes import Episode
from surefoot.engine.native.describe import as_rows, before, describe, rows_of
from surefoot.engine.native.threads import fastest
from surefoot.engine.rollouts import fill_values
from surefoot.engine.torch.learner import Learner, Loss
from surefoot.engine.torch.modes import own_modes
from surefoot.engine.torch.natural import Objective, fisher_samples, natural_step
from surefoot.envs.native_envs import NativeEnvs
from surefoot.errors import EnvError
from surefoot.kernels import scan, structs
from surefoot.kernels.network import Network
from surefoot.kernels.rollout import NativeRollout
from surefoot.kernels.scan import explained_variance
from surefoot.kernels.specs import loss_spec, optimizer_spec, surrogates
from surefoot.types import LossSpec

if TYPE_CHECKING:
    from surefoot.engine.config import EpochConfig
    from surefoot.policies.actor_critic import Noise
    from surefoot.types import Array, Batch, Context, Metrics, Rollout

AT_ONCE = 2**22  # numbers of a shuffled order that one call gets


class NativeLearner(Learner):
    """A `Learner` on `kernels.network`. Every method with a `spec` has its oracle in the base class."""

    def __init__(self, *args: Any, threads: int | None = None, samples: int = 256, **kwargs: Any) -> None:
        """`threads` None: as many as are fastest for gradient steps on so many `samples`."""
        super().__init__(*args, **kwargs)
        description = describe(self.policy, self.first_trained)
        self.net = fastest(description, samples) if threads is None else Network(description, threads)
        self.theta, self.gradient = self.flat.vector, self.flat.gradient
        self.moments = (self.optimizer.first, self.optimizer.second)
        self.only_kl = loss_spec("none", with_kl=True)

    def epochs(
        self,
        loss: Loss,
        estimate: Callable[[Rollout], Batch],
        rollout: Rollout,
        config: EpochConfig,
        *,
        spec: LossSpec | None = None,
        normalize: bool = False,
    ) -> dict[str, float]:
        if spec is None:
            return super().epochs(loss, estimate, rollout, config, normalize=normalize)
        batch = estimate(rollout)
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
                    fill_values(rollout, self.policy, self.value)
                    batch = replace(estimate(rollout), value=batch.value)  # value_clip holds to the one that collected
                    packed = self._packed(batch)
                count = min(each, config.num_epochs - epochs)
                found, first = self._steps(spec, packed, count, parts, normalize)
                error = error if epochs else first
                epochs += count
                sums = {name: sums.get(name, 0.0) + x for name, x in found.items()}
                if config.stop_kl is not None and epochs < config.num_epochs and self.mean_kl(batch) > config.stop_kl:
                    break
            means = {name: x / (epochs * parts) for name, x in sums.items()}
            metrics = self._report(batch, packed, self._loss_metrics(spec, means) | once | {"ratio_error": error})
        return {**metrics, "epochs": float(epochs)}

    def _steps(
        self, spec: LossSpec, packed: structs.Batch, epochs: int, minibatches: int, normalize: bool
    ) -> tuple[dict[str, float], float]:
        self.used.add("native")
        order = None
        if minibatches > 1:
            units = packed.sequences or packed.size  # whole envs where there is a memory
            rows = [torch.randperm(units, generator=self.generator, device="cpu") for _ in range(epochs)]
            order = torch.stack(rows)
        slices = [(a, b, rate * self.optimizer.rate_factor) for a, b, rate in self.optimizer.ranges]
        optimizer = optimizer_spec(self.config.optimizer, slices, self.config.max_grad_norm)
        self.optimizer.steps, found, first = self.net.epochs(
            self.theta,
            self.gradient,
            self.moments,
            self.optimizer.steps,
            self._compiled(spec, with_value=True),
            optimizer,
            packed,
            order,
            epochs,
            minibatches,
            normalize=normalize,
        )
        return found, first

    def _compiled(self, spec: LossSpec, *, with_value: bool = False) -> structs.LossSpec:
        return loss_spec(
            spec.surrogate,
            *(spec.clip_ratio,)[: surrogates()[spec.surrogate].parameters],
            kl_coef=spec.kl_coef,
            value_coef=spec.value_coef,
            value_clip=spec.value_clip,
            huber=spec.value_loss != "mse",
            with_value=self.policy.has_critic and with_value,
            entropy_coef=spec.entropy_coef,
        )

    def _packed(self, batch: Batch) -> structs.Batch:
        numbers = (batch.log_prob, batch.dist_params, batch.advantage, batch.value_target, batch.value, batch.weight)
        tensors = (None if tensor is None else tensor.contiguous() for tensor in numbers)
        log_prob, params, advantage, target, value, weight = tensors
        rows, action = rows_of(self.policy, batch.obs), as_rows(batch.action)
        context = before(batch.context)
        return self.net.batch(rows, action, log_prob, params, advantage, target, value, weight, context)

    def _loss_metrics(self, spec: LossSpec, means: dict[str, float]) -> dict[str, float]:
        metrics = {"policy_loss": spec.kl_coef * means["kl"] - means["surrogate"], "entropy": means["entropy"]}
        if self.policy.has_critic:
            metrics["value_loss"] = means["value_loss"]
        return metrics | {name: means[name] for name in (*spec.metrics, "grad_norm")}

    def _first_look(self, batch: Batch) -> dict[str, float]:
        """Of the critic that collected the rollout."""
        if not self.policy.has_critic:
            return {}
        return {"explained_variance": explained_variance(batch.value, batch.value_target, batch.weight)}

    def fit_value(
        self, loss: Callable[[Tensor, Batch], Tensor], batch: Batch, config: Any, spec: LossSpec | None = None
    ) -> list[Metrics]:
        if spec is None:
            return super().fit_value(loss, batch, config)
        parts = count_minibatches(config.value_minibatches, len(batch), batch.units)
        sums, _ = self._steps(spec, self._packed(batch), config.value_epochs, parts, False)
        steps = config.value_epochs * parts
        return [{name: _scalar(sums[name] / steps) for name in ("value_loss", "grad_norm")}]

    def natural_step(
        self, objective: Objective, batch: Batch, config: Any, spec: LossSpec | None = None
    ) -> tuple[Tensor, Tensor]:
        if spec is None:
            return super().natural_step(objective, batch, config)
        self.used.add("native")
        packed, size = self._packed(batch), self.flat.actor_size
        self.net.gradient(self.theta, self._compiled(spec), packed, self.gradient)
        ascent = -self.flat.gradient[:size]
        sample = fisher_samples(batch, config.fisher_fraction)
        seen = self._packed(sample)
        image, along = torch.zeros_like(self.theta), torch.zeros_like(self.theta)

        def product(vector: Tensor) -> Tensor:
            along[:size] = vector
            self.net.fisher_product(self.theta, along, seen, image)
            return image[:size] + config.cg_damping * vector  # type: ignore[no-any-return]

        return natural_step(ascent, product, max_kl=config.max_kl, cg_iterations=config.cg_iterations)

    def measure(self, objective: Objective, batch: Batch, spec: LossSpec | None = None) -> float:
        if spec is None:
            return super().measure(objective, batch)
        found = self.net.evaluate(self.theta, self._compiled(spec), self._packed(batch))
        return found["surrogate"] + spec.entropy_coef * found["entropy"]

    def mean_kl(self, batch: Batch) -> float:
        return self.net.evaluate(self.theta, self.only_kl, self._packed(batch))["kl"]

    def policy_metrics(self, batch: Batch) -> Metrics:
        found = self.net.evaluate(self.theta, loss_spec("ratio"), self._packed(batch))
        return {name: _scalar(found[name]) for name in ("entropy", "ratio_error")}

    def kl_from(self, batch: Batch) -> Tensor:
        kl = torch.empty(len(batch), dtype=torch.float32, device="cpu")
        self.net.evaluate(self.theta, self.only_kl, self._packed(batch), kl)
        return kl

    def value(self, inputs: Tensor, context: Context | None = None) -> Tensor:
        """V of `[B, width]` inputs; zeros without a critic."""
        if not self.policy.has_critic:
            return inputs.new_zeros(len(inputs))
        return self.net.values(self.theta, rows_of(self.policy, inputs), before(context))

    def _report(self, batch: Batch, packed: structs.Batch, metrics: dict[str, float]) -> dict[str, float]:
        """With the exact KL(old‖new) of the whole rollout, checked."""
        kl = torch.empty(len(batch), dtype=torch.float32, device="cpu")
        mean = self.net.evaluate(self.theta, self.only_kl, packed, kl)["kl"]
        ordered = np.sort((kl if batch.weight is None else kl[batch.weight > 0]).numpy())
        finite = math.isfinite(float(self.theta.sum())) or bool(self.theta.isfinite().all())
        metrics |= {"kl": mean, "kl_p95": quantile(ordered, 0.95), "kl_max": float(ordered[-1])}
        return self.checked(metrics | {"parameters_finite": float(finite)})


class NativeCollector(Collector):
    """A `Collector` that acts through the learner's kernels; native envs are stepped in there with it."""

    rows_alone, compiled = True, scan

    def __init__(self, *args: Any, learner: NativeLearner, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.learner = learner
        # Actions as the kernels give them: float32 rows.
        width = math.prod(self.policy.actions.shape)
        self._rows = torch.zeros((self.envs.num_envs, width), dtype=torch.float32, device="cpu")
        # log π of what was drawn
        self._chosen = torch.zeros(self._action.shape[:2], dtype=torch.float32, device="cpu")

        self._rollout: NativeRollout | None = None
        if isinstance(self.envs, NativeEnvs):
            self._rollout = self._prepare(self.envs)

    def _prepare(self, envs: NativeEnvs) -> NativeRollout:
        tensors = {"obs": self._obs, "params": self._params, "action": self._action, "log_prob": self._chosen}
        tensors |= {"terminated": self._terminated, "truncated": self._truncated, "valid": self._valid}
        tensors |= {} if self.policy.memory is None else {"start": self._start}
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()} | {"reward": self._reward}
        space, bounds = envs.action_space, None
        if isinstance(space, spaces.Box):
            bounds = (float(space.low[0]), float(space.high[0]))
        return NativeRollout(self.learner.net, envs.envs, arrays, bounds, self.episodes_per_env or 0)

    def collect(self, remaining: float = 1.0) -> Rollout:
        if self._rollout is None:
            return super().collect(remaining)
        with self.timer.phase("act"), own_modes(gradients=False):
            self._begin(self._obs.numpy())
            memory = None if self._memory is None else self._memory.clone()
            used = self._roll(self._rollout, memory)
            if self.reset_each_rollout:
                self._end_open_episodes(used, memory)
            rollout = self._finish(used, remaining)
        self._memory = memory
        return rollout

    def _roll(self, rollout: NativeRollout, memory: Tensor | None) -> int:
        envs, tracker, normalizer = self.envs, self.tracker, self.policy.normalizer
        assert isinstance(envs, NativeEnvs)
        noise = self.policy.actions.noise((self.length, envs.num_envs), self.generator)
        scaling = None if normalizer is None else (normalizer._shift, normalizer._scale)
        used = rollout.run(self.learner.theta, noise, scaling, tracker.ret, tracker.length, memory)
        if used < 0:
            envs.fault(*divmod(-1 - used, envs.num_envs), rollout.arrays)
        envs.envs.obs[...] = rollout.arrays["obs"][used]
        self._final = rollout.finals()
        self._final_memory = [] if memory is None else list(torch.from_numpy(rollout.final_memories()))
        tracker.finished += [Episode(env, ret, length) for env, ret, length in rollout.episodes()]
        if self.episodes_per_env is not None and not self._all_done(used):
            raise EnvError(past_limit(self.rollout_length))
        return used

    def _all_done(self, used: int) -> bool:
        ends = (self._terminated[:used] | self._truncated[:used]) & self._valid[:used]
        return bool((ends.sum(0) >= (self.episodes_per_env or 0)).all())

    def _act(self, t: int, own: slice, noise: Noise, memory: Tensor | None) -> None:
        inputs, rows = rows_of(self.policy, self.policy.normalize(self._obs[t, own])), self._rows[own]
        outputs = (self._params[t, own], rows, self._chosen[t, own])
        context = None if memory is None else (self._start[t, own], memory)
        self.learner.net.act(self.learner.theta, inputs, noise.rows, *outputs, context, memory)
        self._action[t, own].view(rows.shape).copy_(rows)

    def _log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return self._chosen[: len(action)].clone()

    def _value(self, inputs: Tensor, context: Context | None = None) -> Tensor:
        return self.learner.value(inputs, context)


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32, device="cpu")


def quantile(ordered: Array, q: float) -> float:
    """Linear between the two nearest of sorted values, as `torch.quantile`."""
    at = q * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (at - below) * (ordered[above] - ordered[below]))
