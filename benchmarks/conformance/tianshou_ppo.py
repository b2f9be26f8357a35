"""The conformance adapter of Tianshou: PPO of its procedural interface, with its own vector envs and collector.

surefoot conformance benchmarks/conformance/tianshou_ppo.py --python PEERS/tianshou/bin/python
"""

import hashlib
from pathlib import Path

import numpy as np
import torch
from tianshou.algorithm import PPO
from tianshou.algorithm.algorithm_base import Algorithm
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

PACKAGES = ["tianshou"]
NOTES = {
    "truncation": "PPO with run_training; nothing is set for time limits",
    "autoreset": "it has its own vector envs, which insert no fake step, and takes none of Gymnasium's",
    "gae": "Algorithm.compute_episodic_return on a VectorReplayBuffer",
    "kl": "PPO computes no KL, and TRPO does so inside of its update, where an adapter cannot call it",
    "first-ratio": "the policy's first output inside of the update against the minibatch's logp_old, which Tianshou "
    "computes from the same policy just before the update, so it holds by construction",
    "resume": "state_dict and load_state_dict of the algorithm, with a new collector",
}
NUM_ENVS, ROLLOUT = 4, 64


def new(make_env, seed, **settings):
    """(algorithm, collector)."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    envs = DummyVectorEnv([make_env] * NUM_ENVS)
    envs.seed(seed)
    env = make_env()
    shape = env.observation_space.shape
    actor = DiscreteActor(
        preprocess_net=Net(state_shape=shape, hidden_sizes=[64]), action_shape=env.action_space.n, softmax_output=False
    )
    critic = DiscreteCritic(preprocess_net=Net(state_shape=shape, hidden_sizes=[64]))
    policy = DiscreteActorPolicy(actor=actor, action_space=env.action_space)
    algorithm = PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=1e-2), **settings)
    return algorithm, Collector(algorithm, envs, VectorReplayBuffer(10_000, NUM_ENVS))


def train(algorithm, collector, steps):
    algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=collector,
            max_epochs=1,
            epoch_num_steps=steps,
            collection_step_num_env_steps=ROLLOUT,
            batch_size=ROLLOUT,
            update_step_num_repetitions=10,
            verbose=False,
            show_progress=False,
        )
    )
    return algorithm


def values(make_env, states, *, steps, gamma, gae_lambda, seed):
    algorithm = train(*new(make_env, seed, gamma=gamma, gae_lambda=gae_lambda), steps)
    with torch.no_grad():
        return algorithm.critic(states.astype(np.float32)).flatten().tolist()


def advantages(reward, value, next_value, terminated, truncated, *, gamma, gae_lambda):
    length, num_envs = reward.shape
    buffer = VectorReplayBuffer(length * num_envs, num_envs)
    nothing = np.zeros(num_envs)
    for t in range(length):
        step = Batch(
            obs=nothing, act=nothing, rew=reward[t], terminated=terminated[t], truncated=truncated[t],
            obs_next=nothing, info=[{}] * num_envs,
        )  # fmt: skip
        buffer.add(step, buffer_ids=np.arange(num_envs))
    indices = buffer.sample_indices(0)  # all, one env after the other
    _, found = Algorithm.compute_episodic_return(
        buffer[indices], buffer, indices, next_value.T.flatten(), value.T.flatten(), gamma, gae_lambda
    )
    return found.reshape(num_envs, length).T


def first_ratio(make_env, *, seed):
    algorithm, collector = new(make_env, seed)
    found = []

    def observe(policy, arguments, output):
        batch = arguments[0]
        if "logp_old" in batch.get_keys():
            ratio = (output.dist.log_prob(batch.act) - batch.logp_old).exp()
            found.append((ratio - 1.0).abs().max().item())

    algorithm.policy.register_forward_hook(observe)
    train(algorithm, collector, ROLLOUT)
    return found[0]


def resume(make_env, folder, *, before, after, seed):
    whole = train(*new(make_env, seed), before + after)
    file = Path(folder, "algorithm.pt")
    torch.save(train(*new(make_env, seed), before).state_dict(), file)
    resumed, collector = new(make_env, seed)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    return digest(whole), digest(train(resumed, collector, after))


def digest(algorithm):
    return hashlib.sha256(b"".join(x.detach().numpy().tobytes() for x in algorithm.parameters())).hexdigest()
