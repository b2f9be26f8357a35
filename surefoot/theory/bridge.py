"""Exact quantities in the library's own types, to test its losses and updates without sampling."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from gymnasium import spaces

from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.theory.exact import advantage, state_value, visitation
from surefoot.types import Batch

if TYPE_CHECKING:
    from surefoot.theory.mdp import MDP
    from surefoot.types import Array


def with_bias(mdp: MDP) -> MDP:
    """The MDP with an added last feature of ones, which plays the role of a linear layer's bias."""
    return replace(mdp, features=np.hstack([mdp.basis, np.ones((mdp.num_states, 1))]))


def linear_policy(mdp: MDP, parameters: Array, *, critic: bool = True) -> ActorCritic:
    """The library's network without hidden layers, in float64, for an MDP `with_bias`: π = softmax(Φθ)."""
    low, high = float(mdp.basis[:, :-1].min()), float(mdp.basis[:, :-1].max())
    box = spaces.Box(low, high, (mdp.basis.shape[1] - 1,), np.float64)
    config = PolicyConfig(hidden_sizes=())
    made = torch.Generator("cpu").manual_seed(0)  # for the critic's weights, if there is one
    policy = ActorCritic(box, spaces.Discrete(mdp.num_actions), config, critic=critic, generator=made).double()
    set_parameters(policy, parameters)
    return policy


def set_parameters(policy: ActorCritic, parameters: Array) -> None:
    """Copy θ `[D, A]`, with the bias in its last row, into a network without hidden layers."""
    head, theta = policy.actor.head, torch.from_numpy(np.ascontiguousarray(parameters.T))
    with torch.no_grad():
        head.weight.copy_(theta[:, :-1])
        head.bias.copy_(theta[:, -1])


def parameters_of(policy: ActorCritic) -> Array:
    """θ `[D, A]` of a network without hidden layers, float64."""
    head = policy.actor.head
    joined: Array = torch.cat([head.weight, head.bias[:, None]], 1).detach().double().numpy().T.copy()
    return joined


def inputs_of(mdp: MDP, policy: ActorCritic) -> torch.Tensor:
    """The network's input for each state: its number in a Discrete space, else its features. `[S, ...]`."""
    if policy.layout.leaves[0].kind == "discrete":
        return policy.normalize(torch.arange(mdp.num_states, dtype=torch.int64, device="cpu")[:, None])
    features = mdp.basis[:, : policy.layout.numbers]
    return torch.as_tensor(features, dtype=next(policy.parameters()).dtype, device="cpu")


def table_of(mdp: MDP, policy: ActorCritic) -> Array:
    """π(a|s) of any network over a Discrete action space as a table, float64. `[S, A]`."""
    with torch.no_grad():
        params = policy.action_params(inputs_of(mdp, policy)).double()
    table: Array = torch.softmax(params, -1).numpy()
    return table


def exact_batch(mdp: MDP, policy: ActorCritic) -> Batch:
    """Every (state, action) as one sample of weight ρ(s)·π(a|s), with its exact advantage and value.

    A mean over it is the exact expectation under the policy, so a loss has its exact gradient.
    """
    table, inputs = table_of(mdp, policy), inputs_of(mdp, policy)
    dtype = next(policy.parameters()).dtype
    states, actions = (index.ravel() for index in np.indices(table.shape))
    kept = mdp.live[states]
    states, actions = states[kept], actions[kept]
    rows, action = (torch.as_tensor(x, dtype=torch.int64, device="cpu") for x in (states, actions))
    with torch.no_grad():
        params = policy.action_params(inputs)[rows]
        log_prob = policy.actions.distribution(params).log_prob(action)

    def tensor(x: object) -> torch.Tensor:
        return torch.as_tensor(x, dtype=dtype, device="cpu")

    value = tensor(state_value(mdp, table)[states])
    return Batch(
        obs=inputs[rows],
        action=action,
        log_prob=log_prob,
        dist_params=params,
        advantage=tensor(advantage(mdp, table)[states, actions]),
        value_target=value,
        value=value,
        weight=tensor((visitation(mdp, table)[:, None] * table)[states, actions]),
    )
