"""Whole iterations against the ordinary loop, to the bit, in Triton's interpreter (where nothing is recorded)."""

import os

import numpy as np
import pytest
import torch

import surefoot
from surefoot.engine.cuda import iteration as iteration_module
from surefoot.engine.cuda.engine import CudaEngine
from surefoot.engine.cuda.fused import fused_networks
from surefoot.engine.cuda.iteration import WholeIterations, not_whole
from surefoot.engine.torch import learner as learner_module
from surefoot.engine.torch import summary
from surefoot.envs.device_envs import DeviceEnvs
from surefoot.errors import NonFiniteError
from surefoot.training import trainer as trainer_module
from surefoot.training.config.resolve import resolve
from surefoot.training.loop.out_of_space import SpaceWatch
from surefoot.training.trainer import Trainer

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
pytest.importorskip("triton")
CPU, UPDATES, STEPS, ENVS = torch.device("cpu"), 5, 4, 3
SCHEDULES = {"learning_rate_schedule": "linear", "clip_ratio_schedule": "linear"}
SETTINGS = {
    "schedules": ("CartPole-v1", "ppo", SCHEDULES),
    "normalised": (
        "Pendulum-v1",
        "ppo",
        {"normalize_observations": True, "normalize_rewards": True, "adaptive_kl": 0.01},
    ),
    "a2c": ("CartPole-v1", "a2c", {"rollout_length": STEPS}),
    "a term ends": ("CartPole-v1", "ppo", {"entropy_coef": "points:0=0.1,0.1=0,1=0"}),
    "a term begins": ("CartPole-v1", "ppo", {"entropy_coef": "points:0=0,0.1=0,1=0.1"}),
    "tf32": ("CartPole-v1", "ppo", {"precision": "tf32"}),
}


class Interpreted(CudaEngine):
    """The engine for GPUs, on the CPU."""

    name = "interpreted"

    def serves(self, policy, algorithm, envs):
        return None

    def _networks(self, policy, learner, precision):
        return fused_networks(policy, learner.flat.vector, precision)


class Ordinary(Interpreted):
    name = "ordinary"

    def iterations(self, collector, learner, algorithm):
        return None


class Count(surefoot.Callback):
    """What each update said."""

    def __init__(self, *, reads=False, stop=None):
        self.reads_tensors, self.stop, self.seen, self.weights = reads, stop, [], []

    def on_end(self, trainer):
        self.last = trainer.learner.flat.vector.clone()

    def on_update(self, trainer, metrics):
        ended = [(e.env, round(e.ret, 9), e.length) for e in trainer.journal.latest]  # a GPU adds in the same order
        self.seen.append((trainer.step, dict(metrics), ended))
        if self.reads_tensors:
            self.weights.append(trainer.learner.flat.vector.clone())
        if trainer.update == self.stop:
            trainer.stop("enough")


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    def build(config, seed, *_):
        envs = DeviceEnvs(config.env, config.algorithm.num_envs, seed, CPU)
        envs.fused = True
        return envs

    monkeypatch.setattr(trainer_module, "build_envs", build)
    monkeypatch.setattr(trainer_module, "check_precision", lambda *_: None)
    monkeypatch.setattr(SpaceWatch, "due", property(lambda self: False))


def trained(engine, case="schedules", callback=None, updates=UPDATES):
    env, algo, settings = SETTINGS[case]
    size = {"num_envs": ENVS, "rollout_length": STEPS, "hidden_sizes": (8,), "max_episode_steps": 5}
    if algo == "ppo":
        size |= {"num_epochs": 2, "num_minibatches": 2}
    total = {"total_steps": updates * ENVS * STEPS, "engine": engine, "device": "cpu"}
    config = resolve(env, algo, preset="none", overrides={**size, **total, **settings})
    callback = callback or Count()
    trainer = Trainer(config, 3, callbacks=[callback])
    trainer.train()
    return trainer, callback


def tensors(trainer):
    state = trainer.state_dict()
    found = [trainer.learner.flat.vector, *trainer.envs.tensors, *trainer.policy.buffers(), state["collector"]["noise"]]
    return [*found, state["learner"]["shuffle"], torch.from_numpy(state["collector"]["tracker"]["ret"].round(9))]


@pytest.mark.parametrize("case", SETTINGS)
def test_whole_iterations_have_the_bits_of_the_ordinary_loop(case, monkeypatch):
    ends, own = [], WholeIterations.end
    monkeypatch.setattr(WholeIterations, "end", lambda self: ends.append(1) or own(self))
    ordinary, said = trained(Ordinary, case)
    assert not ends
    whole, also = trained(Interpreted, case)
    assert len(ends) >= UPDATES - 2
    assert also.seen == said.seen
    assert all(metrics["ratio_error"] == 0.0 for _, metrics, _ in also.seen)
    assert [list(row[1]) for row in also.seen] == [list(row[1]) for row in said.seen]
    assert all(torch.equal(one, other) for one, other in zip(tensors(whole), tensors(ordinary), strict=True))
    assert whole.learner.optimizer.steps == ordinary.learner.optimizer.steps


@pytest.mark.parametrize("reads", [False, True])
def test_a_run_stops_where_a_callback_stops_it(reads):
    """An iteration that was begun ahead leaves no trace."""
    ordinary, _ = trained(Ordinary, callback=Count(stop=3))
    whole, _ = trained(Interpreted, callback=Count(stop=3, reads=reads))
    assert whole.update == ordinary.update == 3
    assert all(torch.equal(one, other) for one, other in zip(tensors(whole), tensors(ordinary), strict=True))


def test_a_callback_that_reads_tensors_sees_those_of_its_update():
    _, ordinary = trained(Ordinary, callback=Count(reads=True))
    _, whole = trained(Interpreted, callback=Count(reads=True))
    assert len(whole.weights) == UPDATES
    assert all(torch.equal(one, other) for one, other in zip(whole.weights, ordinary.weights, strict=True))


def test_an_iteration_that_must_not_stand_is_refused_as_always(monkeypatch):
    """The weights are those before it, and the message is that of the ordinary loop."""

    def refuse(learner, names, numbers):
        if learner.update == 3:
            raise NonFiniteError(f"the update gave {numbers}")
        return summary.understood(learner, names, numbers)

    for module in (learner_module, iteration_module):
        monkeypatch.setattr(module, "understood", refuse)
    found = []
    for engine in (Ordinary, Interpreted):
        callback = Count()
        with pytest.raises(NonFiniteError) as error:
            trained(engine, callback=callback)
        found.append((str(error.value), callback.seen, callback.last.tolist()))
    assert found[0] == found[1]


def test_what_cannot_be_whole_says_why():
    trainer, _ = trained(Interpreted, updates=1)
    algorithm = trainer.algorithm
    assert not_whole(trainer.collector, trainer.learner, algorithm) is None

    class Own(type(algorithm)):
        pass

    own = Own(algorithm.config)
    assert "decides" in not_whole(trainer.collector, trainer.learner, own)
    trainer.collector.most_steps = 10**8
    assert "too large" in not_whole(trainer.collector, trainer.learner, algorithm)
    trainer.collector.reset_each_rollout = True
    assert "reset" in not_whole(trainer.collector, trainer.learner, algorithm)


def test_open_episodes_are_those_of_the_tracker():
    trainer, _ = trained(Interpreted)
    assert np.all(trainer.collector.tracker.length == trainer.envs.tensors[1].numpy())
