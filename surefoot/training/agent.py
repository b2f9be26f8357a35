"""A trained policy, ready to act: no environment, no optimizer, no code but ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from surefoot.errors import UsageError

if TYPE_CHECKING:
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.types import Array


class Agent:
    """`predict` follows the calling convention users know: (observation, state, episode_start, deterministic)."""

    def __init__(self, policy: ActorCritic, seed: int = 0) -> None:
        self.policy = policy.eval()
        self.generator = torch.Generator().manual_seed(seed)

    def predict(
        self,
        observation: Any,
        state: None = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[Array, None]:
        """(action, state) for one observation or a batch of them; the action lies inside the action space."""
        obs = np.array(observation)  # a copy: PyTorch takes neither read-only arrays nor negative strides
        shape = self.policy.obs_shape
        single = obs.shape == shape
        if not single and obs.shape[1:] != shape:
            raise UsageError(f"observation of shape {obs.shape}; the policy expects {shape} or a batch of it")
        batch = obs[None] if single else obs
        action = self.policy.actions.to_env(self._act(batch, deterministic).numpy())
        return (action[0] if single else action), None

    def _act(self, obs: Array, deterministic: bool) -> Tensor:
        actions = self.policy.actions
        device = next(self.policy.parameters()).device
        with torch.no_grad():
            params = self.policy.action_params(self.policy.normalize(torch.from_numpy(obs).to(device)))
            if deterministic:
                return actions.distribution(params).mode().cpu()
            noise = actions.noise((len(obs),), self.generator).to(device)
            return actions.draw(params, noise).cpu()
