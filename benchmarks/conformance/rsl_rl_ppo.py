"""The conformance adapter of rsl-rl-lib: PPO with its OnPolicyRunner, on envs that report time limits as `time_outs`.

surefoot conformance benchmarks/conformance/rsl_rl_ppo.py --python PEERS/rsl/bin/python
"""

import hashlib
from pathlib import Path

import numpy as np
import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

PACKAGES = ["rsl-rl-lib"]
NOTES = {
    "truncation": "OnPolicyRunner; the env reports time limits as extras['time_outs'], the documented way, and resets "
    "at once. A step that also reaches a terminal state is not reported as a time-out, which is what its "
    "documentation asks for",
    "autoreset": "its envs reset at once and insert no fake step; it takes none of Gymnasium's vector envs",
    "gae": "PPO.process_env_step and PPO.compute_returns, as returns − values",
    "kl": "it has no categorical policy",
    "first-ratio": "the first minibatch of the storage's generator against the actor's log-probability in update()",
    "resume": "runner.save, and runner.load into a new runner with new envs",
}
NUM_ENVS, LENGTH = 4, 16


class Envs(VecEnv):
    """Gymnasium envs side by side. Which of the discrete actions is taken follows from the Gaussian action's sign."""

    def __init__(self, make_env, seed, num_envs=NUM_ENVS):
        self.envs = [make_env() for _ in range(num_envs)]
        self.num_envs, self.num_actions, self.max_episode_length = num_envs, 1, 1000
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.device, self.cfg = "cpu", {}
        self.seen = [env.reset(seed=seed + index)[0] for index, env in enumerate(self.envs)]

    def get_observations(self):
        rows = torch.as_tensor(np.stack(self.seen))
        return TensorDict({"policy": rows}, batch_size=[self.num_envs])

    def step(self, actions):
        rewards, dones, time_outs = [], [], []
        for index, env in enumerate(self.envs):
            self.seen[index], reward, terminated, truncated, _ = env.step(int(actions[index, 0] > 0))
            rewards.append(reward)
            dones.append(terminated or truncated)
            time_outs.append(truncated and not terminated)
            if dones[-1]:
                self.seen[index], _ = env.reset()
        extras = {"time_outs": torch.tensor(time_outs)}
        return self.get_observations(), torch.tensor(rewards, dtype=torch.float32), torch.tensor(dones), extras


def new_runner(envs, length=LENGTH, **settings):
    network = {"class_name": "MLPModel", "hidden_dims": [64], "activation": "tanh"}
    config = {
        "num_steps_per_env": length,
        "save_interval": 10**9,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {**network, "distribution_cfg": {"class_name": "GaussianDistribution"}},
        "critic": network.copy(),
        "algorithm": {
            "class_name": "PPO", "num_learning_epochs": 10, "num_mini_batches": 1, "learning_rate": 1e-2,
            "schedule": "fixed", "use_clipped_value_loss": False, **settings,
        },
    }  # fmt: skip
    return OnPolicyRunner(envs, config, log_dir=None, device="cpu")


def values(make_env, states, *, steps, gamma, gae_lambda, seed):
    torch.manual_seed(seed)
    runner = new_runner(Envs(make_env, seed), gamma=gamma, lam=gae_lambda)
    runner.learn(steps // (NUM_ENVS * LENGTH))
    seen = TensorDict({"policy": torch.as_tensor(states, dtype=torch.float32)}, batch_size=[len(states)])
    with torch.no_grad():
        return runner.alg.critic(seen).flatten().tolist()


class Still:
    """An env that is never stepped."""

    def reset(self, *, seed=None):
        return np.zeros(1, np.float32), {}


def advantages(reward, value, next_value, terminated, truncated, *, gamma, gae_lambda):
    length, num_envs = reward.shape
    envs = Envs(Still, 0, num_envs)
    alg = new_runner(envs, length, gamma=gamma, lam=gae_lambda).alg
    rows = {name: torch.as_tensor(x, dtype=torch.float32) for name, x in (("reward", reward), ("value", value))}
    done, cut = torch.as_tensor(terminated | truncated), torch.as_tensor(truncated & ~terminated)
    for t in range(length):
        alg.act(envs.get_observations())
        alg.transition.values = rows["value"][t].unsqueeze(1)
        alg.process_env_step(envs.get_observations(), rows["reward"][t], done[t], {"time_outs": cut[t]})
    last = torch.as_tensor(next_value[-1], dtype=torch.float32).unsqueeze(1)
    alg.critic.forward = lambda *_, **__: last
    alg.compute_returns(envs.get_observations())
    return (alg.storage.returns - alg.storage.values).squeeze(-1)


def first_ratio(make_env, *, seed):
    torch.manual_seed(seed)
    runner = new_runner(Envs(make_env, seed))
    alg, found = runner.alg, []
    batches, log_prob = alg.storage.mini_batch_generator, alg.actor.get_output_log_prob

    def observed_batches(*arguments):
        for batch in batches(*arguments):
            alg.actor.get_output_log_prob = lambda actions, old=batch.old_actions_log_prob: observed(actions, old)
            yield batch

    def observed(actions, old):
        new = log_prob(actions)
        found.append((new.detach() - old.squeeze()).exp().sub(1.0).abs().max().item())
        return new

    alg.storage.mini_batch_generator = observed_batches
    runner.learn(1)
    return found[0]


def resume(make_env, folder, *, before, after, seed):
    def start(steps):
        torch.manual_seed(seed)
        runner = new_runner(Envs(make_env, seed))
        runner.learn(steps // (NUM_ENVS * LENGTH))
        return runner

    whole = start(before + after)
    file = str(Path(folder, "model.pt"))
    start(before).save(file)
    resumed = new_runner(Envs(make_env, seed))
    resumed.load(file)
    resumed.learn(after // (NUM_ENVS * LENGTH))
    return digest(whole), digest(resumed)


def digest(runner):
    weights = [*runner.alg.actor.parameters(), *runner.alg.critic.parameters()]
    return hashlib.sha256(b"".join(x.detach().numpy().tobytes() for x in weights)).hexdigest()
