"""Small policies and rollouts of random numbers, for whoever examines an algorithm."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces

from surefoot.engine.rollouts import fill_values
from surefoot.engine.torch.actor import TorchActor
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.types import Rollout

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (4,), np.float32)
SPACES = {"discrete": spaces.Discrete(3), "continuous": spaces.Box(-1.0, 1.0, (2,), np.float32)}


def small_policy(kind: str, *, critic: bool) -> ActorCritic:
    """A network for four numbers, with discrete or continuous actions."""
    made = torch.Generator("cpu").manual_seed(0)
    config = PolicyConfig(hidden_sizes=(16,))
    return ActorCritic(OBSERVATIONS, SPACES[kind], config, critic=critic, generator=made)


def random_rollout(policy: ActorCritic, *, steps: int = 16, num_envs: int = 4, seed: int = 0) -> Rollout:
    """Random observations and rewards, actions that the policy drew itself, no end of an episode."""
    drawn = torch.Generator("cpu").manual_seed(seed)
    obs = torch.randn((steps + 1, num_envs, 4), generator=drawn)
    with torch.no_grad():
        params = policy.action_params(policy.normalize(obs)[:-1])
        action = policy.actions.draw(params, policy.actions.noise((steps, num_envs), drawn))
        log_prob = policy.actions.distribution(params).log_prob(action)
    rollout = empty_rollout(torch.randn((steps, num_envs), generator=drawn))
    rollout.obs, rollout.inputs = obs, policy.normalize(obs)
    rollout.action, rollout.dist_params, rollout.log_prob = action, params, log_prob
    return fill_values(rollout, TorchActor(policy))


def empty_rollout(reward: torch.Tensor) -> Rollout:
    """A rollout of these rewards `[T, N]`, with two actions to choose from, V = 0 and no end of an episode."""
    steps, num_envs = reward.shape
    never = torch.zeros(steps, num_envs, dtype=torch.bool)
    zeros = torch.zeros(steps, num_envs)
    return Rollout(
        obs=torch.zeros(steps + 1, num_envs, 4),
        inputs=torch.zeros(steps + 1, num_envs, 4),
        action=torch.zeros(steps, num_envs, dtype=torch.int64),
        dist_params=torch.zeros(steps, num_envs, 2),
        log_prob=zeros.clone(),
        reward=reward,
        terminated=never,
        truncated=never.clone(),
        valid=~never,
        value=zeros.clone(),
        next_value=zeros.clone(),
        final_index=torch.zeros(0, dtype=torch.int64),
        final_inputs=torch.zeros(0, 4),
    )
