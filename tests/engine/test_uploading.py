"""Large observations that are uploaded step by step: the same rollouts as those uploaded at the end."""

from dataclasses import fields

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from surefoot.engine.cuda import collector as uploading
from surefoot.engine.cuda.collector import UploadingCollector
from surefoot.engine.cuda.passes import take
from surefoot.envs.gym_envs import GymEnvs
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.types import InEqualParts, Rollout
from tests.building import make_batch, make_collector


class Noisy(gym.Env):
    """Shows a new random picture at every step; episodes of chance lengths, half of them truncated."""

    observation_space = spaces.Box(0, 255, (1, 12, 12), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def observe(self):
        return self.np_random.integers(256, size=(1, 12, 12), dtype=np.uint8)

    def step(self, action):
        over, cut = self.np_random.random(2) < 0.1
        return self.observe(), float(action), bool(over), bool(cut), {}


class Halves(GymEnvs):
    """Two halves, the second of which always answers first."""

    equal_parts = True

    def __init__(self, make, num_envs, seed):
        super().__init__(make, num_envs, seed)
        self.parts = [slice(0, num_envs // 2), slice(num_envs // 2, num_envs)]
        self.sent = {}

    def send(self, part, action):
        self.sent[part] = action

    def answered(self):
        return [max(self.sent)]

    def take(self, part):
        whole, own = (self.envs, self._obs, self.num_envs), self.parts[part]
        self.envs, self._obs = self.envs[own], self._obs[own]
        self.num_envs = len(self.envs)
        try:
            return self.step(self.sent.pop(part))
        finally:
            self.envs, self._obs, self.num_envs = whole


def collector(kind, engine="cuda", **settings):
    envs = kind(Noisy, 4, 5)
    torch.manual_seed(0)
    policy = ActorCritic(envs.observation_space, envs.action_space, PolicyConfig(hidden_sizes=()))
    return make_collector(envs, policy, 20, seed=2, engine=engine, **settings)


def same(one, other):
    for field in fields(Rollout):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, torch.Tensor) and mine.is_floating_point():
            torch.testing.assert_close(mine, theirs, msg=field.name)  # the policy acts for other rows together
        elif isinstance(mine, torch.Tensor):
            assert torch.equal(mine, theirs), field.name
    assert one.truncated.any()


@pytest.mark.parametrize("settings", [{}, {"reset_each_rollout": True}])
@pytest.mark.parametrize("kind", [GymEnvs, Halves])
def test_their_rollouts_are_the_same(kind, settings, monkeypatch):
    expected = collector(GymEnvs, engine="torch", **settings)
    monkeypatch.setattr(uploading, "LARGE", 1)
    found = collector(kind, **settings)
    assert isinstance(found, UploadingCollector)
    assert isinstance(found.envs, InEqualParts) == (kind is Halves)
    for _ in range(3):
        same(expected.collect(), found.collect())
        assert expected.tracker.take() == found.tracker.take()


def test_a_collector_goes_on_from_a_checkpoint(monkeypatch):
    monkeypatch.setattr(uploading, "LARGE", 1)
    one, other = collector(GymEnvs), collector(GymEnvs)
    one.collect()
    assert other.load_state_dict(one.state_dict()) == []
    same(one.collect(), other.collect())


def test_small_observations_are_uploaded_at_the_end():
    assert not isinstance(collector(GymEnvs), UploadingCollector)


@pytest.mark.parametrize("side", [12, 11], ids=["whole words", "odd"])
def test_bytes_are_gathered_as_words(side):
    batch = make_batch(torch.arange(6.0))
    batch.obs = torch.randint(256, (6, 2, side, side), dtype=torch.uint8)
    index = torch.tensor([4, 0, 5])
    for name in ("obs", "advantage", "action"):
        assert torch.equal(getattr(take(batch, index), name), getattr(batch.take(index), name))
