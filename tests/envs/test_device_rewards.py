"""The reward normaliser of tensor envs against its oracle, that of NumPy envs; nothing in it waits for the device."""

import numpy as np
import pytest
import torch

from surefoot.engine.cuda.operations import DeviceOperations
from surefoot.envs.config import EnvConfig
from surefoot.envs.device_envs import DeviceEnvs
from surefoot.envs.device_rewards import DeviceRewardNormalizer
from surefoot.envs.rewards import RewardNormalizer
from surefoot.math.operations import OPERATIONS
from tests.building import make_collector, make_policy
from tests.tensor_vector_envs import Guard

CPU = torch.device("cpu")
SCANS = pytest.mark.parametrize("operations", [OPERATIONS, DeviceOperations()], ids=["steps", "doubling"])


def rollouts(lengths, num_envs=5, seed=0):
    rng = np.random.default_rng(seed)
    for steps in lengths:
        shape = (steps, num_envs)
        yield rng.normal(size=shape), rng.random(shape) < 0.2, rng.random(shape) < 0.8


def tensors(rollout):
    return tuple(torch.from_numpy(x) for x in rollout)


@SCANS
def test_it_is_the_normaliser_of_numpy_envs(operations):
    host, device = RewardNormalizer(5, 0.9), DeviceRewardNormalizer(5, 0.9, CPU)
    for number, rollout in enumerate(rollouts((7, 1, 2, 33))):
        if number == 2:
            host.restart()
            device.restart()
        if number == 3:
            host.forget(1)
            device.forget(1)
        reward = tensors(rollout)[0]
        host.observe(*rollout)
        device.observe(*tensors(rollout), operations)
        np.testing.assert_allclose(device.scale(reward), host.scale(rollout[0]), rtol=1e-12)
        np.testing.assert_allclose(device.running, host.running, rtol=1e-12, atol=1e-14)
        one, other = device.state_dict(), host.state_dict()
        assert {name: type(value) for name, value in one.items()} == {name: type(x) for name, x in other.items()}
        assert one["count"] == other["count"]
        np.testing.assert_allclose([one["mean"], one["var"]], [other["mean"], other["var"]], rtol=1e-12)
        assert torch.equal(reward, torch.from_numpy(rollout[0]))


@SCANS
def test_a_rollout_without_a_valid_step_changes_nothing(operations):
    normalizer = DeviceRewardNormalizer(5, 0.9, CPU)
    nothing = (torch.full((4, 5), torch.nan, dtype=torch.float64), *[torch.zeros(4, 5, dtype=torch.bool)] * 2)
    normalizer.observe(*nothing, operations)
    assert normalizer.state_dict()["var"] == 1.0
    normalizer.observe(*tensors(next(rollouts([6]))), operations)
    before = normalizer.state_dict()
    normalizer.observe(*nothing, operations)
    after = normalizer.state_dict()
    assert all(np.array_equal(after[name], before[name]) for name in before)


@SCANS
def test_the_host_reads_nothing(operations, monkeypatch):
    normalizer, given = DeviceRewardNormalizer(5, 0.9, CPU), [tensors(rollout) for rollout in rollouts((4, 4))]
    guard = Guard(2, monkeypatch)
    guard.step()
    for rollout in given:
        normalizer.observe(*rollout, operations)
        normalizer.scale(rollout[0])
        normalizer.restart()
    guard.step()
    assert normalizer.state_dict()["count"] > 0


def test_state_round_trip_is_exact_and_keeps_no_reference():
    first, second = (DeviceRewardNormalizer(5, 0.97, CPU) for _ in range(2))
    one, other = (tensors(rollout) for rollout in rollouts((9, 9)))
    first.observe(*one)
    state = first.state_dict()
    first.state_shape().check(state)
    kept = state["running"].copy()
    second.load_state_dict(state)
    for each in (first, second):
        each.observe(*other)
    assert torch.equal(first.scale(one[0]), second.scale(one[0]))
    assert torch.equal(first.running, second.running)
    second.load_state_dict(state)
    second.forget(0)
    np.testing.assert_array_equal(state["running"], kept)


@pytest.mark.parametrize("wrap", [float, np.array, lambda x: np.array([x])], ids=["number", "array", "array of one"])
def test_a_state_of_the_host_is_continued_on_a_device_and_back(wrap):
    """All forms that earlier versions wrote."""
    host, device, again = RewardNormalizer(5, 0.9), DeviceRewardNormalizer(5, 0.9, CPU), RewardNormalizer(5, 0.9)
    host.observe(*next(rollouts([9])))
    state = host.state_dict()
    old = {**state, "mean": wrap(state["mean"]), "var": wrap(state["var"])}
    device.state_shape().check(old)
    device.load_state_dict(old)
    again.load_state_dict(device.state_dict())
    found = again.state_dict()
    assert all(np.array_equal(found[name], state[name]) for name in state)


@pytest.mark.parametrize("engine", ["torch", "cuda"])
def test_a_collector_goes_on_exactly_where_it_was_saved(engine):
    def made():
        envs = DeviceEnvs(EnvConfig(env="Pendulum-v1", max_episode_steps=7), 4, 0, CPU)
        policy = make_policy(envs.action_space, observation_space=envs.observation_space)
        return make_collector(envs, policy, 10, engine=engine, reward_gamma=0.9)

    whole = made()
    for _ in range(2):
        whole.collect()
    state, other = whole.state_dict(), made()
    other.state_shape().check(state)
    assert other.load_state_dict(state) == []
    for _ in range(2):
        assert torch.equal(other.collect().reward, whole.collect().reward)
    one, two = (each.state_dict()["reward_normalizer"] for each in (whole, other))
    assert all(np.array_equal(one[name], two[name]) for name in one)
