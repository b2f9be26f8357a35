"""Small pieces that many tests build on: batches and outputs from numbers, policies on toy spaces, rollouts."""

import numpy as np
import torch
from gymnasium import spaces

from surefoot.algorithms.ppo_clip import Config as PPOConfig
from surefoot.algorithms.ppo_clip import PPOClip
from surefoot.engine.contract import CollectorOptions, LearnerOptions
from surefoot.engine.registry import get_engine
from surefoot.engine.rollouts import fill_values
from surefoot.engine.torch.actor import TorchActor
from surefoot.math.distributions import Categorical
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.types import Batch, Context, Outputs, Rollout

BOX4 = spaces.Box(-np.inf, np.inf, (4,), np.float32)
DISCRETE = spaces.Discrete(3)
CONTINUOUS = spaces.Box(-1.0, 1.0, (2,), np.float32)


def make_policy(action_space=DISCRETE, *, seed=0, critic=True, observation_space=BOX4, encoder_class=None, **config):
    torch.manual_seed(seed)
    config = PolicyConfig(**config)
    return ActorCritic(observation_space, action_space, config, critic=critic, encoder=encoder_class)


def make_batch(
    advantage, *, log_prob=None, value_target=None, value=None, dist_params=None, weight=None, remaining=1.0
):
    """A batch whose observations do not matter: losses are functions of what the policy says."""
    advantage = torch.as_tensor(advantage, dtype=torch.float32)
    zeros = torch.zeros_like(advantage)
    as_tensor = lambda x, default: default if x is None else torch.as_tensor(x, dtype=torch.float32)  # noqa: E731
    return Batch(
        obs=zeros[:, None],
        action=zeros.long(),
        log_prob=as_tensor(log_prob, zeros),
        dist_params=as_tensor(dist_params, torch.zeros(len(zeros), 2)),
        advantage=advantage,
        value_target=as_tensor(value_target, zeros),
        value=as_tensor(value, zeros),
        weight=None if weight is None else torch.as_tensor(weight, dtype=torch.float32),
        remaining=remaining,
    )


def make_outputs(log_prob, value=None, logits=None):
    log_prob = torch.as_tensor(log_prob, dtype=torch.float32)
    value = torch.zeros_like(log_prob) if value is None else torch.as_tensor(value, dtype=torch.float32)
    logits = torch.zeros(len(log_prob), 2) if logits is None else torch.as_tensor(logits, dtype=torch.float32)
    return Outputs(log_prob, Categorical(logits), value)


def make_rollout(policy, *, steps=6, num_envs=4, seed=0, done_probability=0.2, remaining=1.0):
    """Random observations, actions that the policy itself drew, random rewards and ends, values filled in."""
    generator = torch.Generator().manual_seed(seed)
    shape = (steps, num_envs)
    obs = torch.randn((steps + 1, num_envs, *policy.layout.shape), generator=generator)
    noise = policy.actions.noise(shape, generator)
    terminated = torch.rand(shape, generator=generator) < done_probability / 2
    truncated = torch.rand(shape, generator=generator) < done_probability / 2
    index = (truncated & ~terminated).flatten().nonzero().flatten()
    context = final_memory = None
    with torch.no_grad():
        inputs = policy.normalize(obs)
        if policy.memory is None:
            params = policy.action_params(inputs[:-1])
        else:
            start = torch.cat([torch.rand(1, num_envs, generator=generator) < 0.5, terminated | truncated])
            memory = torch.randn(num_envs, policy.memory.size, generator=generator)
            context, found, after = Context(start, memory), [], []
            for t in range(steps):
                step, memory = policy.step(inputs[t], memory, start[t])
                found.append(step)
                after.append(memory)
            params, final_memory = torch.stack(found), torch.cat(after)[index]
        action = policy.actions.draw(params, noise)
        log_prob = policy.actions.distribution(params).log_prob(action)
    rollout = Rollout(
        obs=obs,
        inputs=inputs,
        action=action,
        dist_params=params,
        log_prob=log_prob,
        reward=torch.randn(shape, generator=generator),
        terminated=terminated,
        truncated=truncated,
        valid=torch.ones(shape, dtype=torch.bool),
        value=torch.empty(0),
        next_value=torch.empty(0),
        final_index=index,
        final_inputs=torch.randn((len(index), *inputs.shape[2:]), generator=generator),
        remaining=remaining,
        context=context,
        final_memory=final_memory,
    )
    return fill_values(rollout, TorchActor(policy))


def make_learner(name, policy, algorithm=None, *, seed=0, threads=1):
    """Of the engine of this name. `algorithm`: PPO unless another is given."""
    algorithm = algorithm or PPOClip(PPOConfig())
    return get_engine(name).learner(policy, algorithm, LearnerOptions(torch.Generator().manual_seed(seed), threads))


def make_collector(envs, policy, length, *, seed=0, engine="torch", learner=None, **options):
    """What collects with this policy, or with a learner's actor."""
    actor = TorchActor(policy) if learner is None else learner.actor
    return get_engine(engine).collector(
        envs, actor, CollectorOptions(length, torch.Generator().manual_seed(seed), **options)
    )
