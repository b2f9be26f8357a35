"""Finite MDPs, one or a whole batch of them, and softmax policies over features of the state.

Shapes: S states, A actions, D features; `...` are the axes of a batch of MDPs, none for a single one. Policies are
tables of probabilities `[..., S, A]`; their parameters are `[..., D, A]`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from surefoot.errors import UsageError

if TYPE_CHECKING:
    from surefoot.types import Array


@dataclass(frozen=True, kw_only=True, eq=False)
class MDP:
    """(S, A, P, r, μ, γ). In a terminal state nothing more happens: there are no rewards, and actions have no effect.

    `features` are the policy's view of each state. None: the state itself, so that a policy is a table.
    """

    transition: Array  # [..., S, A, S] P(s'|s, a); the rows of terminal states are ignored
    reward: Array  # [..., S, A, S] r(s, a, s')
    start: Array  # [..., S] μ(s)
    gamma: float
    terminal: Array  # [S] bool, the same for a whole batch
    features: Array | None = None  # [S, D]
    actions: tuple[str, ...] = ()  # names, for people
    grid: tuple[int, int] | None = None  # rows and columns, where the states are cells; for pictures

    def __post_init__(self) -> None:
        states, after = self.transition.shape[-3], self.transition.shape[-1]
        assert states == after, f"transition {self.transition.shape} is not [..., S, A, S]"
        assert self.reward.shape == self.transition.shape, f"reward {self.reward.shape}"
        assert self.start.shape[-1] == states, f"start {self.start.shape}"
        assert self.terminal.shape == (states,), f"terminal {self.terminal.shape}"
        assert self.features is None or self.features.shape[0] == states
        if not 0.0 <= self.gamma < 1.0:
            raise UsageError(f"gamma={self.gamma:g} must be in [0, 1): the bound divides by 1−γ")
        live = self.transition[..., ~self.terminal, :, :]
        if not (np.allclose(live.sum(-1), 1.0, atol=1e-9) and (live >= 0.0).all()):
            raise UsageError("transition: P(·|s, a) must be a distribution for every state that is not terminal")
        if not np.allclose(self.start.sum(-1), 1.0, atol=1e-9) or (self.start < 0.0).any():
            raise UsageError("start must be a distribution over the states")
        if self.start[..., self.terminal].any():
            raise UsageError("start: an episode cannot begin in a terminal state")

    @property
    def num_states(self) -> int:
        return int(self.transition.shape[-1])

    @property
    def num_actions(self) -> int:
        return int(self.transition.shape[-2])

    @property
    def live(self) -> Array:
        """`[S]` bool: states in which an action is chosen."""
        return ~self.terminal

    @property
    def basis(self) -> Array:
        """Φ `[S, D]`: the features, or the identity of a table."""
        return np.eye(self.num_states) if self.features is None else self.features

    @property
    def expected_reward(self) -> Array:
        """r(s, a) = Σ_s' P(s'|s, a)·r(s, a, s'), 0 in terminal states. `[..., S, A]`."""
        expected: Array = (self.transition * self.reward).sum(-1) * self.live[:, None]
        return expected

    @property
    def onward(self) -> Array:
        """P without the moves into and out of terminal states. `[..., S, A, S]`."""
        onward: Array = self.transition * self.live[:, None, None] * self.live
        return onward

    def __getitem__(self, index: int | slice | Array) -> MDP:
        """Some MDPs of a batch."""
        return replace(self, transition=self.transition[index], reward=self.reward[index], start=self.start[index])

    def with_gamma(self, gamma: float) -> MDP:
        return replace(self, gamma=gamma)

    def with_reward(self, reward: Array) -> MDP:
        return replace(self, reward=reward)

    def policy(self, parameters: Array) -> Array:
        """π(a|s) = softmax(φ(s)ᵀθ)_a, from θ `[..., D, A]`. `[..., S, A]`."""
        return softmax(self.basis @ parameters)

    def uniform(self) -> Array:
        """The uniform policy. `[..., S, A]`."""
        return np.full(self.transition.shape[:-1], 1.0 / self.num_actions)


def softmax(logits: Array) -> Array:
    """exp(x) / Σ exp(x) over the last axis."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities: Array = powers / powers.sum(-1, keepdims=True)
    return probabilities
