"""Chapters 2 and 3: reward-to-go, REINFORCE, the critic."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from surefoot.course.grading import Exercise, Mistake
from surefoot.math.returns import reverse_scan, reward_to_go, td_error


def _rollouts() -> list[Mapping[str, object]]:
    drawn = torch.Generator("cpu").manual_seed(4)
    reward, late = torch.rand(5, 5, generator=drawn), torch.zeros(5, 5, dtype=torch.bool)
    done = late.clone()
    done[1, 0] = done[3, 2] = done[0, 4] = True
    late[4, 1] = True  # an episode that ends with the rollout
    return [{"reward": reward, "done": done, "gamma": 0.9}, {"reward": reward, "done": late, "gamma": 0.5}]


def _samples() -> list[Mapping[str, object]]:
    drawn = torch.Generator("cpu").manual_seed(5)
    return [{"log_prob": -torch.rand(7, generator=drawn), "returns": 3.0 * torch.rand(7, generator=drawn)}]


def _with_value() -> list[Mapping[str, object]]:
    drawn = torch.Generator("cpu").manual_seed(6)
    return [
        {
            "log_prob": -torch.rand(6, generator=drawn),
            "value": torch.rand(6, 1, generator=drawn),  # the shape that a network returns
            "returns": 3.0 * torch.rand(6, generator=drawn),
        }
    ]


def _steps() -> list[Mapping[str, object]]:
    drawn = torch.Generator("cpu").manual_seed(7)
    terminated, truncated = torch.zeros(4, 3, dtype=torch.bool), torch.zeros(4, 3, dtype=torch.bool)
    terminated[1, 0] = truncated[2, 1] = True
    numbers = {name: torch.rand(4, 3, generator=drawn) for name in ("reward", "value", "next_value")}
    return [{**numbers, "terminated": terminated, "truncated": truncated, "gamma": 0.9}]


def _shifted(reward: Tensor, done: Tensor, gamma: float) -> Tensor:
    """The flag of the step after instead of the step's own."""
    late = torch.cat([done[1:], torch.zeros_like(done[:1])])
    return reverse_scan(reward, gamma * (~late).to(reward.dtype))


def _vpg(log_prob: Tensor, value: Tensor, returns: Tensor, *, sign: float = 1.0) -> Tensor:
    error = returns - value.squeeze(-1)
    return -(log_prob * sign * error.detach()).mean() + (error**2).mean()


def _attached(log_prob: Tensor, value: Tensor, returns: Tensor) -> Tensor:
    error = returns - value.squeeze(-1)
    return -(log_prob * error).mean() + (error**2).mean()


def _broadcast(log_prob: Tensor, value: Tensor, returns: Tensor) -> Tensor:
    error = returns - value  # [B] − [B, 1] is [B, B]
    return -(log_prob * error.detach()).mean() + (error**2).mean()


def _broadcast_attached(log_prob: Tensor, value: Tensor, returns: Tensor) -> Tensor:
    error = returns - value
    return -(log_prob * error).mean() + (error**2).mean()


SQUARE = (
    "V has the shape [B, 1] and the returns [B], so their difference is a [B, B] table; squeeze the value's last axis"
)

EXERCISES = {
    "reward_to_go": Exercise(
        "the discounted reward from each step to the end of its episode",
        reward_to_go,
        _rollouts,
        (
            Mistake(
                "the sum runs on over the end of an episode; start again where `done` is true",
                lambda r, d, g: reverse_scan(r, torch.full_like(r, g)),
            ),
            Mistake(
                "the sum runs over the envs; time is the first axis",
                lambda r, d, g: reward_to_go(r.T, d.T, g).T,
            ),
            Mistake(
                "the flag is read one step too late: done[t] belongs to step t, and cuts off what follows it", _shifted
            ),
            Mistake(
                "the reward of an episode's last step is dropped; `done` cuts off the future, not the present",
                lambda r, d, g: reward_to_go(r * ~d, d, g),
            ),
            Mistake("it is not discounted", lambda r, d, g: reward_to_go(r, d, 1.0)),
        ),
    ),
    "reinforce_loss": Exercise(
        "REINFORCE's loss",
        lambda log_prob, returns: -(log_prob * returns).mean(),
        _samples,
        (
            Mistake(
                "the sign is wrong: an optimizer goes down, and the return is to go up",
                lambda lp, r: (lp * r).mean(),
            ),
            Mistake("it is a sum; take the mean over the samples", lambda lp, r: -(lp * r).sum()),
            Mistake(
                "no gradient reaches the policy: the log-probabilities are detached, so nothing is learned",
                lambda lp, r: -(lp.detach() * r).mean(),
            ),
            Mistake("the returns are missing: every action is reinforced alike", lambda lp, r: -lp.mean()),
            Mistake("it weights probabilities instead of their logarithms", lambda lp, r: -(lp.exp() * r).mean()),
        ),
        slopes=("log_prob",),
    ),
    "vpg_loss": Exercise(
        "the policy's loss with a baseline, plus the critic's",
        _vpg,
        _with_value,
        (
            Mistake(
                "the advantage is not detached, so the policy's loss pushes the critic as well; it is a constant there",
                _attached,
            ),
            Mistake(SQUARE, _broadcast),
            Mistake(SQUARE, _broadcast_attached),
            Mistake(
                "the policy's part has the wrong sign: it is −log π·A, and A is what happened minus what was expected",
                lambda lp, v, r: _vpg(lp, v, r, sign=-1.0),
            ),
            Mistake(
                "the critic's loss is missing; without it V never learns",
                lambda lp, v, r: -(lp * (r - v.squeeze(-1)).detach()).mean(),
            ),
            Mistake("the policy's loss is missing", lambda lp, v, r: ((r - v.squeeze(-1)) ** 2).mean()),
        ),
        slopes=("log_prob", "value"),
    ),
    "td_error": Exercise(
        "δ, with a future where only the clock has run out",
        lambda reward, value, next_value, terminated, truncated, gamma: td_error(
            reward, value, next_value, terminated, gamma
        ),
        _steps,
        (
            Mistake(
                "a truncated state loses its future: a time limit ends the episode, not the world, so bootstrap there",
                lambda r, v, n, e, c, g: td_error(r, v, n, e | c, g),
            ),
            Mistake(
                "a terminated state keeps a future: after it nothing comes, so V(s') counts 0 there",
                lambda r, v, n, e, c, g: r + g * n - v,
            ),
            Mistake("the next value is not discounted", lambda r, v, n, e, c, g: td_error(r, v, n, e, 1.0)),
            Mistake("V(s) is missing: this is the target, not the error", lambda r, v, n, e, c, g: r + g * n * ~e),
            Mistake("the sign is wrong: δ is the target minus V(s)", lambda r, v, n, e, c, g: v - r - g * n * ~e),
        ),
    ),
}
