"""Chapter 6: generalised advantage estimation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from surefoot.course.grading import Exercise, Mistake
from surefoot.math.returns import gae, reverse_scan


def _errors() -> list[Mapping[str, object]]:
    drawn = torch.Generator("cpu").manual_seed(9)
    delta, done = torch.randn(5, 5, generator=drawn), torch.zeros(5, 5, dtype=torch.bool)
    done[1, 0] = done[2, 3] = True
    return [
        {"delta": delta, "done": done, "gamma": 0.9, "lambda_": 0.8},
        {"delta": delta, "done": done, "gamma": 0.99, "lambda_": 0.5},
    ]


def _forward(delta: Tensor, done: Tensor, gamma: float, lambda_: float) -> Tensor:
    return reverse_scan(delta.flip(0), gamma * lambda_ * (~done.flip(0)).to(delta.dtype)).flip(0)


EXERCISES = {
    "gae": Exercise(
        "the advantage of GAE(λ)",
        gae,
        _errors,
        (
            Mistake(
                "it runs on over the end of an episode: cut the sum where `done` is true",
                lambda d, e, g, k: gae(d, torch.zeros_like(e), g, k),
            ),
            Mistake("λ is missing: each step back multiplies by γλ", lambda d, e, g, k: gae(d, e, g, 1.0)),
            Mistake("γ is missing: each step back multiplies by γλ", lambda d, e, g, k: gae(d, e, 1.0, k)),
            Mistake("it runs forwards; an advantage looks at what comes later, so start at the last step", _forward),
            Mistake("it runs over the envs; time is the first axis", lambda d, e, g, k: gae(d.T, e.T, g, k).T),
            Mistake("it is δ alone, which is λ = 0", lambda d, e, g, k: d),
            Mistake(
                "it is normalised as (1−λ)·Σ; that is the average of returns, not the sum of δ",
                lambda d, e, g, k: (1.0 - k) * gae(d, e, g, k),
            ),
        ),
    ),
}
