"""The conformance adapter of skrl: PPO with the sequential trainer and `time_limit_bootstrap=True`.

surefoot conformance benchmarks/conformance/skrl_ppo.py --python PEERS/skrl/bin/python
"""

import hashlib
import tempfile
from pathlib import Path

import torch
from skrl.agents.torch.ppo import PPO
from skrl.agents.torch.ppo.ppo import compute_gae
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed

PACKAGES = ["skrl"]
NOTES = {
    "truncation": "PPO with time_limit_bootstrap=True (the default is False) on a single env",
    "autoreset": "PPO with time_limit_bootstrap=True on wrap_env(the vector env)",
    "gae": "compute_gae with time_limit_bootstrap=True, as returns − values, because its advantages are normalised; "
    "γ·V(final observation) is added to the reward of a truncated step, as PPO.record_transition does",
    "kl": "PPO estimates it from samples inside of update(), where an adapter cannot call it",
    "first-ratio": "the first minibatch that memory.sample gives to update() against policy.act of its actions",
    "resume": "agent.save, and agent.load into a new agent with a new env",
}
ROLLOUT = 64  # steps of all envs together


class Policy(CategoricalMixin, Model):
    def __init__(self, env):
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device="cpu")
        CategoricalMixin.__init__(self)
        self.net = network(self.num_observations, self.num_actions)

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {}


class Value(DeterministicMixin, Model):
    def __init__(self, env):
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device="cpu")
        DeterministicMixin.__init__(self)
        self.net = network(self.num_observations, 1)

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {}


def network(inputs, outputs):
    return torch.nn.Sequential(torch.nn.Linear(inputs, 64), torch.nn.Tanh(), torch.nn.Linear(64, outputs))


def new_agent(env, **settings):
    length = ROLLOUT // env.num_envs
    experiment = {"directory": tempfile.gettempdir(), "write_interval": 0, "checkpoint_interval": 0}
    cfg = {
        "rollouts": length, "learning_epochs": 10, "mini_batches": 1, "learning_rate": 1e-2, "value_clip": 0.0,
        "time_limit_bootstrap": True, "experiment": experiment, **settings,
    }  # fmt: skip
    return PPO(
        models={"policy": Policy(env), "value": Value(env)},
        memory=RandomMemory(memory_size=length, num_envs=env.num_envs, device="cpu"),
        observation_space=env.observation_space,
        action_space=env.action_space,
        device="cpu",
        cfg=cfg,
    )


def train(agent, env, steps):
    cfg = {
        "timesteps": steps // env.num_envs, "headless": True, "disable_progressbar": True,
        "close_environment_at_exit": False,
    }  # fmt: skip
    SequentialTrainer(env=env, agents=agent, cfg=cfg).train()
    return agent


def values(make_env, states, *, steps, gamma, gae_lambda, seed):
    set_seed(seed)
    env = wrap_env(make_env(), wrapper="gymnasium")
    agent = train(new_agent(env, discount_factor=gamma, gae_lambda=gae_lambda), env, steps)
    with torch.no_grad():
        return agent.value.net(torch.as_tensor(states, dtype=torch.float32)).flatten().tolist()


def vector_values(make_envs, states, **options):
    return values(make_envs, states, **options)


def advantages(reward, value, next_value, terminated, truncated, *, gamma, gae_lambda):
    paid = reward + gamma * next_value * truncated
    names = {"rewards": paid, "values": value, "terminated": terminated, "truncated": truncated}
    returns, _ = compute_gae(
        **{name: torch.as_tensor(array) for name, array in names.items()},
        last_values=torch.as_tensor(next_value[-1]),
        discount_factor=gamma,
        lambda_coefficient=gae_lambda,
        time_limit_bootstrap=True,
    )
    return returns - torch.as_tensor(value)


def first_ratio(make_env, *, seed):
    set_seed(seed)
    env = wrap_env(make_env(), wrapper="gymnasium")
    agent = new_agent(env)
    stored, computed = [], []
    sample, act = agent.memory.sample, agent.policy.act

    def observed_sample(names, **options):
        batches = sample(names, **options)
        stored.append(batches[0][list(names).index("log_prob")])
        return batches

    def observed_act(inputs, **options):
        found = act(inputs, **options)
        if "taken_actions" in inputs:
            computed.append(found[1]["log_prob"].detach())
        return found

    agent.memory.sample, agent.policy.act = observed_sample, observed_act
    train(agent, env, ROLLOUT)
    return (computed[0] - stored[0]).exp().sub(1.0).abs().max().item()


def resume(make_env, folder, *, before, after, seed):
    def start(steps):
        set_seed(seed)
        env = wrap_env(make_env(), wrapper="gymnasium")
        return train(new_agent(env), env, steps)

    whole = start(before + after)
    file = str(Path(folder, "agent.pt"))
    start(before).save(file)
    env = wrap_env(make_env(), wrapper="gymnasium")
    resumed = new_agent(env)
    resumed.load(file)
    return digest(whole), digest(train(resumed, env, after))


def digest(agent):
    weights = [x for model in (agent.policy, agent.value) for x in model.parameters()]
    return hashlib.sha256(b"".join(x.detach().numpy().tobytes() for x in weights)).hexdigest()
