"""The native envs in the place of Gymnasium's: no Step, error or checkpoint may tell them apart."""

import json
import os
import re
import subprocess
import sys
from contextlib import closing

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import AcrobotEnv, CartPoleEnv

from surefoot.envs import gym_envs, native_envs
from surefoot.envs.config import EnvConfig
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.make import make_env
from surefoot.envs.native_envs import (
    NativeEnvs,
    disagreement,
    exploring_actions,
    native_kind,
    states_differ,
)
from surefoot.envs.seeds import episode_seed
from surefoot.envs.side_by_side import same_bits, steps_differ
from surefoot.errors import EnvError, NonFiniteError
from surefoot.kernels.classic import KINDS
from surefoot.types import Restorable
from tests.building import make_collector, make_policy
from tests.native import classic_library, has_avx2

ENVS = ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0"]


def both(env, num_envs=4, run_seed=5, **config):
    config = EnvConfig(env=env, **config)
    ours = NativeEnvs(config, num_envs, run_seed, classic_library())
    return GymEnvs(lambda: make_env(config), num_envs, run_seed), ours


def play_both(theirs, ours, steps, rng, active=None):
    """Both step with the same actions; the last Step. Fails at the first difference."""
    obs = theirs.observations
    step = None
    for number in range(steps):
        action = exploring_actions(ours.kind, obs, rng)
        mask = None if active is None else active(rng)
        step, twin = theirs.step(action, mask), ours.step(action, mask)
        assert (number, steps_differ(step, twin)) == (number, None)
        assert (number, states_differ(theirs, ours)) == (number, None)
        obs = step.obs
    return step


@pytest.mark.parametrize("env", ENVS)
def test_thousands_of_steps_are_the_same(env):
    theirs, ours = both(env)
    assert same_bits(theirs.reset(), ours.reset())
    play_both(theirs, ours, 1_200, np.random.default_rng(0))
    assert [own.episode for own in theirs.envs] == ours.envs.where()[0]
    assert sum(ours.envs.where()[0]) > 0  # ends were among them
    assert same_bits(theirs.reset(), ours.reset())  # a reset in the middle begins the next episodes
    play_both(theirs, ours, 50, np.random.default_rng(1))


@pytest.mark.parametrize("env", ENVS)
def test_a_time_limit_and_a_mask(env):
    theirs, ours = both(env, num_envs=5, max_episode_steps=7)
    theirs.reset(), ours.reset()
    play_both(theirs, ours, 200, np.random.default_rng(0), active=lambda rng: rng.random(5) < 0.6)
    assert ours.time_limit == theirs.time_limit == 7


@pytest.mark.parametrize(
    ("env", "kwargs"),
    [
        ("CartPole-v1", {"sutton_barto_reward": True}),
        ("Pendulum-v1", {"g": 2}),
        ("MountainCar-v0", {"goal_velocity": 0.01}),
        ("MountainCarContinuous-v0", {"goal_velocity": 0.02}),
    ],
)
def test_constructor_arguments(env, kwargs):
    theirs, ours = both(env, env_kwargs=kwargs)
    theirs.reset(), ours.reset()
    play_both(theirs, ours, 400, np.random.default_rng(0))


@pytest.mark.filterwarnings("ignore:.*CartPole-v0 is out of date")
def test_the_old_cartpole_ends_after_its_200_steps():
    theirs, ours = both("CartPole-v0", num_envs=2)
    theirs.reset(), ours.reset()
    play_both(theirs, ours, 500, np.random.default_rng(0))
    assert ours.time_limit == theirs.time_limit == 200


@pytest.mark.parametrize("env", ENVS)
def test_what_they_say_of_themselves(env):
    theirs, ours = both(env)
    for name in ("num_envs", "observation_space", "action_space", "time_limit", "exact_seeds"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert (ours.layout.shape, ours.layout.dtype) == (theirs.layout.shape, theirs.layout.dtype)
    assert isinstance(ours, Restorable)


def test_steps_do_not_share_their_arrays():
    _, ours = both("MountainCar-v0", max_episode_steps=2)
    start = ours.reset()
    kept = start.copy()
    first = ours.step(np.zeros(4, np.int64))
    second = ours.step(np.zeros(4, np.int64))
    copies = {index: row.copy() for index, row in second.final_obs.items()}
    before = first.obs.copy(), first.reward.copy(), second.truncated.copy()
    for _ in range(3):
        ours.step(np.full(4, 2))
    np.testing.assert_array_equal(start, kept)
    np.testing.assert_array_equal(first.obs, before[0])
    np.testing.assert_array_equal(first.reward, before[1])
    np.testing.assert_array_equal(second.truncated, before[2])
    assert second.truncated.all()
    assert all((second.final_obs[index] == copies[index]).all() for index in range(4))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("direction", ["native to gym", "gym to native", "native to native"])
def test_each_resumes_what_the_other_began(env, direction):
    rng = np.random.default_rng(2)
    theirs, ours = both(env)
    theirs.reset(), ours.reset()
    last = play_both(theirs, ours, 333, rng).obs
    states = theirs.state_dict(), ours.state_dict()
    for name in ("episode", "steps"):
        assert states[0][name] == states[1][name]
    for given, own in zip(states[0]["actions"], states[1]["actions"], strict=True):
        assert (given is None) == (own is None)
        assert given is None or same_bits(np.asarray(given), own)
    new_gym, new_native = both(env)
    saved = states[direction.startswith("native")]
    if direction.endswith("gym"):
        assert new_gym.load_state_dict(saved, last) == []
        theirs = new_gym
    else:
        assert new_native.load_state_dict(saved, last) == []
        ours = new_native
    assert same_bits(theirs.observations, ours.observations)
    play_both(theirs, ours, 300, rng)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_an_episode_that_does_not_come_back_is_started_afresh(env):
    rng = np.random.default_rng(0)
    theirs, ours = both(env)
    theirs.reset(), ours.reset()
    last = play_both(theirs, ours, 6, rng).obs
    last[1] += 1.0  # not what its actions lead to
    state = theirs.state_dict()
    state["actions"][2] = state["actions"][2][:-1]  # one is missing
    state["actions"][3] = np.zeros((6, 5), np.float64)  # not actions at all
    again, native = both(env)
    assert native.load_state_dict(state, last) == [1, 2, 3]
    state["actions"][3] = None
    assert again.load_state_dict(state, last) == [1, 2, 3]
    assert same_bits(again.observations, native.observations)
    assert same_bits(native.observations[0], last[0])
    assert native.envs.where() == ([0, 1, 1, 1], [6, 0, 0, 0])
    play_both(again, native, 100, rng)


def test_an_episode_too_long_to_remember(monkeypatch):
    monkeypatch.setattr(gym_envs, "LONGEST_REPLAY", 5)
    monkeypatch.setattr(native_envs, "LONGEST_REPLAY", 5)
    theirs, ours = both("Pendulum-v1", num_envs=2)
    theirs.reset(), ours.reset()
    last = play_both(theirs, ours, 9, np.random.default_rng(0)).obs
    given, own = theirs.state_dict(), ours.state_dict()
    assert [len(actions) for actions in own["actions"]] == [len(actions) for actions in given["actions"]] == [5, 5]
    assert own["steps"] == given["steps"] == [9, 9]
    again, native = both("Pendulum-v1", num_envs=2)
    assert again.load_state_dict(given, last) == native.load_state_dict(own, last) == [0, 1]
    assert same_bits(again.observations, native.observations)


@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0"])
def test_an_illegal_action_names_env_seed_episode_and_step(env):
    _, ours = both(env)
    ours.reset()
    ours.step(np.zeros(4, np.int64))
    action = np.array([0, 0, 3, 0])
    place = rf"{env} \(env 2, seed {episode_seed(5, 2, 0)}, episode 0, step 1\)"
    with pytest.raises(EnvError, match=rf"step of {place}.*action 3.*Discrete"):
        ours.step(action)


@pytest.mark.parametrize("env", ["Pendulum-v1", "MountainCarContinuous-v0"])
@pytest.mark.parametrize("limit", [3, 4], ids=["last step", "within"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_actions_that_are_not_finite_end_as_with_gymnasium(env, limit, value):
    """Pendulum cuts an infinite torque; where a number spoils the state or the reward, the error is the same."""
    errors = []
    for envs in both(env, max_episode_steps=limit):
        envs.reset()
        action = np.zeros((4, 1), np.float32)
        envs.step(action)
        envs.step(action)
        action[1] = value
        try:
            envs.step(action)
            errors.append(None)
        except NonFiniteError as error:
            errors.append(str(error))
    assert errors[0] == errors[1]
    assert (errors[0] is None) == (env == "Pendulum-v1" and np.isinf(value))


def test_actions_of_another_type_or_shape_are_refused():
    _, ours = both("Pendulum-v1")
    ours.reset()
    for action in (np.zeros((4, 1)), np.zeros(4, np.float32), np.zeros((4, 1), np.int64), np.zeros((3, 1), np.float32)):
        with pytest.raises(ValueError, match=r"Pendulum-v1 takes actions of float32 \(4, 1\)"):
            ours.step(action)
    _, ours = both("CartPole-v1")
    ours.reset()
    for action in (np.zeros(4), np.zeros(4, np.bool_), np.zeros((4, 1), np.int64)):
        with pytest.raises(ValueError, match=r"CartPole-v1 takes actions of int64 \(4,\)"):
            ours.step(action)
    ours.step([0, 1, np.int32(0), np.int64(1)])
    ours.step(np.zeros(8, np.int64)[::2])


def test_a_step_before_the_reset_is_an_error_of_both():
    for envs in both("MountainCar-v0"):
        with pytest.raises(EnvError, match="reset"):
            envs.step(np.zeros(4, np.int64))


@pytest.mark.parametrize(
    ("env", "settings"),
    [("CartPole-v1", {}), ("Acrobot-v1", {})]
    + [("Pendulum-v1", {"action_bounds": bounds}) for bounds in ("clip", "tanh", "beta")]
    + [("MountainCarContinuous-v0", {})],
)
@pytest.mark.parametrize("episodes_per_env", [None, 2])
def test_a_rollout_has_the_same_bits(env, settings, episodes_per_env):
    rollouts = []
    for envs in both(env, max_episode_steps=30):
        policy = make_policy(envs.action_space, observation_space=envs.observation_space, **settings)
        collector = make_collector(envs, policy, 30, episodes_per_env=episodes_per_env)
        rollouts.append([collector.collect() for _ in range(3)])
    for theirs, ours in zip(*rollouts, strict=True):
        for name in ("obs", "action", "reward", "terminated", "truncated", "valid", "next_value", "final_inputs"):
            assert torch.equal(getattr(theirs, name), getattr(ours, name)), name


@pytest.mark.parametrize("env", ENVS)
def test_a_video_of_the_same_actions_shows_the_same_episode(env):
    """Films are made with Gymnasium's env: its states, and so its frames, are those that were trained on."""
    config = EnvConfig(env=env, max_episode_steps=60)
    ours = NativeEnvs(config, 1, 3, classic_library())
    rng = np.random.default_rng(0)
    with closing(make_env(config, render_mode="rgb_array")) as filmed:
        obs, _ = filmed.reset(seed=episode_seed(3, 0, 0))
        assert same_bits(obs, ours.reset()[0])
        while True:
            action = exploring_actions(ours.kind, obs[None], rng)
            step = ours.step(action)
            obs, _, terminated, truncated, _ = filmed.step(action[0])
            if terminated or truncated:
                break
            assert same_bits(step.obs[0], obs)
        assert same_bits(step.final_obs[0], obs)
        assert filmed.render().ndim == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"env": "LunarLander-v3"}, "LunarLander-v3 has no native twin"),
        ({"env": "module:Env-v0"}, "no native twin"),
        ({"env": "nothing.py:Factory"}, "no native twin"),
        ({"wrappers": ("RescaleAction",)}, "is needed for wrappers"),
        ({"frame_stack": 2}, "is needed for frame_stack"),
        ({"workers": 1}, "is needed for workers"),
        ({"env_kwargs": {"render_mode": "human"}}, "'render_mode'"),
        ({"env_kwargs": {"g": 1.0}}, "'g'"),
        ({"env_kwargs": {"sutton_barto_reward": 1}}, "sutton_barto_reward=1"),
        ({"env": "Pendulum-v1", "env_kwargs": {"g": float("nan")}}, "g=nan"),
        ({"env": "Pendulum-v1", "env_kwargs": {"g": 1e300}}, r"g=1e\+300"),
        ({"env": "Pendulum-v1", "env_kwargs": {"g": "10"}}, "g='10'"),
        ({"env": "MountainCar-v0", "env_kwargs": {"goal_velocity": True}}, "goal_velocity=True"),
    ],
)
def test_what_only_gymnasium_can_do_is_left_to_it(settings, words):
    config = EnvConfig(**{"env": "CartPole-v1", **settings})
    kind, reason = native_kind(config)
    assert kind is None
    assert re.search(words, reason)
    assert re.search(words, disagreement(config, classic_library()))
    with pytest.raises(ValueError, match=words):
        NativeEnvs(config, 1, 0, classic_library())


def test_a_factory_is_left_to_itself():
    assert native_kind(EnvConfig(env="CartPole-v1"), factory=CartPoleEnv)[0] is None


def test_what_does_not_touch_the_dynamics_may_be_set():
    config = EnvConfig(env="CartPole-v1", sign_rewards=True, reward_scale=0.1, max_episode_steps=9)
    assert native_kind(config)[0] is KINDS["CartPole"]


def test_an_id_that_somebody_registered_anew_is_not_ours(monkeypatch):
    spec = gym.spec("CartPole-v1")
    other = gym.envs.registration.EnvSpec(spec.id, entry_point="somebody.else:CartPole")
    monkeypatch.setitem(gym.registry, spec.id, other)
    assert native_kind(EnvConfig(env="CartPole-v1"))[0] is None
    bent = gym.envs.registration.EnvSpec(spec.id, entry_point=spec.entry_point, kwargs={"sutton_barto_reward": True})
    monkeypatch.setitem(gym.registry, spec.id, bent)
    assert "registered with arguments" in native_kind(EnvConfig(env="CartPole-v1"))[1]


@pytest.mark.parametrize("env", ENVS)
def test_the_check_before_use_finds_nothing_here(env):
    assert disagreement(EnvConfig(env=env), classic_library(), steps=60) is None


@pytest.mark.parametrize(
    ("env", "cls", "name", "value", "found"),
    [
        ("Acrobot-v1", AcrobotEnv, "book_or_nips", "nips", "obs"),
        ("Acrobot-v1", AcrobotEnv, "LINK_MOI", np.nextafter(1.0, 2.0), "state"),
    ],
)
def test_the_check_finds_other_dynamics(monkeypatch, env, cls, name, value, found):
    monkeypatch.setattr(cls, name, value)
    assert re.fullmatch(
        rf"{found} of {env} differ from Gymnasium's after \d+ steps",
        disagreement(EnvConfig(env=env), classic_library()),
    )


def test_the_check_finds_other_rewards_and_first_states(monkeypatch):
    config = EnvConfig(env="CartPole-v1")
    reset, step = CartPoleEnv.reset, CartPoleEnv.step
    monkeypatch.setattr(CartPoleEnv, "step", lambda self, a: (*(r := step(self, a))[:1], np.nextafter(r[1], 2), *r[2:]))
    assert disagreement(config, classic_library()) == "reward of CartPole-v1 differ from Gymnasium's after 1 steps"
    monkeypatch.setattr(CartPoleEnv, "reset", lambda self, seed=None, options=None: reset(self, seed=seed + 1))
    assert disagreement(config, classic_library()) == "the first observations of CartPole-v1 differ from Gymnasium's"


@pytest.mark.slow
@pytest.mark.skipif(not has_avx2(), reason="nothing to take away")
def test_the_check_finds_a_numpy_that_computes_in_another_way():
    """Without fused multiply-adds its float32 sines come from libm: Acrobot's first observation may differ."""
    code = (
        "import json\n"
        "from surefoot.envs.native_envs import functions_differ\n"
        "from surefoot.kernels.classic import KINDS\n"
        "from tests.native import classic_library\n"
        "print(json.dumps({name: functions_differ(kind, classic_library('-O0')) for name, kind in KINDS.items()}))"
    )
    features = "X86_V3 X86_V4 AVX512_ICL AVX512_SPR AVX2 FMA3 AVX512F AVX512_SKX"
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": features, "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert "NumPy's sin32" in found.pop("Acrobot")
    assert set(found.values()) == {None}
