"""One look at the whole batch after an update: the trust-region instruments, in PyTorch.

Every update gives its KL. An update is measured in full, in the pass that the KL needs anyway, once in `PASSES` passes
over rollouts; so an algorithm of a single pass per update is measured less often than one of ten. Which updates are
measured depends on their number alone, so that a resumed run measures the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from surefoot.engine.losses import RATIO, Loss
from surefoot.engine.torch.natural import fisher_samples, spread
from surefoot.math.fixed import fixed
from surefoot.math.instruments import Value, gradient_noise, half_noise, layer_activity
from surefoot.math.statistics import explained_variance, standardize
from surefoot.types import Outputs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from surefoot.engine.losses import LossFunction
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.types import Batch, Metrics

PASSES = 30  # over rollouts, from one update that is measured to the next; collecting one counts as half a pass
SMALL = 256  # samples; an update on fewer is measured half as often, because part of the cost is fixed
HALVES_EVERY = 10  # measured updates, from one in which half of the batch gets a gradient of its own to the next
SAMPLE = 128  # samples whose hidden layer and action dimensions are looked at
MOST_DIMENSIONS = 32  # dimensions of an action that get columns of their own
CHUNK = 65_536  # samples per pass where no gradient is needed; a GPU takes more of them
SMALL_ROW = 256  # numbers of an observation of which a GPU takes more
MOST_QUANTILES = 1_000_000  # values that torch.quantile takes
QUANTILES = {"ratio_p5": 0.05, "ratio_p50": 0.5, "ratio_p95": 0.95}
SUMS = ("weight", "before", "after", "ratio", "ratio_squared")
CLIPPED = ("positive", "negative", "clipped_positive", "clipped_negative")


class Look:
    """What an update that is measured keeps until its end: where it began, and the gradients of its first pass.

    Parameters and gradients are the actor's alone: a critic's gradient is often a hundred times as large.
    """

    def __init__(self, loss: LossFunction, start: Tensor, minibatches: int, *, normalize: bool) -> None:
        """`normalize`: the loss sees advantages that were standardised in each minibatch."""
        self.loss = loss if isinstance(loss, Loss) else Loss(RATIO)
        self.start, self.minibatches, self.normalize = start, minibatches, normalize
        self.half: Tensor | None = None  # the gradient over one half of the batch, before the first step
        self.count = 0  # how many gradients these are
        self.total: Tensor | None = None  # their sum
        self.squares: Tensor | None = None  # Σ of their squared norms

    def add(self, gradient: Tensor) -> None:
        """The loss's gradient over one more minibatch, not yet clipped; those after the first pass do not count."""
        if self.count < self.minibatches:
            square = torch.dot(gradient, gradient)
            self.total = gradient.clone() if self.total is None else self.total.add_(gradient)
            self.squares = square if self.squares is None else self.squares + square
            self.count += 1

    def metrics(self, now: Tensor, samples: float) -> Metrics:
        """What the first pass's mean gradient promised for the actor's whole way, and how far its parts disagree."""
        if self.total is None or self.squares is None:
            return {}
        along, square = torch.dot(self.total, now - self.start), torch.dot(self.total, self.total)
        found = from_gradients(along, square, self.squares, self.count, samples)
        if self.half is not None:
            found["gradient_noise"], found["gradient_signal"] = half_noise(self.total, self.half, samples)
        return found


def from_gradients(along: Value, square: Value, squares: Value, count: int, samples: float) -> dict[str, Value]:
    """What `count` gradients over `samples` in all tell.

    `along`: their sum along the way of the parameters. `square`: the squared norm of their sum. `squares`: the sum of
    their squared norms.
    """
    found = {"predicted_gain": -along / count}
    if count > 1:
        noise = gradient_noise(squares / count, square / count**2, count, samples / count)
        found["gradient_noise"], found["gradient_signal"] = noise
    return found


def with_instruments(metrics: dict[str, float], looked: dict[str, float]) -> dict[str, float]:
    """The metrics and what they lack; an instrument that overflows is left out, and refuses no update."""
    return metrics | {name: x for name, x in looked.items() if name not in metrics and math.isfinite(x)}


def normalized(batch: Batch) -> Batch:
    """The batch with standardised advantages."""
    return replace(batch, advantage=standardize(batch.advantage, batch.weight))


def due(update: int, passes: int, samples: int) -> tuple[bool, bool]:
    """Whether the update of this number, of so many passes over so many samples, is measured, and whether by halves of
    its batch, too.
    """
    every = -(-2 * PASSES // (2 * passes + 1)) * (1 if samples >= SMALL else 2)
    return update % every == 0, update % (every * HALVES_EVERY) == 0


def rows_of_half(size: int, envs: int) -> NDArray[np.int64]:
    """The samples of `half_of`, without a memory."""
    return spread(size // envs, envs, max(1, round(0.5 * size)))


def half_of(batch: Batch) -> Batch:
    """Half of the samples, from all envs and all times alike; with a memory, of the envs."""
    return fisher_samples(batch, 0.5)


def sampled_rows(batch: Batch) -> NDArray[np.int64]:
    """At most `SAMPLE` of the batch's samples, from all envs and times alike, in order."""
    return spread(*_sampled(batch))


def _sampled(batch: Batch) -> tuple[int, int, int]:
    envs = batch.num_envs if batch.context is None else batch.context.num_envs
    return len(batch) // envs, envs, min(len(batch), SAMPLE)


@lru_cache(maxsize=8)
def _rows_on(device: torch.device, *sizes: int) -> Tensor:
    """`sampled_rows` on a device, copied there once."""
    with torch.inference_mode(False):
        return torch.from_numpy(spread(*sizes)).to(device)


def rows_to_look_at(device: torch.device, size: int, envs: int) -> Tensor:
    """`sampled_rows` of a batch of this size from so many envs, on a device."""
    return _rows_on(device, size // envs, envs, min(size, SAMPLE))


def kl_of(policy: ActorCritic, batch: Batch) -> Tensor:
    """KL(old‖new) of every sample, from the stored parameters of the old distribution."""
    actions = policy.actions
    with torch.no_grad():
        found = [
            actions.distribution(piece.dist_params).kl_to(
                actions.distribution(policy.action_params(piece.obs, piece.context))
            )
            for piece in pieces(batch)
        ]
    return found[0] if len(found) == 1 else torch.cat(found)


@dataclass(slots=True)
class Inspection:
    """What every sample says of the policy after an update, and what that adds up to."""

    kl: Tensor  # [B] KL(old‖new)
    ratio: Tensor  # [B] π_new(a|s) / π_old(a|s)
    value: Tensor  # [B] of the critic now
    sums: Metrics  # Σ over the valid samples of what `SUMS` and, where the surrogate clips, `CLIPPED` name


def inspect(policy: ActorCritic, loss: Loss, batch: Batch, *, normalize: bool = False) -> Inspection:
    """The readable twin of `kernels/src/inspect.hpp`: one pass over the batch, in pieces where it is large."""
    if normalize:
        batch = normalized(batch)
    with torch.no_grad():
        found = [_inspect(policy, loss, piece) for piece in pieces(batch)]
    if len(found) == 1:
        return found[0]
    return Inspection(
        kl=torch.cat([piece.kl for piece in found]),
        ratio=torch.cat([piece.ratio for piece in found]),
        value=torch.cat([piece.value for piece in found]),
        sums={name: torch.stack([piece.sums[name] for piece in found]).sum(0) for name in found[0].sums},
    )


def pieces(batch: Batch) -> Iterator[Batch]:
    """The batch in pieces that go through a policy at once; with a memory, in one."""
    small = batch.obs.device.type == "cuda" and batch.obs[0].numel() <= SMALL_ROW
    chunk = CHUNK * 16 if small else CHUNK
    if batch.context is not None or len(batch) <= chunk:
        yield batch
        return
    for begin in range(0, len(batch), chunk):
        own = slice(begin, begin + chunk)
        yield replace(
            batch,
            obs=batch.obs[own],
            action=batch.action[own],
            log_prob=batch.log_prob[own],
            dist_params=batch.dist_params[own],
            advantage=batch.advantage[own],
            value_target=batch.value_target[own],
            value=batch.value[own],
            weight=None if batch.weight is None else batch.weight[own],
            num_envs=1,
        )


def _inspect(policy: ActorCritic, loss: Loss, batch: Batch) -> Inspection:
    new = policy.evaluate(batch.obs, batch.action, batch.context)
    old = Outputs(batch.log_prob, policy.actions.distribution(batch.dist_params), batch.value)
    kl, ratio = old.distribution.kl_to(new.distribution), (new.log_prob - batch.log_prob).exp()
    valid = torch.ones_like(ratio) if batch.weight is None else (batch.weight > 0).to(ratio.dtype)
    weight = valid.sum()
    after = loss.objective(new, batch) - loss.kl_coef * batch.mean(kl)
    counted = ratio.where(valid > 0, 0.0)
    sums = {
        "weight": weight,
        "before": weight * loss.objective(old, batch),
        "after": weight * after,
        "ratio": counted.sum(),
        "ratio_squared": (counted * counted).sum(),
    }
    assert loss.surrogate is not None
    if loss.surrogate.clipped is not None:
        held = loss.surrogate.clipped(ratio, *loss.parameters)
        for name, sign in (("positive", 1.0), ("negative", -1.0)):
            own = (sign * batch.advantage > 0.0) & (valid > 0)
            sums[name] = own.sum().to(ratio.dtype)
            sums[f"clipped_{name}"] = (own & held & (sign * (ratio - 1.0) > 0.0)).sum().to(ratio.dtype)
    return Inspection(kl, ratio, new.value, sums)


def from_sums(sums: Mapping[str, Value]) -> dict[str, Value]:
    """Effective sample size, surrogate gain and clip fractions, from what an inspection added up."""
    weight = sums["weight"]
    found = {
        "effective_sample_size": sums["ratio"] * sums["ratio"] / _at_least(sums["ratio_squared"] * weight, 1e-30),
        "surrogate_gain": (sums["after"] - sums["before"]) / _at_least(weight, 1.0),
    }
    for sign in ("positive", "negative"):
        if sign in sums:
            found[f"clip_fraction_{sign}"] = sums[f"clipped_{sign}"] / _at_least(sums[sign], 1.0)
    return found


def _at_least(x: Value, least: float) -> Value:
    return x.clamp(min=least) if isinstance(x, Tensor) else max(x, least)


def few_enough(rows: Tensor) -> Tensor:
    """Evenly spaced numbers of rows `[..., B]`, no more than torch.quantile takes. They are an odd number apart, or
    they could all be of the same envs.
    """
    apart = 1 + rows.shape[-1] // MOST_QUANTILES
    return rows[..., :: apart | 1 if apart > 1 else 1]


def tail(kl: Tensor) -> Metrics:
    """The 95th percentile and the largest of each row `[..., B]`, unread."""
    return {"kl_p95": torch.quantile(few_enough(kl), 0.95, -1), "kl_max": kl.amax(-1)}


def batch_metrics(found: Inspection, batch: Batch, *, has_critic: bool) -> Metrics:
    """The instruments of an inspection, unread."""
    ratio = found.ratio if batch.weight is None else found.ratio[batch.weight > 0]
    at = fixed(tuple(QUANTILES.values()), ratio.dtype, ratio.device)
    metrics = dict(zip(QUANTILES, torch.quantile(few_enough(ratio), at).unbind(), strict=True))
    metrics |= {"ratio_max": ratio.max(), **from_sums(found.sums)}
    if has_critic:
        metrics["explained_variance_after"] = explained_variance(found.value, batch.value_target, batch.weight)
    return metrics


def close_metrics(policy: ActorCritic, hidden: Tensor, params: Tensor, weight: Tensor | None) -> Metrics:
    """What the sampled rows show: dead units, effective rank, and entropy and std of each dimension of the action."""
    found: Metrics = {}
    if policy.has_hidden:
        found["dead_units"], found["effective_rank"] = layer_activity(hidden, weight)
    share = None if weight is None else weight / weight.sum().clamp(min=1.0)
    entropy, std = policy.actions.distribution(params).dimensions()
    entropy, std = (columns.mean(0) if share is None else share @ columns for columns in (entropy, std))
    return found | by_dimension(entropy.unbind(), std.unbind())


def by_dimension(entropy: Sequence[Value], std: Sequence[Value]) -> dict[str, Value]:
    """Columns for each dimension of the action; the entropy of a single one is that of the whole."""
    found = {f"entropy/{i}": x for i, x in enumerate(entropy[:MOST_DIMENSIONS]) if len(entropy) > 1}
    return found | {f"std/{i}": x for i, x in enumerate(std[:MOST_DIMENSIONS])}


def look_at(policy: ActorCritic, look: Look, batch: Batch) -> tuple[Tensor, Metrics]:
    """(KL(old‖new) of every sample, the instruments, unread), but for those of the gradients."""
    found = inspect(policy, look.loss, batch, normalize=look.normalize)
    rows = _rows_on(batch.obs.device, *_sampled(batch))
    with torch.no_grad():
        if batch.context is None:
            hidden, params = policy.last_hidden(batch.obs.index_select(0, rows))
        else:
            hidden, params = (x.index_select(0, rows) for x in policy.last_hidden(batch.obs, batch.context))
        weight = None if batch.weight is None else batch.weight.index_select(0, rows)
        own = batch_metrics(found, batch, has_critic=policy.has_critic)
        return found.kl, own | close_metrics(policy, hidden, params, weight)


def max_ratio_error(outputs: Outputs | None, batch: Batch) -> Tensor:
    """max |π_new/π_old − 1|, which must be 0 before the first gradient step of an update; 0 without samples."""
    if outputs is None:
        return batch.log_prob.new_zeros(())
    error = ((outputs.log_prob.detach() - batch.log_prob).exp() - 1.0).abs()
    return (error if batch.weight is None else error * batch.weight).max()
