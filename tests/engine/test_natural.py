"""The share of a rollout that the Fisher matrix is estimated on."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from surefoot.algorithms import trpo
from surefoot.algorithms.parts import estimate
from surefoot.engine import shares
from surefoot.engine.torch.natural import fisher_samples, spread
from tests.building import make_batch, make_learner, make_policy, make_rollout

FRACTIONS = [0.01, 0.1, 0.125, 0.25, 0.3, 0.5, 0.7, 0.9, 0.99]


def numbered(steps, envs):
    """A batch of a rollout whose advantages are the samples' own places."""
    return replace(make_batch(np.arange(steps * envs)), num_envs=envs)


@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize(("steps", "envs"), [(128, 8), (37, 8), (5, 64), (100, 1), (1, 100), (64, 13)])
def test_so_many_samples_of_all_envs_and_all_times(fraction, steps, envs):
    place = fisher_samples(numbered(steps, envs), fraction).advantage.to(torch.int64).numpy()
    count = max(1, round(fraction * steps * envs))
    assert len(set(place.tolist())) == len(place) == count
    of_env = np.bincount(place % envs, minlength=envs)
    assert of_env.max() - of_env.min() <= 1
    # In any stretch of time there are as many as its share says, but for a few.
    for begin, end in ((0.0, 0.5), (0.25, 0.5), (0.9, 1.0)):
        a, b = round(begin * steps), round(end * steps)
        inside = ((place // envs >= a) & (place // envs < b)).sum()
        assert inside == pytest.approx(count * (b - a) / steps, abs=2.0 + 1.5 * min(count, envs) ** 0.5)


@pytest.mark.parametrize("fraction", FRACTIONS)
def test_each_env_is_seen_over_the_whole_time(fraction):
    """With 8 envs, an eighth of a time-major batch used to be env 0."""
    place = fisher_samples(numbered(512, 8), fraction).advantage.to(torch.int64).numpy()
    for env in range(8):
        times = place[place % 8 == env] // 8
        widest = np.diff([-1, *times, 512]).max()
        assert widest <= 2 * 512 / len(times) + 1


def test_all_and_nearly_none():
    batch = numbered(4, 8)
    assert fisher_samples(batch, 1.0) is batch
    assert len(fisher_samples(batch, 1e-6)) == 1


def test_the_times_of_neighbouring_envs_are_set_off():
    times = spread(512, 8, 8) // 8  # one sample of each
    assert np.diff(np.sort(times)).min() > 512 / 8 / 2


@pytest.mark.parametrize(("fraction", "envs"), [(0.125, 1), (0.5, 4), (0.7, 6), (1.0, 8)])
def test_with_a_memory_whole_envs(fraction, envs):
    policy = make_policy(memory="gru", memory_size=8)
    batch = estimate(make_rollout(policy, steps=6, num_envs=8), trpo.Config())
    sample = fisher_samples(batch, fraction)
    assert (sample.units, len(sample)) == (envs, 6 * envs)
    assert sample.context.start.shape == (6, envs)


@pytest.mark.parametrize("kind", ["torch", "native"])
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_both_engines_look_at_the_same_share(kind, memory, monkeypatch):
    seen = []

    def spying(batch, fraction):
        seen.append(fisher_samples(batch, fraction))
        return seen[-1]

    monkeypatch.setattr(shares, "fisher_samples", spying)
    config = trpo.Config(fisher_fraction=0.75, num_envs=8, value_minibatches=1)
    policy = make_policy(memory=memory, **({} if memory == "none" else {"memory_size": 8}))
    learner = make_learner(kind, policy, trpo.TRPO(config))
    metrics = trpo.TRPO(config).update(learner, make_rollout(policy, steps=10, num_envs=8))
    assert [len(sample) for sample in seen] == [60]
    assert metrics["surrogate_gain"] > 0.0
