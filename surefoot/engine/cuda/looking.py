"""The trust-region instruments of one or several agents, by kernels and by sums whose order depends on one agent alone.

The readable twin is `engine.torch.instruments.look_at`. Every tensor has a row for each agent; the numbers of the loss
are where a recorded iteration finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from surefoot.engine.cuda.passes import NUMBERS, given
from surefoot.engine.cuda.statistics import explained_variances, means, standardized, totals
from surefoot.engine.torch.instruments import (
    QUANTILES,
    by_dimension,
    few_enough,
    from_gradients,
    from_sums,
    rows_to_look_at,
)
from surefoot.math.fixed import fixed
from surefoot.math.instruments import STILL
from surefoot.types import Outputs

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.cuda.whole_nets import WholeNets
    from surefoot.engine.losses import Loss
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.types import Batch, Metrics


@dataclass
class Gradients:
    """What an update keeps of its first pass: where it began, and its gradients. The actor's alone, `[agents, P]`."""

    start: Tensor
    total: Tensor  # the sum
    squares: Tensor  # `[agents]`: the sum of their squared norms
    count: int
    half: Tensor | None  # over one half of the batch, before the first step


def by_agent_of(loss: Loss, numbers: Tensor) -> Loss:
    """The loss with its numbers from a tensor `[agents, n]`: weights are `[agents]`, parameters `[agents, 1]`."""
    held = iter(numbers.unbind(-1))
    parameters = tuple(next(held)[:, None] for _ in loss.parameters)
    terms = {name: next(held) for name in NUMBERS if given(loss, name)}
    return replace(loss, parameters=parameters, **terms)  # type: ignore[arg-type] # tensors in place of numbers


def look_over(
    policy: ActorCritic, nets: WholeNets, loss: Loss, batch: Batch, agents: int, *, normalize: bool
) -> tuple[Tensor, Metrics]:
    """(KL(old‖new) `[agents, B]`, the instruments `[agents]` each), but for those of the gradients.

    `loss`: as `by_agent_of` gives it. `normalize`: it sees advantages that were standardised in each minibatch.
    """
    size, actions = len(batch) // agents, policy.actions
    rows = _in_rows(batch, agents)
    if normalize:
        rows.advantage = standardized(rows.advantage)
    params = _params(policy, nets, nets.outputs(rows.obs, size))
    old, new = actions.distribution(rows.dist_params), actions.distribution(params)
    value = nets.value(rows.obs, size)
    now = Outputs(new.log_prob(rows.action), new, rows.value if value is None else value)
    kl, ratio = old.kl_to(new), (now.log_prob - rows.log_prob).exp()
    before = Outputs(rows.log_prob, old, rows.value)
    metrics = _of_ratios(ratio, _sums(loss, before, now, kl, ratio, rows))
    if policy.has_critic:
        metrics["explained_variance_after"] = explained_variances(now.value, rows.value_target)
    return kl, metrics | _close(policy, nets, batch, rows.obs, params)


def _in_rows(batch: Batch, agents: int) -> Batch:
    def shaped(x: Tensor) -> Tensor:
        return x.reshape(agents, -1, *x.shape[1:])

    return replace(
        batch,
        obs=shaped(batch.obs),
        action=shaped(batch.action),
        log_prob=shaped(batch.log_prob),
        dist_params=shaped(batch.dist_params),
        advantage=shaped(batch.advantage),
        value_target=shaped(batch.value_target),
        value=shaped(batch.value),
    )


def _params(policy: ActorCritic, nets: WholeNets, outputs: Tensor) -> Tensor:
    """The distributions' parameters `[agents, B, A]`, from the outputs of the actors' last layers."""
    if not policy.actions.num_gaussian:
        return outputs
    own, at = nets.theta.view(len(outputs), -1), nets.actor.log_std
    return policy.actions.params_from(outputs, own[:, None, at : at + outputs.shape[-1]], None)


def _sums(loss: Loss, before: Outputs, now: Outputs, kl: Tensor, ratio: Tensor, rows: Batch) -> Metrics:
    """Σ over each agent's samples, named as in `instruments.SUMS` and `CLIPPED`."""
    assert loss.surrogate is not None
    size = ratio.shape[-1]

    def objective(outputs: Outputs) -> Tensor:
        assert loss.surrogate is not None
        gain = means(loss.surrogate.formula(outputs, rows, *loss.parameters))
        if isinstance(loss.entropy_coef, torch.Tensor):
            gain = gain + loss.entropy_coef * means(outputs.distribution.entropy())
        return gain

    sums = {
        "weight": torch.full_like(ratio[:, 0], size),
        "before": size * objective(before),
        "after": size * (objective(now) - loss.kl_coef * means(kl)),
        "ratio": totals(ratio),
        "ratio_squared": totals(ratio * ratio),
    }
    if loss.surrogate.clipped is not None:
        held = loss.surrogate.clipped(ratio, *loss.parameters)
        for name, sign in (("positive", 1.0), ("negative", -1.0)):
            own = sign * rows.advantage > 0.0
            sums[name] = own.sum(-1).to(ratio.dtype)  # counts are exact in any order
            sums[f"clipped_{name}"] = (own & held & (sign * (ratio - 1.0) > 0.0)).sum(-1).to(ratio.dtype)
    return sums


def _of_ratios(ratio: Tensor, sums: Metrics) -> Metrics:
    at = fixed(tuple(QUANTILES.values()), ratio.dtype, ratio.device)
    metrics = dict(zip(QUANTILES, torch.quantile(few_enough(ratio), at, -1).unbind(), strict=True))
    return metrics | {"ratio_max": ratio.amax(-1), **from_sums(sums)}


def _close(policy: ActorCritic, nets: WholeNets, batch: Batch, obs: Tensor, params: Tensor) -> Metrics:
    """What the sampled rows show: dead units, effective rank, and entropy and std of each dimension of the action."""
    from surefoot.kernels.fused_sums import layer_activities

    agents, size = obs.shape[:2]
    rows = rows_to_look_at(batch.obs.device, size, batch.num_envs // agents)
    found: Metrics = {}
    if policy.has_hidden:
        hidden = nets.hidden(obs.index_select(1, rows), len(rows))
        found["dead_units"], found["effective_rank"] = layer_activities(hidden, STILL)
    columns = policy.actions.distribution(params.index_select(1, rows)).dimensions()
    entropy, std = (_columns(x) for x in columns)
    return found | by_dimension(entropy, std)


def _columns(x: Tensor) -> Sequence[Tensor]:
    """The mean of each column of `[agents, n, columns]`, `[agents]` each."""
    return means(x.transpose(1, 2)).unbind(-1) if x.shape[-1] else []


def of_gradients(kept: Gradients, now: Tensor, samples: int) -> Metrics:
    """What the first pass's mean gradient promised for the actor's whole way, and how far its parts disagree."""
    total = kept.total
    square = totals(total * total)
    found = from_gradients(totals(total * (now - kept.start)), square, kept.squares, kept.count, float(samples))
    if kept.half is not None:  # the other half's gradient is 2g − h
        variance = 2.0 * totals((kept.half - total) ** 2)
        found["gradient_noise"], found["gradient_signal"] = 0.5 * samples * variance, square - 0.5 * variance
    return found
