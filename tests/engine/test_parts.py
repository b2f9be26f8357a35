"""Parts of the envs that go at their own pace give the rollouts of envs that step together, to the bit."""

import random
from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest
import torch

from surefoot.engine.torch.actor import TorchActor
from surefoot.envs.config import EnvConfig
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.make import make_env
from surefoot.errors import EnvError
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.types import Rollout, SteppedInParts
from tests.building import make_collector, make_learner


class Parts(GymEnvs):
    """Three parts, whose steps end in an order of chance. `hurry`: one after the other runs ahead instead."""

    def __init__(self, make, num_envs, seed, hurry=False):
        super().__init__(make, num_envs, seed)
        edges = [0, 1, num_envs // 2, num_envs]
        self.parts = [slice(a, b) for a, b in pairwise(edges)]
        self.sent, self.chance, self.hurry = {}, random.Random(3), hurry

    def send(self, part, action):
        assert part not in self.sent
        self.sent[part] = action

    def answered(self):
        waiting = sorted(self.sent)
        return waiting[:1] if self.hurry else self.chance.sample(waiting, self.chance.randint(1, len(waiting)))

    def take(self, part):
        """By stepping these envs alone."""
        whole, own = (self.envs, self._obs, self.num_envs), self.parts[part]
        self.envs, self._obs = self.envs[own], self._obs[own]
        self.num_envs = len(self.envs)
        try:
            return self.step(self.sent.pop(part))
        finally:
            self.envs, self._obs, self.num_envs = whole


def collector(envs, length=40, engine="native", memory="none", **settings):
    torch.manual_seed(0)
    config = PolicyConfig(normalize_observations=True, memory=memory)
    policy = ActorCritic(envs.observation_space, envs.action_space, config)
    learner = make_learner(engine, policy)
    return make_collector(envs, policy, length, seed=2, engine=engine, learner=learner, log_info=["number"], **settings)


def same(one, other):
    for field in fields(Rollout):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, torch.Tensor):
            assert torch.equal(mine, theirs), field.name
    if one.context is not None:
        assert torch.equal(one.context.memory, other.context.memory)
        assert torch.equal(one.context.start, other.context.start)
    assert one.terminated.any() or one.truncated.any()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("settings", [{}, {"reset_each_rollout": True}, {"memory": "gru"}, {"memory": "lstm"}])
@pytest.mark.parametrize("hurry", [False, True], ids=["chance", "hurry"])
@pytest.mark.parametrize(("env", "limit"), [("CartPole-v1", None), ("CartPole-v1", 9), ("Pendulum-v1", 15)])
def test_their_rollouts_are_the_same(env, limit, hurry, settings):
    def make():
        return make_env(EnvConfig(env=env, max_episode_steps=limit))

    together, apart = GymEnvs(make, 7, 5), Parts(make, 7, 5, hurry)
    assert isinstance(apart, SteppedInParts)
    assert not isinstance(together, SteppedInParts)
    first, second = collector(together, **settings), collector(apart, **settings)
    for _ in range(3):
        same(first.collect(), second.collect())
        assert first.tracker.take() == second.tracker.take()
    assert np.array_equal(first.tracker.ret, second.tracker.ret)
    assert second.timer.seconds["env"] > 0


def test_only_rows_that_stand_alone_are_acted_on_apart(monkeypatch):
    """PyTorch's products may round a row differently in another batch."""

    def refuse(*_):
        raise AssertionError("acted on apart")

    monkeypatch.setattr(Parts, "send", refuse)

    def make():
        return make_env(EnvConfig(env="CartPole-v1"))

    assert not TorchActor.independent_rows
    collector(Parts(make, 7, 5), engine="torch").collect()
    with pytest.raises(AssertionError, match="apart"):
        collector(Parts(make, 7, 5)).collect()


def test_an_error_of_one_part_is_that_of_the_rollout(monkeypatch):
    envs = Parts(lambda: make_env(EnvConfig(env="CartPole-v1")), 7, 5)
    taking = collector(envs)

    def fail(part):
        raise EnvError("env 3")

    monkeypatch.setattr(envs, "take", fail)
    with pytest.raises(EnvError, match="env 3"):
        taking.collect()
