"""The homework's own tests: the networks' shapes, and −0.2369, 0.0618 and 0.9314, with a word on what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from surefoot.course.exercises.trust import clip_loss
from surefoot.course.grading import Mistake, Wrong, as_tensor
from surefoot.text import one_line, print

EPSILON = 0.1  # the clip of the homework's PPO


@dataclass
class Trajectories:
    """What `get_loss` is given: 10 steps of 5 envs, drawn at random."""

    states: Tensor  # [T, N, 4]
    actions: Tensor  # [T, N]
    rewards: Tensor  # [T, N]
    not_dones: Tensor  # [T, N]
    log_probs: Tensor  # [T, N]
    returns: Tensor  # [T, N]


class Agent(nn.Module):
    """What the homework asks for: `policy`, from VPG on `value`, a name and a loss."""

    name: str = ""

    def get_loss(self, data: Trajectories) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class Sheet:
    """One algorithm of the homework. Functions of (log π, V, R, new log π) give the loss and its likely mistakes."""

    number: float
    shapes: tuple[int, int]  # observations and actions of the network test
    critic: bool
    mistakes: tuple[Mistake, ...]


def _ppo(lp: Tensor, v: Tensor, r: Tensor, new: Tensor) -> Tensor:
    return clip_loss(new, lp, r - v, EPSILON) + ((r - v) ** 2).mean()


NO_CRITIC = "the value loss is missing; add it to the policy loss"
SHEETS = {
    "REINFORCE": Sheet(
        -0.2369,
        (16, 4),
        False,
        (
            Mistake(
                "the minus is missing: an optimizer minimises, and R is to grow", lambda lp, v, r, new: (lp * r).mean()
            ),
            Mistake("it is a sum; divide by N·T, that is, take the mean", lambda lp, v, r, new: -(lp * r).sum()),
            Mistake("it sums over time; take the mean over both axes", lambda lp, v, r, new: -(lp * r).sum(0).mean()),
            Mistake(
                "it multiplies the means; take the mean of the products", lambda lp, v, r, new: -lp.mean() * r.mean()
            ),
        ),
    ),
    "VPG": Sheet(
        0.0618,
        (32, 6),
        True,
        (
            Mistake(NO_CRITIC, lambda lp, v, r, new: -(lp * (r - v)).mean()),
            Mistake("the policy loss is missing", lambda lp, v, r, new: ((r - v) ** 2).mean()),
            Mistake(
                "the policy loss still has the returns in it; weight by the advantage, R − V",
                lambda lp, v, r, new: ((r - v) ** 2).mean() - (lp * r).mean(),
            ),
            Mistake(
                "the policy loss has the wrong sign, or the advantage is V − R",
                lambda lp, v, r, new: ((r - v) ** 2).mean() + (lp * (r - v)).mean(),
            ),
        ),
    ),
    "PPO": Sheet(
        0.9314,
        (12, 7),
        True,
        (
            Mistake(
                "the ratio is taken of the stored log-probabilities with themselves, so it is 1; evaluate the current "
                "policy at the stored states and actions",
                lambda lp, v, r, new: ((r - v) ** 2).mean() - (r - v).mean(),
            ),
            Mistake(
                "nothing is clipped",
                lambda lp, v, r, new: ((r - v) ** 2).mean() - ((new - lp).exp() * (r - v)).mean(),
            ),
            Mistake(
                "it takes the maximum of the two terms; take the minimum",
                lambda lp, v, r, new: (
                    ((r - v) ** 2).mean()
                    - torch.maximum((new - lp).exp() * (r - v), (new - lp).exp().clamp(0.9, 1.1) * (r - v)).mean()
                ),
            ),
            Mistake(
                "only the clipped term is used; take the minimum with the unclipped one",
                lambda lp, v, r, new: ((r - v) ** 2).mean() - ((new - lp).exp().clamp(0.9, 1.1) * (r - v)).mean(),
            ),
            Mistake(
                "the ratio is upside down: the new policy belongs on top",
                lambda lp, v, r, new: _ppo(new, v, r, lp),
            ),
            Mistake(NO_CRITIC, lambda lp, v, r, new: clip_loss(new, lp, r - v, EPSILON)),
            Mistake(
                "ε is not 0.1, the default that the homework gives its loss",
                lambda lp, v, r, new: clip_loss(new, lp, r - v, 0.2) + ((r - v) ** 2).mean(),
            ),
        ),
    ),
}


def check_agent(kind: Callable[[int, int], Agent]) -> None:
    """Run the homework's tests on an `Agent` class: prints what is right, or raises `Wrong`."""
    with torch.random.fork_rng(devices=[]):
        agent = _made(kind, 4, 1)
        name = one_line(str(agent.name))
        if name not in SHEETS:
            raise Wrong(f"the agent's name is '{name}'; it must be one of {', '.join(SHEETS)}")
        sheet = SHEETS[name]
        _check_networks(name, _made(kind, *sheet.shapes), sheet)
        print(f"✓ {name}: the networks have the right shapes")
        _check_loss(name, agent, sheet)
        print(f"✓ {name}: the loss is {sheet.number}")


def _made(kind: Callable[[int, int], Agent], observations: int, actions: int) -> Agent:
    try:
        return kind(observations, actions)
    except NotImplementedError:
        raise Wrong("there is still a hole in the agent's __init__; write your networks there") from None
    except TypeError as error:
        raise Wrong(f"Agent(n_obs, n_actions) must work; it raises TypeError: {one_line(str(error))}") from error


def _check_networks(name: str, agent: Agent, sheet: Sheet) -> None:
    networks = dict(agent.named_children())
    observations, actions = sheet.shapes
    wanted = {"policy": actions} | ({"value": 1} if sheet.critic else {})
    for part, size in wanted.items():
        if part not in networks:
            raise Wrong(f"{name}: the agent has no network `self.{part}`")
        try:
            shape = tuple(networks[part](torch.zeros(8, observations)).shape)
        except RuntimeError as error:
            raise Wrong(
                f"{name}: `self.{part}` does not take {observations} observations: {one_line(str(error))}"
            ) from error
        if shape != (8, size):
            what = "a logit per action" if part == "policy" else "one value per state, with its axis kept"
            raise Wrong(f"{name}: `self.{part}` turns [8, {observations}] into {list(shape)}; [8, {size}] is {what}")
    last = list(networks["policy"].children())[-1:]
    if not last or not isinstance(last[0], nn.Linear):
        raise Wrong(
            f"{name}: the policy must end in a Linear layer: it returns logits, and Categorical does the softmax"
        )


def _check_loss(name: str, agent: Agent, sheet: Sheet) -> None:
    data = drawn(name)
    if sheet.critic:
        torch.manual_seed(0)
        agent.policy, agent.value = nn.Linear(4, 1), nn.Linear(4, 1)
    try:
        found = as_tensor(agent.get_loss(data)).detach()
    except NotImplementedError:
        raise Wrong(f"{name}: there is still a hole in get_loss; write your loss there") from None
    except Wrong as wrong:
        raise Wrong(f"{name}: get_loss: {wrong}") from None
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
        hint = "; V has the shape [T, N, 1] and R [T, N]: squeeze V" if "must match the size" in str(error) else ""
        raise Wrong(f"{name}: get_loss raises {type(error).__name__}: {one_line(str(error))}{hint}") from error
    if found.numel() != 1:
        raise Wrong(f"{name}: the loss has the shape {list(found.shape)}; it is one number: take the mean")
    if abs(float(found) - sheet.number) < 1e-4:
        return
    value = networks_value(agent, data)
    new = torch.zeros_like(data.log_probs)  # one action: its log-probability is 0
    for mistake in sheet.mistakes:
        if abs(float(as_tensor(mistake.made(data.log_probs, value, data.returns, new))) - float(found)) < 1e-4:
            raise Wrong(f"{name}: the loss is {float(found):.4f}, not {sheet.number}: {mistake.said}")
    raise Wrong(f"{name}: the loss is {float(found):.4f}, not {sheet.number}")


def networks_value(agent: Agent, data: Trajectories) -> Tensor:
    """V of every state, `[T, N]`; zeros without a critic."""
    value = dict(agent.named_children()).get("value")
    if value is None:
        return torch.zeros_like(data.returns)
    with torch.no_grad():
        found: Tensor = value(data.states).squeeze(-1)
    return found


def drawn(name: str) -> Trajectories:
    """The tensors of the homework's loss tests, drawn in their order."""
    torch.manual_seed(0)
    data = Trajectories(
        states=torch.rand(10, 5, 4),
        actions=torch.randint(0, 1, (10, 5)),
        rewards=torch.rand(10, 5),
        not_dones=torch.randint(0, 2, (10, 5)),
        log_probs=torch.rand(10, 5),
        returns=torch.rand(10, 5),
    )
    if name == "PPO":
        data.returns = 2 * data.returns - 1
    return data
