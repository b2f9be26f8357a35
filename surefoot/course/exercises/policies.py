"""Chapter 1: probabilities, returns, ratios."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from surefoot.course.grading import Exercise, Mistake
from surefoot.math.distributions import Categorical


def _choices() -> list[Mapping[str, object]]:
    drawn = torch.Generator("cpu").manual_seed(1)
    return [
        {
            "logits": 2.0 * torch.randn(size, size, generator=drawn),
            "action": torch.randint(0, size, (size,), generator=drawn),
        }
        for size in (4, 3)  # square, so that a wrong axis still has the right shape
    ]


def _rewards() -> list[Mapping[str, object]]:
    drawn = torch.Generator("cpu").manual_seed(2)
    return [{"reward": torch.rand(5, generator=drawn), "gamma": 0.9}, {"reward": torch.ones(3), "gamma": 0.5}]


def _log_probs() -> list[Mapping[str, object]]:
    drawn = torch.Generator("cpu").manual_seed(3)
    return [{"log_prob": -torch.rand(6, generator=drawn), "old_log_prob": -torch.rand(6, generator=drawn) - 0.1}]


def _powers(reward: Tensor, gamma: float) -> Tensor:
    steps: Tensor = gamma ** torch.arange(len(reward))
    return steps


def _taken(table: Tensor, action: Tensor) -> Tensor:
    return table.gather(-1, action[:, None]).squeeze(-1)


EXERCISES = {
    "log_prob": Exercise(
        "log π(a|s) of the actions that were taken",
        lambda logits, action: Categorical(logits).log_prob(action),
        _choices,
        (
            Mistake("these are probabilities; take their logarithm", lambda z, a: _taken(torch.softmax(z, -1), a)),
            Mistake(
                "these are the logits themselves; a logit becomes a log-probability when log Σ exp is subtracted "
                "(log_softmax)",
                _taken,
            ),
            Mistake(
                "the softmax runs over the wrong axis: the probabilities of one state's actions (the last axis) must "
                "sum to 1",
                lambda z, a: _taken(torch.log_softmax(z, 0), a),
            ),
            Mistake(
                "it returns a row for every state; pick the entry of the action that was taken (gather)",
                lambda z, a: torch.log_softmax(z, -1),
            ),
        ),
        slopes=("logits",),
    ),
    "discounted_return": Exercise(
        "the discounted sum of rewards",
        lambda reward, gamma: (_powers(reward, gamma) * reward).sum(),
        _rewards,
        (
            Mistake("it is not discounted: the reward t steps later counts γ^t", lambda r, g: r.sum()),
            Mistake(
                "the first reward is discounted already; γ^0 is 1, so the sum starts with r_0 in full",
                lambda r, g: (g * _powers(r, g) * r).sum(),
            ),
            Mistake(
                "the powers of γ run backwards: it is the late rewards that count less",
                lambda r, g: (_powers(r, g).flip(0) * r).sum(),
            ),
            Mistake("it is a mean; the return is a sum", lambda r, g: (_powers(r, g) * r).mean()),
        ),
    ),
    "ratio": Exercise(
        "π_new / π_old, from logarithms",
        lambda log_prob, old_log_prob: (log_prob - old_log_prob).exp(),
        _log_probs,
        (
            Mistake(
                "it divides the logarithms; a quotient of probabilities is the exponential of a difference of "
                "logarithms",
                lambda new, old: new / old,
            ),
            Mistake("it is the inverse: the new policy belongs on top", lambda new, old: (old - new).exp()),
            Mistake("it is the logarithm of the ratio; take exp", lambda new, old: new - old),
        ),
        slopes=("log_prob",),
    ),
}
