"""A trained policy, ready to act, without environment or optimizer. Executes no code from the run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from surefoot.engine.torch.modes import own_modes
from surefoot.envs.masks import MaskReader, Source, has_method, method_of
from surefoot.errors import NOT_FINITE, NonFiniteError, UsageError
from surefoot.math.distributions import Bernoulli, Categorical, MultiCategorical
from surefoot.spaces.given import given_memory, given_rows, given_starts
from surefoot.spaces.masks import ActionMasks
from surefoot.spaces.plain import as_plain
from surefoot.text import one_line
from surefoot.types import Context

if TYPE_CHECKING:
    from collections.abc import Iterable

    from surefoot.policies.actor_critic import ActorCritic, Noise
    from surefoot.types import Array, GymEnv, GymSpace, Info


class Agent:
    """`predict` follows the calling convention users know: (observation, state, episode_start, deterministic)."""

    def __init__(self, policy: ActorCritic, seed: int = 0) -> None:
        self.policy = policy.eval()
        self.generator = torch.Generator("cpu").manual_seed(seed)
        self._masks = ActionMasks(policy.action_space)
        self._readers: dict[Source, MaskReader] = {}
        self._matrix: Tensor | None = None  # the gSDE exploration matrix in use
        self._held = 0  # steps for which it has been used

    def __repr__(self) -> str:
        policy = self.policy
        size = sum(parameter.numel() for parameter in policy.parameters())
        memory = "" if policy.memory is None else f", {policy.config.memory} memory"
        seen, done = short_space(policy.layout.space), short_space(policy.action_space)
        return f"Agent({seen} → {done}, {size:,} parameters{memory})"

    def predict(
        self,
        observation: object,
        state: Array | None = None,
        episode_start: object = None,
        deterministic: bool = True,
        action_masks: Iterable[object] | None = None,
    ) -> tuple[Any, Array | None]:
        """(action, state) for one observation or a batch of them; the action lies inside the action space.

        For a policy with memory, `state` is what the last call returned (None at the start of an episode), and
        `episode_start` marks rows whose episode begins. State-dependent exploration keeps its noise between calls if
        `episode_start` is given; otherwise every call draws new noise. `action_masks`: which actions are legal, if the
        policy was trained with masks and the observation does not contain them.
        """
        rows, single = self._rows(observation, action_masks)
        memory = self._memory(state, episode_start, len(rows))
        begins = None
        if self.policy.sde and episode_start is not None:
            begins = given_starts(episode_start, len(rows))
        action, memory = self.act(rows, memory, deterministic, begins)
        if memory is not None:
            memory = memory[0] if single else memory
        if not single:
            return self.policy.actions.to_vector_env(action), memory
        return self.policy.actions.to_each(action)[0], memory

    def see(self, env: GymEnv, obs: object, info: Info) -> Array:
        """An env's observation as a row of the policy's layout, including the mask if the policy uses one."""
        layout = self.policy.layout
        if not layout.mask_size:
            return layout.pack(obs)
        method: Source = "method" if has_method(env) else "info"
        source: Source = "observation" if layout.mask_in_obs else method
        if source not in self._readers:
            self._readers[source] = MaskReader(self.policy.action_space, source)
        return layout.pack(obs, self._readers[source].row(obs, info, method_of(env)))

    def act(
        self, rows: Array, memory: Array | None, deterministic: bool, begins: Array | None = None
    ) -> tuple[Array, Array | None]:
        """Raw actions and the new memory for rows of the policy's layout. `begins`: rows that start an episode."""
        policy = self.policy
        with own_modes(gradients=False), policy.uncompiled():
            inputs, before, start = self._inputs(rows, memory)
            if deterministic:
                params, after = self._params(inputs, before, start)
                action = policy.actions.distribution(params).mode()
            else:
                params, action, after = policy.act(inputs, self._noise(len(rows), begins), before, start)
            _require_finite(params)
            return action.cpu().numpy(), None if after is None else after.cpu().numpy()

    def value(
        self,
        observation: object,
        state: Array | None = None,
        episode_start: object = None,
        action_masks: Iterable[object] | None = None,
    ) -> float | Array:
        """V(s) of one observation (a float) or of a batch (an array): the return that the critic expects.

        It is on the scale that the critic learned: discounted, and scaled if the run scales or normalises rewards.
        The arguments are those of `predict`; `state` is the memory before the observation.
        """
        if not self.policy.has_critic:
            raise UsageError(
                "this policy has no critic, so there is no V(s); train with an algorithm that has one, such as ppo"
            )
        rows, single = self._rows(observation, action_masks)
        with own_modes(gradients=False), self.policy.uncompiled():
            inputs, before, start = self._inputs(rows, self._memory(state, episode_start, len(rows)))
            context = None if before is None or start is None else Context(start[None], before)
            value = self.policy.value(inputs, context)
            _require_finite(value)
        return float(value[0]) if single else value.cpu().numpy()

    def probabilities(
        self,
        observation: object,
        state: Array | None = None,
        episode_start: object = None,
        action_masks: Iterable[object] | None = None,
    ) -> Array | list[Array]:
        """π(a|s) of one observation or of a batch, `[..., choices]`; the arguments are those of `predict`.

        For `MultiDiscrete` a list with one such array for each variable, for `MultiBinary` the probability of each 1.
        """
        rows, single = self._rows(observation, action_masks)
        with own_modes(gradients=False), self.policy.uncompiled():
            params, _ = self._params(*self._inputs(rows, self._memory(state, episode_start, len(rows))))
            _require_finite(params)
            found = self._chances(params)
        if isinstance(found, list):
            return [chances[0] if single else chances for chances in found]
        return found[0] if single else found

    def _chances(self, params: Tensor) -> Array | list[Array]:
        distribution, space = self.policy.actions.distribution(params), self.policy.action_space
        if isinstance(distribution, Categorical):
            return distribution.log_probs.exp().cpu().numpy()
        if isinstance(distribution, MultiCategorical):
            tables = distribution.log_probs.exp().cpu().numpy()  # [n, K, largest size]
            return [tables[:, index, :size] for index, size in enumerate(distribution.sizes)]
        if isinstance(distribution, Bernoulli):
            return distribution.log_one.exp().reshape(len(params), *(space.shape or ())).cpu().numpy()
        raise UsageError(
            "probabilities are for Discrete, MultiDiscrete and MultiBinary actions, and these are "
            f"{short_space(space)}; predict(obs) gives the greedy action, predict(obs, deterministic=False) a drawn one"
        )

    def _inputs(self, rows: Array, memory: Array | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(the policy's inputs, its memory, where the memory is reset: nowhere)."""
        device = self.policy.device
        inputs = self.policy.normalize(torch.from_numpy(np.ascontiguousarray(rows)).to(device))
        if memory is None:
            return inputs, None, None
        start = torch.zeros(len(rows), dtype=torch.bool, device=device)
        return inputs, torch.from_numpy(memory).to(device), start

    def _params(self, inputs: Tensor, before: Tensor | None, start: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(parameters of π, the new memory)."""
        if before is None or start is None:
            return self.policy.action_params(inputs), None
        return self.policy.step(inputs, before, start)

    def _noise(self, count: int, begins: Array | None) -> Noise:
        noise, before = self.policy.noise(1, count, self.generator)[0], self._matrix
        if noise.matrix is None:
            return noise
        over = self._held == self.policy.config.sde_resample
        if begins is None or before is None or len(before) != count or over:
            self._matrix, self._held = noise.matrix, 1
        else:
            new = torch.tensor(begins, dtype=torch.bool, device=before.device)[:, None, None]
            self._matrix, self._held = torch.where(new, noise.matrix, before), self._held + 1
        return replace(noise, matrix=self._matrix)

    def _memory(self, state: Array | None, episode_start: object, count: int) -> Array | None:
        memory = self.policy.memory
        return None if memory is None else given_memory(state, episode_start, count, memory.size)

    def _rows(self, observation: object, masks: Iterable[object] | None) -> tuple[Array, bool]:
        return given_rows(self.policy.layout, self._masks, observation, masks)


def _require_finite(outputs: Tensor) -> None:
    if not bool(outputs.isfinite().all()):
        raise NonFiniteError(NOT_FINITE)


def short_space(space: GymSpace) -> str:
    """A space in a word or two, without its bounds."""
    return one_line(str(as_plain(space)))
