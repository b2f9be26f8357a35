"""Runs on the engine for GPUs, on the CPU: in Triton's interpreter, where nothing is recorded."""

import torch

import surefoot
from surefoot.engine.cuda.engine import CudaEngine
from surefoot.engine.cuda.fused import fused_networks
from surefoot.engine.cuda.networks import RecordedNetworks
from surefoot.envs.device_envs import DeviceEnvs
from surefoot.training.config.resolve import resolve
from surefoot.training.trainer import Trainer

CPU, STEPS, ENVS = torch.device("cpu"), 4, 3


class Interpreted(CudaEngine):
    """The engine for GPUs, on the CPU."""

    name = "interpreted"

    def serves(self, policy, algorithm, envs):
        return None

    def _networks(self, policy, learner, precision):
        found = fused_networks(policy, learner.flat.vector, precision)
        return RecordedNetworks(policy) if isinstance(found, str) else found


class Count(surefoot.Callback):
    """What each update said."""

    reads_tensors = False

    def __init__(self, stop=None):
        self.stop, self.seen = stop, []

    def on_update(self, trainer, metrics):
        ended = [(e.env, round(e.ret, 9), e.length) for e in trainer.journal.latest]  # a GPU adds in the same order
        self.seen.append((trainer.step, dict(metrics), ended))
        if trainer.update == self.stop:
            trainer.stop("enough")


def built(seed, env="CartPole-v1", algo="ppo", updates=5, callback=None, **settings):
    size = {"num_envs": ENVS, "rollout_length": STEPS, "hidden_sizes": (8,), "max_episode_steps": 5}
    if algo == "ppo":
        size |= {"num_epochs": 2, "num_minibatches": 2}
    total = {"total_steps": updates * ENVS * STEPS, "log_every": 10**6, "engine": Interpreted, "device": "cpu"}
    total["checkpoint_every"] = 10**6  # and not one per minute, which a slow machine would reach
    config = resolve(env, algo, preset="none", overrides={**size, **total, **settings})
    return Trainer(config, seed, callbacks=[callback or Count()])


def on_the_cpu(monkeypatch):
    from surefoot.training import trainer as trainer_module
    from surefoot.training.loop.out_of_space import SpaceWatch

    def build(config, seed, *_):
        envs = DeviceEnvs(config.env, config.algorithm.num_envs, seed, CPU)
        envs.fused = True
        return envs

    monkeypatch.setattr(trainer_module, "build_envs", build)
    monkeypatch.setattr(trainer_module, "check_precision", lambda *_: None)
    monkeypatch.setattr(SpaceWatch, "due", property(lambda self: False))


def tensors(trainer):
    state = trainer.state_dict()
    found = [trainer.learner.flat.vector, *trainer.envs.tensors, *trainer.policy.buffers(), state["collector"]["noise"]]
    found += [state["learner"]["shuffle"], torch.from_numpy(state["collector"]["tracker"]["ret"].round(9))]
    optimizer = state["learner"]["optimizer"]
    return [
        *found,
        optimizer["first"],
        optimizer["second"],
        state["collector"]["last_obs"],
        state["collector"]["start"],
    ]
