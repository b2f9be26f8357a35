"""Classic control on a device: Gymnasium's steps from any state, its limits, and first states of its distribution."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from surefoot.envs.backends import backend_of
from surefoot.envs.config import EnvConfig
from surefoot.envs.device_classic import DYNAMICS
from surefoot.envs.device_envs import DeviceEnvs, mixed, uniform
from surefoot.kernels.classic import Params

CPU = torch.device("cpu")
IDS = {
    "CartPole-v1": ("CartPole", [2.4, 3.0, 0.22, 3.0]),
    "Pendulum-v1": ("Pendulum", [10.0, 8.0]),
    "Acrobot-v1": ("Acrobot", [np.pi, np.pi, 4 * np.pi, 9 * np.pi]),
    "MountainCar-v0": ("MountainCar", [0.9, 0.07]),
    "MountainCarContinuous-v0": ("MountainCarContinuous", [0.9, 0.07]),
}
KWARGS = {
    "CartPole-v1": {"sutton_barto_reward": True},
    "Pendulum-v1": {"g": 9.81},
    "MountainCar-v0": {"goal_velocity": 0.01},
}


def made(env="CartPole-v1", num_envs=4, seed=0, **config):
    return DeviceEnvs(EnvConfig(env=env, **config), num_envs, seed, CPU)


def some_states(name, size, rng):
    low_high = np.array(IDS[name][1])
    states = rng.uniform(-low_high, low_high, (size, len(low_high)))
    if name.startswith("MountainCar"):
        states[:, 0] -= 0.3  # from the left wall to the goal
        states[:10] = [-1.2, -0.07]
        states[10:20] = [0.49, 0.05]
    if name == "MountainCarContinuous-v0":
        states = states.astype(np.float32).astype(np.float64)
    return states


@pytest.mark.parametrize("kwargs", [False, True])
@pytest.mark.parametrize("name", IDS)
def test_a_step_is_gymnasiums(name, kwargs):
    own = KWARGS.get(name, {}) if kwargs else {}
    theirs, rng = gym.make(name, **own).unwrapped, np.random.default_rng(0)
    states = some_states(name, 200, rng)
    dynamics = DYNAMICS[IDS[name][0]](Params(**own))
    discrete = isinstance(theirs.action_space, gym.spaces.Discrete)
    actions = (
        rng.integers(theirs.action_space.n, size=200) if discrete else rng.uniform(-2.5, 2.5, (200, 1)).astype("f4")
    )
    moved, reward, terminated = dynamics.step(torch.from_numpy(states), torch.from_numpy(actions))
    seen = dynamics.observe(moved)
    theirs.reset(seed=0)
    for index, state in enumerate(states):
        theirs.state = np.array(state)
        theirs.steps_beyond_terminated = None
        obs, pay, ended, _, _ = theirs.step(actions[index])
        np.testing.assert_allclose(moved[index], np.asarray(theirs.state, np.float64), atol=1e-6)
        np.testing.assert_allclose(seen[index], obs, atol=1e-6)
        assert float(reward[index]) == pytest.approx(float(pay), abs=1e-5)
        assert bool(terminated[index]) == ended
    assert seen.dtype == torch.float32
    assert bool(terminated.any()) == (name != "Pendulum-v1")


@pytest.mark.parametrize("name", IDS)
def test_episodes_begin_as_gymnasiums_do(name):
    """Equal ranges, and means and variances as close as 4096 draws allow."""
    theirs = gym.make(name)
    begun = np.array([theirs.reset(seed=seed)[0] for seed in range(400)])
    ours = made(name, num_envs=4096).reset().double().numpy()
    assert (ours.min(0) >= begun.min(0) - 0.05 * np.ptp(begun, 0)).all()
    assert (ours.max(0) <= begun.max(0) + 0.05 * np.ptp(begun, 0)).all()
    error = 5.0 * begun.std(0) * np.sqrt(1 / 400 + 1 / 4096) + 1e-9
    assert (np.abs(ours.mean(0) - begun.mean(0)) < error).all()
    np.testing.assert_allclose(ours.std(0), begun.std(0), rtol=0.15, atol=1e-9)


def test_an_env_does_not_depend_on_the_others():
    few, many = made(num_envs=3), made(num_envs=50)
    np.testing.assert_array_equal(few.reset(), many.reset()[:3])
    for _ in range(30):
        action = torch.ones(50, dtype=torch.int64)
        one, other = few.step(action[:3]), many.step(action)
        for left, right in ((one.obs, other.obs), (one.terminated, other.terminated), (one.final_obs, other.final_obs)):
            assert torch.equal(left, right[:3])
    assert not torch.equal(made(seed=1).reset(), made(seed=2).reset())


def test_ends_show_the_true_last_observation_and_begin_the_next_episode():
    envs = made(max_episode_steps=6, num_envs=5)
    before, ends = envs.reset(), 0
    for t in range(1, 20):
        step = envs.step(torch.arange(5) % 2)
        done = step.terminated | step.truncated
        assert torch.equal(step.truncated, torch.full((5,), t % 6 == 0))
        assert torch.equal(step.first, done)
        assert (step.obs[done].abs() <= 0.05).all()
        assert torch.equal(step.obs[~done], step.final_obs[~done])
        if done.any():
            ends += 1
            assert not torch.equal(step.obs[done], step.final_obs[done])
            assert (step.obs[done] != before[done]).all()  # another episode
    assert ends == 3


def test_envs_that_are_not_active_stay_as_they_are():
    envs, active = made(num_envs=4), torch.tensor([True, False, True, False])
    first = envs.reset()
    step = envs.step(torch.ones(4, dtype=torch.int64), active)
    assert torch.equal(step.valid, active)
    assert torch.equal(step.obs[~active], first[~active])
    assert (step.obs[active] != first[active]).any(1).all()
    assert not step.terminated.any()
    assert envs.state_dict()["taken"].tolist() == [1, 0, 1, 0]


def test_a_saved_state_goes_on_to_the_bit():
    envs, twin = made("Pendulum-v1", max_episode_steps=7), made("Pendulum-v1", max_episode_steps=7, seed=0)
    envs.reset()
    actions = torch.randn(20, 4, 1)
    for action in actions[:9]:
        last = envs.step(action).obs
    state = envs.state_dict()
    envs.state_shape().check(state)
    assert twin.load_state_dict(state, last.numpy()) == []
    np.testing.assert_array_equal(twin.observations, last)
    for action in actions[9:]:
        assert torch.equal(envs.step(action).obs, twin.step(action).obs)


def test_the_hash_is_splitmix():
    """Its published first outputs for the seed 1234567."""
    golden = torch.tensor(-7046029254386353131)
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423 - 2**64, 4593380528125082431]
    assert [int(mixed(1234567 + (i + 1) * golden)) for i in range(4)] == expected
    drawn = uniform(torch.zeros(1, dtype=torch.int64), torch.arange(100_000))
    assert 0.0 <= float(drawn.min()) < 1e-3 < 0.999 < float(drawn.max()) < 1.0
    assert float(drawn.mean()) == pytest.approx(0.5, abs=5e-3)
    assert float((drawn[1:] * drawn[:-1]).mean()) == pytest.approx(0.25, abs=5e-3)


def test_random_play_ends_as_gymnasiums_does():
    """Random pushes keep a pole up for 22 steps on average (std 12)."""
    envs = made(num_envs=1000)
    envs.reset()
    generator, lengths = torch.Generator().manual_seed(0), torch.zeros(1000)
    open_ = torch.ones(1000, dtype=torch.bool)
    for _ in range(150):
        step = envs.step(torch.randint(2, (1000,), generator=generator))
        lengths += open_
        open_ &= ~step.first
    theirs, found = gym.make("CartPole-v1"), []
    theirs.action_space.seed(0)
    for seed in range(300):
        theirs.reset(seed=seed)
        length, over = 0, False
        while not over:
            _, _, over, _, _ = theirs.step(theirs.action_space.sample())
            length += 1
        found.append(length)
    assert float(lengths.mean()) == pytest.approx(np.mean(found), abs=4.0 * 12.0 * np.sqrt(1 / 1000 + 1 / 300))


@pytest.mark.parametrize(
    "config",
    [{"env": "LunarLander-v3"}, {"env": "CartPole-v1", "frame_stack": 2}, {"env": "CartPole-v1", "workers": 2}],
)
def test_other_envs_stay_on_the_host(config):
    config = EnvConfig(**config)
    assert backend_of(config.env).make_on_device(config, 2, 0, CPU) is None
