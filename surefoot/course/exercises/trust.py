"""Chapters 4 and 5: divergences, the surrogate, the bound, the clip, the penalty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from surefoot.algorithms.ppo_penalty import adapted_kl_coef
from surefoot.course.grading import Exercise, Mistake
from surefoot.math.distributions import Categorical
from surefoot.theory import exact, worlds

if TYPE_CHECKING:
    from surefoot.theory.mdp import MDP
    from surefoot.types import Array


def _two_policies() -> list[Mapping[str, object]]:
    drawn = torch.Generator("cpu").manual_seed(8)
    return [{"old_logits": torch.randn(4, 3, generator=drawn), "logits": torch.randn(4, 3, generator=drawn)}]


def _worlds() -> list[Mapping[str, object]]:
    found: list[Mapping[str, object]] = []
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        mdp = worlds.random_mdp(rng, states=5, actions=3, gamma=0.9)
        found.append({"mdp": mdp, "old": worlds.random_policy(rng, mdp), "new": worlds.random_policy(rng, mdp)})
    return found


def _clips() -> list[Mapping[str, object]]:
    ratio = torch.tensor([0.5, 0.5, 0.95, 0.95, 1.05, 1.05, 1.6, 1.6])
    old = torch.tensor([-0.9, -0.3, -1.2, -0.7, -0.4, -1.1, -0.6, -0.8])
    advantage = torch.tensor([1.0, -1.3, 0.7, -0.4, 0.9, -1.1, 1.2, -0.8])
    return [
        {"log_prob": old + ratio.log(), "old_log_prob": old, "advantage": advantage, "clip_ratio": epsilon}
        for epsilon in (0.2, 0.1)
    ]


def clip_loss(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip_ratio: float) -> Tensor:
    """−E[min(r·A, clip(r)·A)]."""
    ratio = (log_prob - old_log_prob).exp()
    return -torch.minimum(ratio * advantage, _cut(ratio, clip_ratio) * advantage).mean()


def _cut(ratio: Tensor, clip_ratio: float) -> Tensor:
    return ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio)


def _max_loss(new: Tensor, old: Tensor, advantage: Tensor, clip_ratio: float) -> Tensor:
    ratio = (new - old).exp()
    return -torch.maximum(ratio * advantage, _cut(ratio, clip_ratio) * advantage).mean()


def _product_cut(new: Tensor, old: Tensor, advantage: Tensor, clip_ratio: float) -> Tensor:
    product = (new - old).exp() * advantage
    return -torch.minimum(product, _cut(product, clip_ratio)).mean()


def _coefs() -> list[Mapping[str, object]]:
    return [{"beta": 2.0, "kl": kl, "target": 0.01} for kl in (0.001, 0.0066, 0.0067, 0.01, 0.0149, 0.015, 0.1)]


def _swapped(beta: float, kl: float, target: float) -> float:
    return {2.0: 0.5, 0.5: 2.0}.get(adapted_kl_coef(1.0, kl, target), 1.0) * beta


def _without_band(beta: float, kl: float, target: float) -> float:
    return 2.0 * beta if kl >= target else beta / 2.0


def _gain(rho: Array, policy: Array, advantage: Array) -> Array:
    return exact.expected_gain(rho, policy, advantage)


def _no_return(mdp: MDP, old: Array, new: Array) -> Array:
    return _gain(exact.visitation(mdp, old), new, exact.advantage(mdp, old))


EXERCISES = {
    "kl": Exercise(
        "KL(old‖new) of each state",
        lambda old_logits, logits: Categorical(old_logits).kl_to(Categorical(logits)),
        _two_policies,
        (
            Mistake(
                "this is KL(new‖old): the expectation is over the old policy, which took the actions",
                lambda old, new: Categorical(new).kl_to(Categorical(old)),
            ),
            Mistake(
                "it averages over the actions; the probabilities are the weights already, so sum",
                lambda old, new: Categorical(old).kl_to(Categorical(new)) / old.shape[-1],
            ),
            Mistake(
                "the sign is wrong: a KL is never negative",
                lambda old, new: -Categorical(old).kl_to(Categorical(new)),
            ),
            Mistake(
                "the logits are not normalised; take log_softmax of both",
                lambda old, new: (torch.softmax(old, -1) * (old - new)).sum(-1),
            ),
            Mistake(
                "it is a mean over the states as well; one number per state was asked for",
                lambda old, new: Categorical(old).kl_to(Categorical(new)).mean(),
            ),
        ),
        slopes=("logits",),
    ),
    "surrogate": Exercise(
        "L: the new policy's actions in the old policy's states",
        exact.surrogate,
        _worlds,
        (
            Mistake(
                "the states are the new policy's, so this is η itself; L uses the visitation of the old policy, which "
                "is the one that was sampled",
                lambda m, old, new: exact.expected_return(m, new),
            ),
            Mistake("η(old) is missing: L is the old return plus the expected gain", _no_return),
            Mistake(
                "the actions are the old policy's, so the gain is 0; weight the advantages by the new policy",
                lambda m, old, new: exact.expected_return(m, old),
            ),
            Mistake(
                "the advantages are the new policy's; nobody knows those yet",
                lambda m, old, new: (
                    exact.expected_return(m, old) + _gain(exact.visitation(m, old), old, exact.advantage(m, new))
                ),
            ),
        ),
    ),
    "bound_constant": Exercise(
        "C = 4εγ/(1−γ)²",
        lambda epsilon, gamma: 4.0 * epsilon * gamma / (1.0 - gamma) ** 2,
        lambda: [{"epsilon": 2.0, "gamma": 0.9}, {"epsilon": 0.5, "gamma": 0.99}],
        (
            Mistake("1 − γ is squared in the formula", lambda e, g: 4.0 * e * g / (1.0 - g)),
            Mistake(
                "γ is missing in the numerator: at γ = 0 there is no error at all", lambda e, g: 4.0 * e / (1 - g) ** 2
            ),
            Mistake("the factor 4 is missing", lambda e, g: e * g / (1.0 - g) ** 2),
        ),
    ),
    "step_scale": Exercise(
        "how far along x the quadratic model of the KL reaches δ",
        lambda curvature, max_kl: (2.0 * max_kl / curvature) ** 0.5,
        lambda: [{"curvature": 3.0, "max_kl": 0.01}, {"curvature": 0.2, "max_kl": 0.05}],
        (
            Mistake("the root is missing: the KL grows with the square of the step", lambda c, d: 2.0 * d / c),
            Mistake("the 2 is missing: the model is ½·s²·xᵀFx", lambda c, d: (d / c) ** 0.5),
            Mistake("it is upside down: more curvature means a shorter step", lambda c, d: (c / (2.0 * d)) ** 0.5),
        ),
    ),
    "clip_loss": Exercise(
        "the clipped loss",
        clip_loss,
        _clips,
        (
            Mistake(
                "it takes the maximum: beyond the clip it still pays to go on, and the way back is closed; take the "
                "minimum",
                _max_loss,
            ),
            Mistake(
                "only the clipped term is used: a ratio that has strayed to the wrong side gets no gradient back; take "
                "the minimum with the unclipped one",
                lambda new, old, a, e: -(_cut((new - old).exp(), e) * a).mean(),
            ),
            Mistake("nothing is clipped", lambda new, old, a, e: -((new - old).exp() * a).mean()),
            Mistake(
                "the ratio is inverted: the new policy belongs on top", lambda new, old, a, e: clip_loss(old, new, a, e)
            ),
            Mistake(
                "the sign is wrong: the objective is to be maximised, and an optimizer goes down",
                lambda new, old, a, e: -clip_loss(new, old, a, e),
            ),
            Mistake(
                "it clips the product with the advantage; clip the ratio, then multiply",
                _product_cut,
            ),
            Mistake(
                "the clip is 1 ± ε around the ratio, not ε itself",
                lambda new, old, a, e: -torch.minimum((new - old).exp() * a, (new - old).exp().clamp(-e, e) * a).mean(),
            ),
            Mistake("it is a sum; take the mean", lambda new, old, a, e: clip_loss(new, old, a, e) * len(a)),
        ),
        slopes=("log_prob",),
    ),
    "next_beta": Exercise(
        "β for the next update",
        adapted_kl_coef,
        _coefs,
        (
            Mistake("it is the wrong way round: a KL that is too large needs a higher price", _swapped),
            Mistake("β never rests: it may only change if the KL leaves the band from δ/1.5 to 1.5δ", _without_band),
        ),
    ),
}
