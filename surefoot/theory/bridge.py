"""Exact quantities in the library's own types: what its losses and updates do when nothing is sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from surefoot.theory.exact import advantage, state_value, visitation
from surefoot.types import Batch

if TYPE_CHECKING:
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.theory.mdp import MDP
    from surefoot.types import Array


def inputs_of(mdp: MDP, policy: ActorCritic) -> torch.Tensor:
    """What the network sees of each state, in its own precision: numbers of a Discrete space, else Φ. `[S, ...]`."""
    dtype = next(policy.parameters()).dtype
    if policy.layout.leaves[0].kind == "discrete":
        return policy.normalize(torch.arange(mdp.num_states)[:, None]).to(dtype)
    return torch.as_tensor(mdp.basis, dtype=dtype)


def table_of(mdp: MDP, policy: ActorCritic) -> Array:
    """π(a|s) of a network as a table, float64. `[S, A]`."""
    with torch.no_grad():
        params = policy.action_params(inputs_of(mdp, policy)).double()
    table: Array = torch.softmax(params, -1).numpy()
    return table


def set_table(policy: ActorCritic, parameters: Array) -> None:
    """Give a network without hidden layers the parameters θ `[D, A]` of a softmax policy."""
    head = policy.actor.head
    with torch.no_grad():
        head.weight.copy_(torch.as_tensor(np.ascontiguousarray(parameters.T)))
        head.bias.zero_()


def exact_batch(mdp: MDP, policy: ActorCritic, **changes: Any) -> Batch:
    """Every (state, action) as one sample of weight ρ(s)·π(a|s), with its exact advantage and value.

    A mean over it is the exact expectation under the policy, so that a loss has its exact gradient.
    """
    table = table_of(mdp, policy)
    inputs = inputs_of(mdp, policy)
    dtype = next(policy.parameters()).dtype
    states, actions = np.divmod(np.arange(mdp.num_states * mdp.num_actions), mdp.num_actions)
    kept = mdp.live[states]
    states, actions = states[kept], actions[kept]
    value = torch.as_tensor(state_value(mdp, table)[states], dtype=dtype)
    action = torch.as_tensor(actions)
    with torch.no_grad():
        params = policy.action_params(inputs)[torch.as_tensor(states)]
        log_prob = policy.actions.distribution(params).log_prob(action)
    weight = (visitation(mdp, table)[:, None] * table)[states, actions]
    parts: dict[str, Any] = {
        "obs": inputs[torch.as_tensor(states)],
        "action": action,
        "log_prob": log_prob,
        "dist_params": params,
        "advantage": torch.as_tensor(advantage(mdp, table)[states, actions], dtype=dtype),
        "value_target": value,
        "value": value,
        "weight": torch.as_tensor(weight, dtype=dtype),
    }
    return Batch(**parts | changes)
