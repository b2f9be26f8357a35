"""MDPs for experiments: random ones, a chain, a gridworld, and the cliff."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from surefoot.errors import UsageError
from surefoot.theory.mdp import MDP

if TYPE_CHECKING:
    from surefoot.types import Array

MOVES = {"up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)}


def random_mdp(
    rng: np.random.Generator,
    *,
    states: int = 6,
    actions: int = 3,
    gamma: float = 0.9,
    batch: tuple[int, ...] = (),
    branching: int | None = None,
    terminal: int = 0,
) -> MDP:
    """Garnet-like MDPs: `branching` successors (default: all) per (s, a), Dirichlet(1) probabilities, normal rewards.

    The last `terminal` states end an episode.
    """
    if states - terminal < 1 or actions < 1:
        raise UsageError(f"an MDP needs a state and an action; got {states - terminal} and {actions}")
    shape = (*batch, states, actions, states)
    odds = rng.exponential(size=shape)
    if branching is not None and branching < states:
        rank = rng.random(shape).argsort(-1).argsort(-1)
        odds = np.where(rank < branching, odds, 0.0)
    end = np.arange(states) >= states - terminal
    start = rng.exponential(size=(*batch, states)) * ~end
    return MDP(
        transition=odds / odds.sum(-1, keepdims=True),
        reward=rng.normal(size=shape),
        start=start / start.sum(-1, keepdims=True),
        gamma=gamma,
        terminal=end,
    )


def random_policy(rng: np.random.Generator, mdp: MDP, spread: float = 1.0) -> Array:
    """softmax of normal parameters; a large `spread` makes it nearly deterministic. `[..., S, A]`."""
    return mdp.policy(random_parameters(rng, mdp, spread))


def random_parameters(rng: np.random.Generator, mdp: MDP, spread: float = 1.0) -> Array:
    """Normal θ `[..., D, A]`."""
    batch = mdp.transition.shape[:-3]
    return spread * rng.normal(size=(*batch, mdp.basis.shape[1], mdp.num_actions))


def chain(length: int = 8, *, gamma: float = 0.9, slip: float = 0.1) -> MDP:
    """A walk of `length` cells: `right` at its end pays 1, `left` at its beginning pays 0.1 and is nearer.

    With probability `slip` a move goes the other way. Episodes do not end; a policy that is trained too fast settles
    for the small reward.
    """
    _at_least(length, 2, "length")
    cells = np.arange(length)
    transition = np.zeros((length, 2, length))
    for action, move in enumerate((-1, 1)):
        for probability, step in ((1.0 - slip, move), (slip, -move)):
            transition[cells, action, (cells + step).clip(0, length - 1)] += probability
    reward = np.zeros_like(transition)
    reward[0, 0, :] = 0.1
    reward[-1, 1, :] = 1.0
    return MDP(
        transition=transition,
        reward=reward,
        start=np.eye(length)[0],
        gamma=gamma,
        terminal=np.zeros(length, dtype=bool),
        actions=("left", "right"),
        grid=(1, length),
    )


def gridworld(size: int = 4, *, gamma: float = 0.9, slip: float = 0.1) -> MDP:
    """`size`×`size` cells from the top left to the goal at the bottom right (+1, the end), with a pit (−1, the end).

    The pit lies on the diagonal before the goal. With probability `slip` the move goes to one of the two sides.
    """
    _at_least(size, 3, "size")
    states = size * size
    goal, pit = states - 1, states - 2 - size
    transition = np.zeros((states, 4, states))
    moves = list(MOVES.values())
    for action in range(4):
        sides = ((0, 1.0 - slip), (1, slip / 2), (3, slip / 2))
        for turn, probability in sides:
            down, right = moves[(action + turn) % 4]
            for cell in range(states):
                row, column = divmod(cell, size)
                row, column = min(max(row + down, 0), size - 1), min(max(column + right, 0), size - 1)
                transition[cell, action, row * size + column] += probability
    reward = np.zeros_like(transition)
    reward[:, :, goal], reward[:, :, pit] = 1.0, -1.0
    return MDP(
        transition=transition,
        reward=reward,
        start=np.eye(states)[0],
        gamma=gamma,
        terminal=np.isin(np.arange(states), (goal, pit)),
        actions=tuple(MOVES),
        grid=(size, size),
    )


def cliff(width: int = 8, *, gamma: float = 0.95, depth: float = 10.0, blind: bool = True) -> MDP:
    """`width` cells up to an edge. `forward` moves one cell closer and pays more the closer; `back` goes to safety.

    One more step forward from the last cell is the fall: −`depth` and the end. A `blind` agent does not see its
    position, so one number, the probability of `forward`, decides everywhere, like the shared weights of a network: η
    rises with it to a maximum and then drops. For an agent that sees its position, no exact step can make η fall.
    """
    _at_least(width, 2, "width")
    states, gorge = width + 1, width
    cells = np.arange(width)
    transition, reward = np.zeros((states, 2, states)), np.zeros((states, 2, states))
    transition[cells, 0, 0] = 1.0
    transition[cells, 1, cells + 1] = 1.0
    reward[cells, 1, cells + 1] = (cells + 1.0) / width
    reward[width - 1, 1, gorge] = -depth
    return MDP(
        transition=transition,
        reward=reward,
        start=np.eye(states)[0],
        gamma=gamma,
        terminal=np.arange(states) == gorge,
        features=np.ones((states, 1)) if blind else None,
        actions=("back", "forward"),
        grid=(1, states),
    )


def ledge(*, gamma: float = 0.01, bonus: float = 0.0325) -> MDP:
    """A fork and a rarely visited ledge behind it, with coupled policies: an example where the mean KL misleads.

    `on` at the fork (taken with 0.3) pays `bonus` and leads to the ledge, where `on` (0.5) costs 1; then it ends. One
    number θ in [0, 1], in the parameters [[0, θ], [0, 1]], moves both: at θ = 1 they are 0.35 and 0.9. A mean over the
    visited states hardly sees how far the ledge's policy goes.
    """
    fork, edge, end = range(3)
    transition, reward = np.zeros((3, 2, 3)), np.zeros((3, 2, 3))
    transition[fork, 0, end] = transition[fork, 1, edge] = transition[edge, :, end] = 1.0
    reward[fork, 1, edge], reward[edge, 1, end] = bonus, -1.0
    old, new = (np.log(np.array(p) / (1.0 - np.array(p))) for p in ((0.3, 0.5), (0.35, 0.9)))
    return MDP(
        transition=transition,
        reward=reward,
        start=np.eye(3)[fork],
        gamma=gamma,
        terminal=np.arange(3) == end,
        features=np.vstack([np.stack([new - old, old], -1), np.zeros(2)]),
        actions=("off", "on"),
        grid=(1, 3),
    )


def _at_least(value: int, least: int, name: str) -> None:
    if value < least:
        raise UsageError(f"{name}={value} is too small; it must be at least {least}")
