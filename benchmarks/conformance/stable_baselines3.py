"""The conformance adapter of Stable-Baselines3: PPO as its documentation uses it, on envs that it wraps itself.

surefoot conformance benchmarks/conformance/stable_baselines3.py --python PEERS/sb3/bin/python
"""

import hashlib
from pathlib import Path

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import CategoricalDistribution, kl_divergence
from stable_baselines3.common.env_util import make_vec_env

PACKAGES = ["stable-baselines3"]
NOTES = {
    "truncation": "PPO on make_vec_env; nothing is set for time limits",
    "autoreset": "it has its own vector envs, which insert no fake step, and takes none of Gymnasium's",
    "gae": "RolloutBuffer.compute_returns_and_advantage; γ·V(final observation) is added to the reward of a "
    "truncated step, as collect_rollouts does",
    "kl": "common.distributions.kl_divergence(old, new); PPO itself logs an estimate from samples",
    "first-ratio": "the first evaluate_actions of train() against the minibatch's old_log_prob",
    "resume": "save, load with the env, learn(reset_num_timesteps=False)",
}
SMALL = {"device": "cpu", "n_steps": 16, "batch_size": 64, "n_epochs": 10}


def values(make_env, states, *, steps, gamma, gae_lambda, seed):
    envs = make_vec_env(make_env, 4, seed=seed)
    model = PPO("MlpPolicy", envs, seed=seed, gamma=gamma, gae_lambda=gae_lambda, learning_rate=1e-2, **SMALL)
    model.learn(steps)
    with torch.no_grad():
        return model.policy.predict_values(torch.as_tensor(states, dtype=torch.float32)).flatten().tolist()


def advantages(reward, value, next_value, terminated, truncated, *, gamma, gae_lambda):
    space = make_vec_env("CartPole-v1", 1).envs[0]
    steps, envs = reward.shape
    buffer = RolloutBuffer(steps, space.observation_space, space.action_space, "cpu", gae_lambda, gamma, envs)
    done = terminated | truncated
    starts = np.vstack([np.zeros((1, envs)), done[:-1]])
    paid = reward + gamma * next_value * (truncated & ~terminated)
    for t in range(steps):
        nothing = np.zeros((envs, 4)), np.zeros((envs, 1))
        buffer.add(*nothing, paid[t], starts[t], torch.as_tensor(value[t]), torch.zeros(envs))
    buffer.compute_returns_and_advantage(torch.as_tensor(next_value[-1]), done[-1])
    return buffer.advantages


def kl(old_logits, new_logits):
    old, new = (
        CategoricalDistribution(logits.shape[-1]).proba_distribution(torch.as_tensor(logits))
        for logits in (old_logits, new_logits)
    )
    return kl_divergence(old, new).mean().item()


def first_ratio(make_env, *, seed):
    model = PPO("MlpPolicy", make_vec_env(make_env, 4, seed=seed), seed=seed, **SMALL)
    stored, computed = [], []
    get, evaluate = model.rollout_buffer.get, model.policy.evaluate_actions

    def observed_get(batch_size):
        for batch in get(batch_size):
            stored.append(batch.old_log_prob)
            yield batch

    def observed_evaluate(observations, actions):
        found = evaluate(observations, actions)
        computed.append(found[1].detach())
        return found

    model.rollout_buffer.get, model.policy.evaluate_actions = observed_get, observed_evaluate
    model.learn(64)
    return (computed[0] - stored[0]).exp().sub(1.0).abs().max().item()


def resume(make_env, folder, *, before, after, seed):
    def new():
        return PPO("MlpPolicy", make_vec_env(make_env, 4, seed=seed), seed=seed, **SMALL)

    whole = new().learn(before + after)
    file = Path(folder, "model.zip")
    new().learn(before).save(file)
    resumed = PPO.load(file, make_vec_env(make_env, 4, seed=seed), device="cpu")
    resumed.learn(after, reset_num_timesteps=False)
    return digest(whole), digest(resumed)


def digest(model):
    return hashlib.sha256(b"".join(x.detach().numpy().tobytes() for x in model.policy.parameters())).hexdigest()
