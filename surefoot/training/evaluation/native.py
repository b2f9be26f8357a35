"""Evaluation in native envs: what Gymnasium's would show, with one call for all of them instead of one for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from surefoot.envs.native_envs import NativeEpisodes
    from surefoot.training.evaluation.agent import Agent


def play_native(
    agent: Agent,
    envs: NativeEpisodes,
    *,
    episodes: int,
    deterministic: bool,
    limit: int,
    abandon: Callable[[], None],
) -> tuple[list[float], list[int], int]:
    """(returns, lengths, episodes that were cut) of a fixed list of episodes, each played to its end.

    The envs take their episodes, and the policy sees them in the order, as with Gymnasium's: a policy's numbers may
    depend in their last bit on how many rows it is given at once.
    """
    returns, lengths, cut = np.zeros(episodes), np.zeros(episodes, np.int64), 0
    playing = np.arange(envs.num_envs)  # which episode each env is in
    active = np.ones(envs.num_envs, np.bool_)
    sent = np.zeros_like(envs.envs.action)
    fresh = agent.policy.initial_memory(envs.num_envs)
    memory = None if fresh is None else fresh.cpu().numpy().copy()
    for index in range(envs.num_envs):
        envs.begin(index, index)
    while active.any():
        abandon()
        seated = np.flatnonzero(active)
        action, after = agent.act(envs.envs.obs[seated], None if memory is None else memory[seated], deterministic)
        sent[seated] = agent.policy.actions.to_env(action)
        step = envs.step(sent, active)
        if memory is not None and after is not None:
            memory[seated] = after
        returns[playing[seated]] += step.reward[seated]
        lengths[playing[seated]] += 1
        over = step.terminated | step.truncated
        late = active & ~over & (lengths[playing] >= limit)
        cut += int(late.sum())
        for index in np.flatnonzero(over | late).tolist():
            playing[index] += envs.num_envs
            if playing[index] >= episodes:
                active[index], playing[index] = False, index
                continue
            envs.begin(index, playing[index])
            if memory is not None:
                memory[index] = 0.0
    return returns.tolist(), lengths.tolist(), cut
