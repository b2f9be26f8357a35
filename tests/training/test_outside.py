"""Observations outside of their space: an error where numbers are whole, else a warning, said once."""

import re

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import surefoot
from surefoot.errors import EnvError
from surefoot.spaces.layout import Layout
from surefoot.training.loop.out_of_space import EVERY_ONE, SAMPLED, SpaceWatch
from surefoot.types import Rollout
from tests.tensor_vector_envs import AsTensors

CPU = torch.device("cpu")
SHORT = {"preset": "none", "total_steps": 512, "num_envs": 2, "rollout_length": 32, "num_minibatches": 1}


class Shows(gym.Env):
    """Shows `value` of `space`, but `odd` at step 20 of the second env that is made."""

    action_space, made = spaces.Discrete(2), 0

    def __init__(self, space, value, odd, render_mode=None):
        self.observation_space, self.value, self.odd = space, value, odd
        self.number, self.time, Shows.made = Shows.made, 0, Shows.made + 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.value, {}

    def step(self, action):
        self.time += 1
        wrong = self.time == 20 and self.number == 1
        return self.odd if wrong else self.value, 1.0, self.time % 64 == 0, False, {}


def rollout_of(obs):
    """One whose observations alone matter."""
    names = [name for name in Rollout.__slots__ if name not in ("obs", "valid")]
    return Rollout(obs=obs, valid=torch.ones(len(obs) - 1, obs.shape[1], dtype=torch.bool), **dict.fromkeys(names))


def box(*numbers, dtype=np.float32):
    return np.array(numbers, dtype)


BOUNDED = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, np.inf], np.float32))
CASES = {
    "a number above": (BOUNDED, box(0, 0), box(1.5, 0), "observation number 0 of env 1 is 1.5 .* says -1 to 1"),
    "a number below": (BOUNDED, box(0, 0), box(0, -3), "observation number 1 of env 1 is -3 .* says 0 to inf"),
    "in a Dict": (
        spaces.Dict({"robot": spaces.Dict({"arm": BOUNDED}), "mode": spaces.Discrete(3)}),
        {"robot": {"arm": box(0, 0)}, "mode": 1},
        {"robot": {"arm": box(0, -2)}, "mode": 1},
        "robot/arm number 1 of env 1 is -2 .* says 0 to inf",
    ),
    "without axes": (spaces.Box(0.0, 1.0, ()), box(0)[0], box(2)[0], "observation of env 1 is 2 "),
    "in an image": (
        spaces.Box(0.0, 1.0, (3, 4, 4)),
        np.zeros((3, 4, 4), np.float32),
        np.full((3, 4, 4), 9, np.float32),
        "observation number 0 of env 1 is 9 at about step 41; its space says 0 to 1",
    ),
}
ERRORS = {
    "a choice": (spaces.Discrete(3, start=5), 6, 8, "observation of env 1 is 8 .* says 5 to 7"),
    "a choice below": (spaces.Discrete(3), 1, -1, "observation of env 1 is -1 .* says 0 to 2"),
    "an embedded choice": (spaces.Discrete(200), 1, 200, "observation of env 1 is 200 .* says 0 to 199"),
    "choices": (
        spaces.MultiDiscrete([3, 4], start=[1, 2]),
        np.array([1, 2]),
        np.array([1, 6]),
        "observation number 1 of env 1 is 6 .* says 2 to 5",
    ),
    "bits": (spaces.MultiBinary(2), np.array([0, 1]), np.array([0, 2]), "number 1 of env 1 is 2 .* says 0 to 1"),
    "whole numbers": (
        spaces.Box(0, 9, (2,), np.int64),
        np.array([1, 2]),
        np.array([1, 10]),
        "observation number 1 of env 1 is 10 .* says 0 to 9",
    ),
    "a grid": (
        spaces.Box(0, 10, (7, 7, 3), np.uint8),
        np.zeros((7, 7, 3), np.uint8),
        np.full((7, 7, 3), 11, np.uint8),
        "observation number 0 of env 1 is 11 .* says 0 to 10",
    ),
    "in a Tuple": (
        spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (1,))]),
        (1, box(0)),
        (3, box(0)),
        "0 of env 1 is 3 .* says 0 to 2",
    ),
}


def train(space, value, odd, **changes):
    Shows.made = 0
    return surefoot.train(lambda: Shows(space, value, odd), **SHORT | changes, seed=0, eval_episodes=0, progress=False)


@pytest.mark.parametrize("name", CASES)
def test_real_numbers_outside_are_a_warning_that_is_said_once(name):
    space, value, odd, words = CASES[name]
    run = train(space, value, odd)
    (warning,) = [found for found in run.result["warnings"] if found["name"] == "outside_space"]
    assert re.search(words, warning["message"]), warning
    assert (run.path / "log.txt").read_text().count(warning["message"]) == 1


@pytest.mark.parametrize("name", ERRORS)
def test_whole_numbers_outside_are_an_error(name):
    space, value, odd, words = ERRORS[name]
    with pytest.raises(EnvError, match=words):
        train(space, value, odd)
    assert train(space, value, value).result["warnings"] == []


@pytest.mark.parametrize("name", ["a choice", "an embedded choice", "choices", "whole numbers"])
def test_in_envs_of_tensors_too(name):
    space, value, odd, words = ERRORS[name]
    Shows.made = 0
    envs = gym.vector.SyncVectorEnv([lambda: Shows(space, value, odd) for _ in range(2)], autoreset_mode="NextStep")
    with pytest.raises(EnvError, match=words):
        surefoot.train(AsTensors(envs), **{**SHORT, "num_envs": 2}, seed=0, progress=False)


def test_an_evaluation_names_the_env_its_seed_and_its_step():
    agent = surefoot.load(train(spaces.Discrete(3), 1, 1))
    Shows.made = 0
    with pytest.raises(EnvError, match=r"observation of Shows \(env 1, seed \d+, episode 1, step 20\) is not in its"):
        surefoot.evaluate(agent, lambda: Shows(spaces.Discrete(3), 1, 3), episodes=2)


def test_rounding_is_no_fault():
    one = np.float32(1.0)
    assert train(BOUNDED, box(0, 0), box(np.nextafter(one, np.float32(2)), -1e-6)).result["warnings"] == []


def test_what_a_type_cannot_leave_is_not_looked_at():
    images = Layout(spaces.Box(0, 255, (7, 7, 3), np.uint8))
    assert SpaceWatch(images, CPU)._ranges == []
    assert SpaceWatch(Layout(spaces.Box(-np.inf, np.inf, (3,))), CPU)._ranges == []


def test_real_numbers_are_sampled_and_choices_are_not():
    looked = []

    class Counted(SpaceWatch):
        def _outside(self, one, values, valid, step):
            looked.append(one.leaf.name)

    layout = Layout(spaces.Dict({"c": spaces.Discrete(2), "x": BOUNDED}))
    watch, rollout = Counted(layout, CPU), rollout_of(torch.zeros(3, 2, 3))
    for _ in range(3 * SAMPLED):
        watch.look(rollout, 0)
    assert looked.count("c") == 3 * SAMPLED
    assert looked.count("x") == EVERY_ONE + 2


def test_rows_where_nobody_acts_do_not_count():
    watch = SpaceWatch(Layout(BOUNDED), CPU)
    rollout = rollout_of(torch.full((3, 2, 2), 9.0))
    rollout.valid[:] = False
    assert watch.look(rollout, 0) == []
    rollout.valid[1, 1] = True
    assert "env 1 is 9 at about step 103" in watch.look(rollout, 100)[0][1]


@pytest.mark.slow
def test_a_grid_of_symbols_that_is_declared_as_a_picture_is_named():
    space = spaces.Box(0, 255, (7, 7, 3), np.uint8)
    grid = np.full((7, 7, 3), 10, np.uint8)
    (warning,) = train(space, grid, grid).result["warnings"]
    assert "divided by 255, but holds no number above 10" in warning["message"]
    assert train(space, grid * 20, grid * 20).result["warnings"] == []
