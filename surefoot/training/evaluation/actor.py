"""Acts with a policy during evaluation, greedily or stochastically, with a memory state per env."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from surefoot.envs.seeds import derive_seed
from surefoot.training.evaluation.agent import Agent
from surefoot.types import EpisodeEnvs

if TYPE_CHECKING:
    from surefoot.types import Actions, Array


class SeenEnvs(EpisodeEnvs, Protocol):
    """Envs whose observations are rows of the policy's layout."""

    @property
    def observations(self) -> Array: ...  # [N, ...]


class PolicyActor:
    """The agent with its own random generator, so that an evaluation is repeatable."""

    def __init__(self, agent: Agent, seed: int, deterministic: bool) -> None:
        self.agent, self.deterministic = Agent(agent.policy, derive_seed(seed, "eval actions")), deterministic
        self._memory: Array | None = None  # [N, M]; None before the first action

    def act(self, envs: SeenEnvs, rows: Array, begins: Array) -> Actions:
        memory = self._remembered(envs.num_envs, rows, begins)
        action, after = self.agent.act(envs.observations[rows], memory, self.deterministic, begins)
        if self._memory is not None and after is not None:
            self._memory[rows] = after
        return self.agent.policy.actions.to_env(action)

    def _remembered(self, count: int, rows: Array, begins: Array) -> Array | None:
        if self._memory is None:
            empty = self.agent.policy.initial_memory(count)
            if empty is None:
                return None
            self._memory = empty.cpu().numpy()
        self._memory[rows[begins]] = 0.0
        return self._memory[rows]
