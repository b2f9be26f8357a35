"""What an env returns against its contract is an error that names the env, where it stood, and the fix; on every way
that leads to an env."""

import re
from contextlib import closing
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import surefoot
from surefoot.envs.config import EnvConfig
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.make import make_env
from surefoot.envs.pettingzoo_envs import ParallelEnvs
from surefoot.envs.workers import WorkerEnvs
from surefoot.errors import EnvError, UsageError
from surefoot.training.build.envs import ready_envs
from tests.odd_envs import RESETS, SAID, SPACES, STEPS, OddSpaces, Returns, VectorReturns, WorldReturns, odd_space

FILE = str(Path(__file__).parents[1] / "odd_envs.py")
PLACE = r"\((env|copy) \d, seed \d+, episode \d+, step \d+\)"
SHORT = {"preset": "none", "total_steps": 256, "num_envs": 2, "rollout_length": 32, "num_minibatches": 1}


def play(envs, steps=12):
    with closing(envs):
        envs.reset()
        for _ in range(steps):
            envs.step([0] * envs.num_envs)


def in_one_process(fault):
    play(GymEnvs(lambda: Returns(fault), 2, 0))


def in_workers(fault):
    play(WorkerEnvs(EnvConfig(env=f"{FILE}:Returns", env_kwargs={"fault": fault}), 2, 0, 1))


def in_copies(fault):
    play(ParallelEnvs(lambda: WorldReturns(fault), 2, 0))


def in_a_vector_env(fault, tensors=False):
    envs = ready_envs(VectorReturns(fault, tensors), 0)
    play(envs)
    if tensors:
        envs.odd_flags()  # asked once per rollout


def in_an_evaluation(fault):
    agent = surefoot.load(surefoot.train(Returns, **SHORT, eval_episodes=0, progress=False))
    surefoot.evaluate(agent, lambda: Returns(fault), episodes=64)  # every env plays two


@pytest.mark.parametrize("way", [in_one_process, in_copies, in_a_vector_env, in_an_evaluation, in_workers])
@pytest.mark.parametrize("fault", ["step_four", "reset_info_none", "terminated_none", "obs_complex"])
def test_every_way_to_an_env_names_what_it_returned(way, fault):
    if way is in_workers and fault != "step_four":
        return  # a process each; they are `in_one_process` inside
    with pytest.raises(EnvError) as caught:
        way(fault)
    said = str(caught.value)
    if way is in_a_vector_env and fault == "terminated_none":
        assert re.search("vector env, index 0 returned terminated=None", said)
        return
    assert re.search(SAID[fault], said), said
    if way is not in_a_vector_env:
        assert re.search(PLACE, said), said


@pytest.mark.parametrize("fault", [*STEPS, *RESETS])
def test_whatever_an_env_returns_is_named(fault):
    with pytest.raises(EnvError, match=SAID[fault]) as caught:
        in_one_process(fault)
    assert re.search(PLACE, str(caught.value))


@pytest.mark.parametrize("fault", [*STEPS, *RESETS])
def test_whatever_a_world_of_several_agents_returns_is_named(fault):
    with pytest.raises(EnvError) as caught:
        in_copies(fault)
    assert re.search(PLACE, str(caught.value)), caught.value


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("fault", [name for name in (*STEPS, *RESETS) if name != "truncated_array"])
def test_whatever_a_vector_env_returns_is_named(fault, tensors):
    with pytest.raises(EnvError) as caught:
        in_a_vector_env(fault, tensors)
    assert "index 0" in str(caught.value) or "VectorReturns" in str(caught.value)


@pytest.mark.parametrize("fault", ["terminated_two", "truncated_nan"])
def test_odd_flags_of_tensors_stop_the_run(fault):
    with pytest.raises(EnvError, match=r"index 0 returned (terminated|truncated) that are neither True nor False"):
        surefoot.train(VectorReturns(fault, tensors=True), **SHORT, progress=False)


@pytest.mark.parametrize("value", [True, np.True_, 1, np.int64(1), 1.0, np.array(True), np.array([1])])
def test_flags_of_every_sane_kind_are_taken(value):
    class Sane(Returns):
        def step(self, action):
            obs, reward, ended, cut, info = super().step(action)
            return obs, reward, value if ended else value * 0, cut, info

    envs = GymEnvs(Sane, 1, 0)
    envs.reset()
    assert [bool(envs.step([0]).terminated[0]) for _ in range(10)] == 2 * [False, False, False, False, True]


def test_an_old_env_behind_a_wrapper_of_gymnasiums_is_told_the_fix():
    """The wrapper takes what the env returned apart before we can look at it."""
    config = EnvConfig(env=f"{FILE}:Returns", env_kwargs={"fault": "step_four"}, max_episode_steps=50)
    with pytest.raises(EnvError, match=r"ValueError: not enough values to unpack.*step must return five values"):
        play(GymEnvs(lambda: make_env(config), 2, 0))


def test_other_values_that_an_env_unpacks_are_not_blamed_on_step():
    class Unpacks(Returns):
        def step(self, action):
            _low, _high = [0.5]
            return super().step(action)

    envs = GymEnvs(lambda: gym.wrappers.TimeLimit(Unpacks(), 50), 1, 0)
    with pytest.raises(EnvError, match=r"ValueError: not enough values to unpack \(expected 2, got 1\)$"):
        play(envs)


WAYS = {
    "one process": lambda kind, which, nested: GymEnvs(lambda: OddSpaces(kind, which, nested), 2, 0),
    "workers": lambda kind, which, nested: WorkerEnvs(
        EnvConfig(env=f"{FILE}:OddSpaces", env_kwargs={"kind": kind, "which": which, "nested": nested}), 2, 0, 1
    ),
    "copies": lambda kind, which, nested: ParallelEnvs(lambda: WorldReturns("", kind, which, nested), 2, 0),
    "vector env": lambda kind, which, nested: ready_envs(VectorReturns(**{which: odd_space(kind, nested)}), 0),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "which"), [(k, w) for k in SPACES for w in ("observation", "action")])
def test_a_space_that_is_not_supported_is_refused_before_anything_is_asked_of_the_env(way, kind, which):
    if way == "workers" and (kind, which) != ("Graph", "observation"):
        return  # a process each; they are `one process` inside
    said = "is missing; set it to a space" if kind == "None" else f"is a {kind}, wh"
    with pytest.raises(UsageError, match=rf"the {which} space {said}.*supported are Box, Discrete") as caught:
        WAYS[way](kind, which, False)
    assert caught.value.exit_code == 2
    if kind != "None" and way != "workers":
        with pytest.raises(UsageError, match=rf"'robot/0/odd' of the {which} space is a {kind}, wh"):
            WAYS[way](kind, which, True)


def test_a_space_of_ones_own_is_refused_too():
    class Mine(Returns):
        class observation_space(SPACES["Text"].__class__.__mro__[1]):
            """Of no known kind."""

        observation_space = observation_space((2,), np.float32)

    with pytest.raises(UsageError, match="the observation space is a observation_space, which is not Gymnasium's own"):
        GymEnvs(Mine, 1, 0)


@pytest.mark.parametrize("fault", ["step_four", "step_info_none", "reset_obs_only"])
def test_the_command_line_shows_no_traceback_of_ours(fault, capsys):
    from surefoot.cli.main import main

    words = ["--preset=none", "--total-steps=256", "--num-envs=2", "--rollout-length=32", "--num-minibatches=1"]
    assert main(["train", f"{FILE}:Returns", f'--env-kwargs={{"fault": "{fault}"}}', *words]) == 1
    said = capsys.readouterr().err
    assert re.search(SAID[fault], said)
    assert "Traceback" not in said
