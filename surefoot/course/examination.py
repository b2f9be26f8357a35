"""Closed-form checks of a PPO: what its loss and its advantages must do, whatever the environment.

Each check answers None, or says what is wrong. They need no training and take milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from surefoot.algorithms import Algorithm
from surefoot.algorithms.parts import Base
from surefoot.course.grading import Wrong
from surefoot.course.samples import empty_rollout
from surefoot.errors import UsageError
from surefoot.math.distributions import Categorical
from surefoot.settings import options
from surefoot.text import print
from surefoot.types import Batch, Outputs

if TYPE_CHECKING:
    from surefoot.types import Rollout

GAMMA, EPSILON, CLOSE = 0.9, 0.2, 1e-4


def examine(kind: type[Algorithm]) -> None:
    """Print what is right with a PPO; at the first thing that is not, raise `Wrong`."""
    if not isinstance(kind, type) or not issubclass(kind, Base):
        raise UsageError("examine takes the class of an algorithm that derives from surefoot.algorithms.parts.Base")
    for line, look in CHECKS.items():
        found = look(kind)
        if found:
            raise Wrong(f"{kind.__name__}: {found}")
        print(f"✓ {kind.__name__}: {line}")


def made(kind: type[Algorithm], **wanted: object) -> Algorithm:
    """The algorithm with plain settings, as far as it has them."""
    known = {option.name for option in options(kind.config_type)}
    settings = {"gamma": GAMMA, "gae_lambda": 0.8, "clip_ratio": EPSILON, "normalize_advantage": "none", **wanted}
    return kind(kind.config_type(**{name: value for name, value in settings.items() if name in known}))


def _loss(kind: type[Algorithm], outputs: Outputs, advantage: Tensor, **wanted: object) -> Tensor:
    zeros = torch.zeros_like(advantage)
    batch = Batch(
        obs=zeros[:, None],
        action=zeros.long(),
        log_prob=zeros - 0.7,
        dist_params=torch.zeros(len(zeros), 2),
        advantage=advantage,
        value_target=zeros,
        value=zeros,
    )
    loss, _ = made(kind, **wanted).current_loss(1.0)(outputs, batch)
    return loss


def _pushes(kind: type[Algorithm], ratio: list[float], advantage: list[float]) -> list[float]:
    """How the loss pushes each sample's ratio: −B·∂loss/∂(log r), which is r·A without a clip."""
    log_prob = (torch.tensor(ratio).log() - 0.7).requires_grad_()
    outputs = Outputs(log_prob, Categorical(torch.zeros(len(ratio), 2)), torch.zeros(len(ratio)))
    loss = _loss(kind, outputs, torch.tensor(advantage))
    if not loss.requires_grad:
        return [0.0] * len(ratio)
    (slope,) = torch.autograd.grad(loss, log_prob, allow_unused=True)
    return [0.0] * len(ratio) if slope is None else (-len(ratio) * slope).tolist()


def _near(found: list[float], expected: list[float]) -> bool:
    return all(abs(a - b) < CLOSE for a, b in zip(found, expected, strict=True))


def _starts_as_the_policy_gradient(kind: type[Algorithm]) -> str | None:
    found = _pushes(kind, [1.0, 1.0], [2.0, -1.0])
    if _near(found, [2.0, -1.0]):
        return None
    if _near(found, [-2.0, 1.0]):
        return "it makes good actions less likely: the loss has the wrong sign, or the ratio is upside down"
    if _near(found, [0.0, 0.0]):
        return "no gradient reaches the policy: the log-probabilities in the loss are detached"
    return f"at the old policy, advantages of 2 and −1 push with {found[0]:.3g} and {found[1]:.3g} instead"


def _follows_the_ratio(kind: type[Algorithm]) -> str | None:
    found = _pushes(kind, [1.1, 0.9], [1.0, 1.0])
    if _near(found, [1.1, 0.9]):
        return None
    if _near(found, [1.0, 1.0]):
        return (
            "its ratio is always 1: the old log-probabilities are taken from the current policy instead of the "
            "rollout, so nothing is ever clipped"
        )
    return f"ratios of 1.1 and 0.9 push with {found[0]:.3g} and {found[1]:.3g} instead of 1.1 and 0.9"


def _clips_where_it_pays(kind: type[Algorithm]) -> str | None:
    beyond, back = _pushes(kind, [1.6, 0.5], [1.0, -1.0]), _pushes(kind, [1.6, 0.5], [-1.0, 1.0])
    still, returns = not _near(beyond, [0.0, 0.0]), _near(back, [-1.6, 0.5])
    if not still and returns:
        return None
    if still and _near(back, [0.0, 0.0]):
        return (
            "it takes the maximum of the clipped and the unclipped term: a ratio beyond the clip is pushed on, and one "
            "that strayed the wrong way is not brought back"
        )
    if still:
        return "a ratio beyond 1±ε is pushed on although nothing is left to gain: it is not clipped"
    return "a ratio that strayed the wrong way gets no gradient back: take the minimum with the unclipped term"


def _advantages(kind: type[Algorithm], rollout: Rollout) -> list[float]:
    found: list[float] = made(kind).estimate(rollout).advantage.tolist()
    return found


def _sees_beyond_the_clock(kind: type[Algorithm]) -> str | None:
    """A reward of 1 forever is worth 1/(1−γ); a perfect critic is never surprised, whatever the clock does."""
    rollout = empty_rollout(torch.ones(3, 1))
    rollout.value.fill_(1.0 / (1.0 - GAMMA))
    rollout.next_value.fill_(1.0 / (1.0 - GAMMA))
    rollout.truncated[1, 0] = True
    if _near(_advantages(kind, rollout), [0.0, 0.0, 0.0]):
        return None
    return (
        "a time limit counts as the end of the world: V(s') is dropped where an episode was only truncated, so a "
        "constant reward is not worth 1/(1−γ)"
    )


def _ends_where_the_world_ends(kind: type[Algorithm]) -> str | None:
    rollout = empty_rollout(torch.ones(1, 1))
    rollout.next_value.fill_(100.0)
    rollout.terminated.fill_(True)
    found = _advantages(kind, rollout)
    return None if _near(found, [1.0]) else "a terminated state keeps a future: V(s') must count 0 there"


def _does_not_look_into_the_next_episode(kind: type[Algorithm]) -> str | None:
    for end in ("terminated", "truncated"):
        found = []
        for later in (0.0, 5.0):
            rollout = empty_rollout(torch.tensor([[1.0], [1.0], [later]]))
            (rollout.terminated if end == "terminated" else rollout.truncated)[1, 0] = True
            found.append(_advantages(kind, rollout)[:2])
        if not _near(*found):
            return f"rewards leak back over the end of an episode: GAE is not cut where an episode was {end}"
    return None


def _leaves_the_critic_to_its_own_loss(kind: type[Algorithm]) -> str | None:
    value = torch.tensor([1.0, -2.0], requires_grad=True)
    outputs = Outputs(torch.zeros(2) - 0.7, Categorical(torch.zeros(2, 2)), value)
    loss = _loss(kind, outputs, torch.tensor([3.0, -1.0]), value_coef=1.0, value_loss="mse", entropy_coef=0.0)
    if not loss.requires_grad:
        return "no gradient reaches the critic: its loss is missing"
    (slope,) = torch.autograd.grad(loss, value, allow_unused=True)
    if slope is None:
        return "no gradient reaches the critic: its loss is missing"
    return None if _near(slope.tolist(), [1.0, -2.0]) else "the critic's gradient is not that of E[(V − target)²]"


def _rewards_entropy(kind: type[Algorithm]) -> str | None:
    losses = []
    for logits in ([0.0, 0.0], [3.0, 0.0]):
        outputs = Outputs(torch.zeros(1) - 0.7, Categorical(torch.tensor([logits])), torch.zeros(1))
        losses.append(float(_loss(kind, outputs, torch.ones(1), entropy_coef=0.1).detach()))
    if losses[0] < losses[1]:
        return None
    if losses[0] == losses[1]:
        return "there is no entropy bonus: entropy_coef has no effect on the loss"
    return "the entropy bonus has the wrong sign: a policy that explores is punished, so it stops exploring"


CHECKS: dict[str, Callable[[type[Algorithm]], str | None]] = {
    "at the old policy its gradient is the policy gradient": _starts_as_the_policy_gradient,
    "its ratio follows the policy": _follows_the_ratio,
    "it clips where it pays, and nowhere else": _clips_where_it_pays,
    "a constant reward is worth 1/(1−γ) in spite of a time limit": _sees_beyond_the_clock,
    "nothing follows a terminated state": _ends_where_the_world_ends,
    "no reward leaks over the end of an episode": _does_not_look_into_the_next_episode,
    "the critic learns from its own loss": _leaves_the_critic_to_its_own_loss,
    "entropy is rewarded": _rewards_entropy,
}
