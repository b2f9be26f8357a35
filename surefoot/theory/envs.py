"""The worlds as Gymnasium environments, so that the real trainer can be tested on MDPs with known values.

Registered as `surefoot/Chain-v0`, `surefoot/Grid-v0`, `surefoot/Cliff-v0` and `surefoot/Random-v0`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsInt

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from surefoot.envs.shipped_ids import register_shipped
from surefoot.theory import worlds
from surefoot.theory.mdp import MDP

if TYPE_CHECKING:
    from surefoot.types import Array, GymSpace, Info

register_shipped()

CELL = 32  # pixels
COLOURS = {"floor": (235, 235, 235), "good": (0, 158, 115), "bad": (213, 94, 0), "agent": (0, 114, 178)}


class MDPEnv(gym.Env[object, SupportsInt]):
    """A single MDP as an env. The observation is the state's number, or its features if the MDP has them.

    `mdp` is a public attribute, for comparing exact with sampled quantities.
    """

    def __init__(self, mdp: MDP, render_mode: str | None = None) -> None:
        assert mdp.transition.ndim == 3, "an environment is one MDP"
        self.mdp, self.render_mode = mdp, render_mode
        self.metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 5}
        features = mdp.features
        self.observation_space: GymSpace = (
            spaces.Discrete(mdp.num_states)
            if features is None
            else spaces.Box(min(0.0, features.min()), max(1.0, features.max()), features.shape[1:], np.float32)
        )
        self.action_space = spaces.Discrete(mdp.num_actions)
        self.state = 0
        self._start, self._moves = mdp.start.cumsum(), mdp.transition.cumsum(-1)

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[object, Info]:
        super().reset(seed=seed)
        self.state = self._draw(self._start)
        return self._observe(), {}

    def step(self, action: SupportsInt) -> tuple[object, float, bool, bool, Info]:
        before, choice = self.state, int(action)
        self.state = self._draw(self._moves[before, choice])
        reward = float(self.mdp.reward[before, choice, self.state])
        return self._observe(), reward, bool(self.mdp.terminal[self.state]), False, {}

    def _draw(self, cumulative: Array) -> int:
        return min(int(np.searchsorted(cumulative, self.np_random.random(), side="right")), len(cumulative) - 1)

    def _observe(self) -> object:
        if self.mdp.features is None:
            return self.state
        return self.mdp.features[self.state].astype(np.float32)

    def render(self) -> str | Array | None:
        if self.render_mode == "rgb_array":
            return self._picture()
        if self.render_mode == "ansi":
            return f"state {self.state} of {self.mdp.num_states}"
        return None

    def _picture(self) -> Array:
        """Cells, with terminal ones coloured by their reward, and the agent as a smaller square."""
        rows, columns = self.mdp.grid or (1, self.mdp.num_states)
        picture = np.zeros((rows * CELL, columns * CELL, 3), np.uint8)
        entering = self.mdp.reward.max((0, 1)) + self.mdp.reward.min((0, 1))
        for cell in range(self.mdp.num_states):
            top, left = CELL * (cell // columns), CELL * (cell % columns)
            kind = "floor" if not self.mdp.terminal[cell] else "good" if entering[cell] > 0.0 else "bad"
            picture[top + 1 : top + CELL - 1, left + 1 : left + CELL - 1] = COLOURS[kind]
            if cell == self.state:
                picture[top + 8 : top + CELL - 8, left + 8 : left + CELL - 8] = COLOURS["agent"]
        return picture


# The factories behind the ids. `gamma` is that of `mdp`; it does not affect the dynamics.
def chain(length: int = 8, slip: float = 0.1, gamma: float = 0.9, render_mode: str | None = None) -> MDPEnv:
    return MDPEnv(worlds.chain(length, slip=slip, gamma=gamma), render_mode)


def grid(size: int = 4, slip: float = 0.1, gamma: float = 0.9, render_mode: str | None = None) -> MDPEnv:
    return MDPEnv(worlds.gridworld(size, slip=slip, gamma=gamma), render_mode)


def cliff(
    width: int = 8, depth: float = 10.0, blind: bool = False, gamma: float = 0.95, render_mode: str | None = None
) -> MDPEnv:
    """The agent observes its position, unless `blind`."""
    return MDPEnv(worlds.cliff(width, depth=depth, blind=blind, gamma=gamma), render_mode)


def random(
    states: int = 6, actions: int = 3, mdp_seed: int = 0, gamma: float = 0.9, render_mode: str | None = None
) -> MDPEnv:
    """`mdp_seed` generates the MDP itself; the seed of a reset only affects what happens in it."""
    rng = np.random.default_rng(mdp_seed)
    return MDPEnv(worlds.random_mdp(rng, states=states, actions=actions, gamma=gamma), render_mode)
