"""The native classic-control envs against Gymnasium's: the same bits, whole episodes long."""

import math
from contextlib import closing
from ctypes import byref, c_uint32

import gymnasium as gym
import numpy as np
import pytest

from surefoot.envs.native_envs import CLASSES, exploring_actions
from surefoot.envs.seeds import episode_seed
from surefoot.envs.side_by_side import same_bits
from surefoot.kernels.classic import KINDS, ClassicEnvs, Params, apply
from tests.native import classic_library, has_avx2

ENVS = {
    "CartPole": "CartPole-v1",
    "Pendulum": "Pendulum-v1",
    "Acrobot": "Acrobot-v1",
    "MountainCar": "MountainCar-v0",
    "MountainCarContinuous": "MountainCarContinuous-v0",
}
# Plain code; and what a compiler may do at its most daring with AVX2: the header itself must forbid contraction.
BUILDS = [(), ("-march=x86-64-v3", "-ffp-contract=fast")]


@pytest.fixture(params=BUILDS, ids=["plain", "avx2"])
def library(request):
    if request.param and not has_avx2():
        pytest.skip("this machine has no AVX2")
    return classic_library(*request.param)


@pytest.fixture
def plain():
    return classic_library()


def make(library, kind, num_envs=1, run_seed=0, **kwargs):
    return ClassicEnvs(library, KINDS[kind], num_envs, run_seed, **{"longest_replay": 10_000, **kwargs})


def act(envs, action):
    envs.action[...] = np.reshape(action, envs.action.shape)
    return envs.step()


def test_the_table_of_kinds_is_that_of_the_library(plain):
    assert {name for name, _ in CLASSES.values()} == set(KINDS) == set(ENVS)
    for kind in KINDS.values():
        sizes = np.zeros(3, np.int64)
        plain.sizes(kind.number, sizes.ctypes.data)
        assert sizes.tolist() == [kind.num_state, kind.num_obs, kind.num_actions]
    with pytest.raises(RuntimeError, match="no such kind of env"):
        plain.sizes(len(KINDS), sizes.ctypes.data)


@pytest.mark.parametrize("run_seed", [0, 7, -1, 2**31, 2**64, 10**30, 10**114, 10**115, 10**116, 10**127, 10**400])
def test_the_seed_of_an_episode_is_that_of_python(plain, run_seed):
    """Lengths around a block of the hash (128 bytes) among them."""
    for env, episode in [(0, 0), (0, 1), (3, -1), (12, 345), (999_999, 10**12)]:
        native = c_uint32()
        plain.episode_seed(str(run_seed).encode(), env, episode, byref(native))
        assert native.value == episode_seed(run_seed, env, episode)


@pytest.mark.parametrize("seed", [0, 1, 42, 2**31 - 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
def test_the_generator_is_numpys(plain, seed):
    numbers = np.zeros(1_000)
    plain.random(seed, numbers.ctypes.data, numbers.size)
    np.testing.assert_array_equal(numbers, np.random.default_rng(seed).random(1_000))


def test_the_functions_are_those_that_numpy_scalars_get(library):
    rng = np.random.default_rng(1)
    wide = rng.uniform(-100.0, 100.0, 20_000)
    narrow = rng.uniform(-2.0, 2.0, 20_000).astype(np.float32)
    angle = rng.uniform(-0.1, 0.1, 20_000).astype(np.float32)
    for name, x, function in [
        ("sin", wide, np.sin),
        ("cos", wide, np.cos),
        ("square", wide, lambda x: x**2),
        ("remainder", wide, lambda x: x % (2 * np.pi)),
        ("sin32", angle, np.sin),
        ("cos32", angle, np.cos),
        ("square32", narrow, lambda x: x**2),
    ]:
        np.testing.assert_array_equal(apply(library, name, x), [float(function(value)) for value in x], name)
    # What a compiler would like to make of pow(x, 2).
    assert (apply(library, "square", wide) != wide * wide).any()
    assert (apply(library, "square32", narrow) != narrow * narrow).any()


def play_gymnasium(env, seed, actions):
    """States, rewards, ends and observations of one episode; the action of each step is drawn from its observation."""
    obs, _ = env.reset(seed=seed)
    rows = [(np.asarray(env.unwrapped.state, np.float64), 0.0, False, False, obs)]
    taken = []
    while not (rows[-1][2] or rows[-1][3]):
        action = actions(obs)
        taken.append(action)
        obs, reward, terminated, truncated, _ = env.step(action)
        rows.append((np.asarray(env.unwrapped.state, np.float64), float(reward), terminated, truncated, obs))
    return rows, taken


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS)
def test_whole_episodes_have_gymnasiums_bits(library, kind):
    """Reset, every step and its end, with random, extreme and energetic actions."""
    run_seed, episodes = 11, {"CartPole": 60, "Pendulum": 20, "Acrobot": 10, "MountainCar": 20}.get(kind, 10)
    rng = np.random.default_rng(0)
    with closing(gym.make(ENVS[kind], disable_env_checker=True)) as env:
        limit = env.spec.max_episode_steps
        lengths = set()
        for number in range(episodes):
            mode = number % 2

            def draw(obs, mode=mode):
                return exploring_actions(KINDS[kind], np.stack([obs, obs]), rng)[mode]

            rows, taken = play_gymnasium(env, episode_seed(run_seed, 0, number), draw)
            ours = make(library, kind, run_seed=run_seed, time_limit=limit)
            for _ in range(number + 1):
                ours.reset()
            assert same_bits(ours.get_state(0), rows[0][0])
            assert same_bits(ours.obs[0], rows[0][4])
            for step, (action, row) in enumerate(zip(taken, rows[1:], strict=True), 1):
                before = ours.where()[0][0]
                ended = act(ours, action)
                state, reward, terminated, truncated, obs = row
                assert ours.reward[0] == reward
                assert (bool(ours.terminated[0]), bool(ours.truncated[0])) == (terminated, truncated)
                if terminated or truncated:
                    assert ended == 1
                    assert same_bits(ours.final_obs[0], obs)
                    assert ours.where() == ([before + 1], [0])
                else:
                    assert ended == 0
                    assert same_bits(ours.get_state(0), state), (number, step)
                    assert same_bits(ours.obs[0], obs), (number, step)
            lengths.add(len(taken))
    assert len(lengths) > 1 or lengths == {limit}


@pytest.mark.parametrize("kind", KINDS)
def test_first_states_and_observations(library, kind):
    """Acrobot's first cosines are float32, and differ from a rounded float64 one in one of a thousand."""
    envs = make(library, kind, num_envs=3_000 if kind == "Acrobot" else 300, run_seed=1)
    envs.reset()
    with closing(gym.make(ENVS[kind], disable_env_checker=True)) as env:
        for index in range(envs.num_envs):
            obs, _ = env.reset(seed=episode_seed(1, index, 0))
            assert same_bits(envs.obs[index], obs)
            assert same_bits(envs.get_state(index), np.asarray(env.unwrapped.state, np.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_an_episode_with_a_seed_of_somebody_elses(library, kind):
    envs = make(library, kind, num_envs=3, run_seed=1, time_limit=5)
    envs.reset()
    act(envs, envs.action)
    with closing(gym.make(ENVS[kind], disable_env_checker=True)) as env:
        for seed in (0, 77, 2**31 - 1, 2**40):
            envs.begin(1, 9, seed)
            obs, _ = env.reset(seed=seed)
            assert same_bits(envs.obs[1], obs)
            assert same_bits(envs.get_state(1), np.asarray(env.unwrapped.state, np.float64))
            assert envs.where() == ([0, 9, 0], [1, 0, 1])
            assert len(envs.remembered(1)) == 0
    envs.replay(0, 10, envs.action[:0])
    following = envs.get_state(0)
    while envs.where()[0][1] == 9:
        act(envs, envs.action)
    assert envs.where()[0][1] == 10
    envs.replay(1, 10, envs.action[:0])
    assert not same_bits(envs.get_state(1), following)  # the seed of env 1's own episode 10, not of env 0's
    with pytest.raises(IndexError):
        envs.begin(3, 0, 0)


WIDTHS = {  # wider than episodes reach, so that no operation's rounding is lost in the next one's
    "CartPole": (2.0, 10.0, 0.2, 15.0),
    "Pendulum": (100.0, 8.0),
    "Acrobot": (3.2, 3.2, 13.0, 29.0),
    "MountainCar": (1.2, 0.07),
    "MountainCarContinuous": (1.2, 0.07),
}


@pytest.mark.parametrize("kind", KINDS)
def test_single_steps_from_any_state(library, kind):
    rng = np.random.default_rng(4)
    ours = make(library, kind)
    with closing(gym.make(ENVS[kind], disable_env_checker=True)) as env:
        env.reset(seed=0)
        env = env.unwrapped
        for _ in range(1_000):
            state = rng.uniform(-1, 1, ours.kind.num_state) * WIDTHS[kind]
            if kind == "MountainCarContinuous":
                state = state.astype(np.float32)
            action = exploring_actions(ours.kind, np.zeros((1, 6)), rng)[0]
            env.state, env.steps_beyond_terminated = state.copy(), None
            obs, reward, terminated, _, _ = env.step(action)
            ours.set_state(0, 0, 1, state)
            act(ours, action)
            assert (ours.reward[0], ours.terminated[0]) == (float(reward), terminated)
            assert same_bits(ours.final_obs[0] if terminated else ours.obs[0], obs)
            if not terminated:
                assert same_bits(ours.get_state(0), np.asarray(env.state, np.float64))


@pytest.mark.parametrize(
    ("kind", "kwargs"),
    [
        ("CartPole", {"sutton_barto_reward": True}),
        ("Pendulum", {"g": 9.81}),
        ("Pendulum", {"g": -3}),
        ("MountainCar", {"goal_velocity": 0.02}),
        ("MountainCarContinuous", {"goal_velocity": 0.03}),
        ("MountainCarContinuous", {"goal_velocity": 0.07}),
    ],
)
def test_the_constructors_arguments(plain, kind, kwargs):
    rng = np.random.default_rng(3)
    with closing(gym.make(ENVS[kind], disable_env_checker=True, **kwargs)) as env:
        for number in range(6):
            draw = lambda obs: exploring_actions(KINDS[kind], np.stack([obs, obs]), rng)[1]  # noqa: E731
            rows, taken = play_gymnasium(env, episode_seed(0, 0, number), draw)
            ours = make(plain, kind, params=Params(**kwargs), time_limit=env.spec.max_episode_steps)
            assert ours.replay(0, number, np.empty((0, *ours.kind.action_shape), ours.kind.action_dtype))
            for action, (_, reward, terminated, truncated, _) in zip(taken, rows[1:], strict=True):
                act(ours, action)
                assert (ours.reward[0], ours.terminated[0], ours.truncated[0]) == (reward, terminated, truncated)


def test_steps_worked_by_hand(plain):
    upright = make(plain, "Pendulum")
    upright.set_state(0, 0, 5, np.zeros(2))
    act(upright, 0.0)  # at rest, upright: nothing moves, nothing costs
    assert upright.get_state(0).tolist() == [0.0, 0.0]
    assert upright.reward[0] == 0.0
    upright.set_state(0, 0, 5, np.array([math.pi / 2, 1.0]))
    act(upright, 5.0)  # cut to 2: speed 1 + (15·1 + 3·2)·0.05, cost (π/2)² + 0.1·1² + 0.001·2²
    np.testing.assert_allclose(upright.get_state(0), [math.pi / 2 + 2.05 * 0.05, 2.05], rtol=1e-15)
    np.testing.assert_allclose(upright.reward[0], -(math.pi**2 / 4 + 0.1 + 0.004), rtol=1e-9)

    car = make(plain, "MountainCar")
    car.set_state(0, 0, 5, np.array([-1.19, -0.07]))
    act(car, 0)  # into the wall, which takes the speed
    assert car.get_state(0).tolist() == [-1.2, 0.0]
    assert car.reward[0] == -1.0
    car.set_state(0, 0, 5, np.array([-math.pi / 6, 0.0]))
    act(car, 2)  # in the valley's lowest place only the engine pulls
    np.testing.assert_allclose(car.get_state(0)[1], 0.001, rtol=1e-12)

    pole = make(plain, "CartPole")
    pole.set_state(0, 0, 5, np.zeros(4))
    act(pole, 1)  # θ̈ = −(10/1.1) / (0.5·(4/3 − 0.1/1.1)), ẍ = 10/1.1 − 0.05·θ̈/1.1
    turn = -(10 / 1.1) / (0.5 * (4 / 3 - 0.1 / 1.1))
    np.testing.assert_allclose(pole.get_state(0), [0, 0.02 * (10 / 1.1 - 0.05 * turn / 1.1), 0, 0.02 * turn])

    swing = make(plain, "Acrobot")
    swing.set_state(0, 0, 5, np.zeros(4))
    act(swing, 1)  # hanging still without a torque
    np.testing.assert_allclose(swing.get_state(0), np.zeros(4), atol=1e-15)
    np.testing.assert_array_equal(swing.obs[0, [0, 2]], [1, 1])

    drive = make(plain, "MountainCarContinuous")
    drive.set_state(0, 0, 5, np.array([0.44, 0.05], np.float32))
    act(drive, 0.5)  # reaches the flag at 0.45: 100 − 0.1·0.5²
    assert drive.terminated[0]
    assert drive.reward[0] == 100 - 0.1 * 0.25


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [0, 1, 37])
def test_a_state_that_is_set_goes_on_as_the_one_it_was_taken_from(plain, kind, after):
    rng = np.random.default_rng(after)
    first, second = make(plain, kind), make(plain, kind, run_seed=99)
    first.reset()
    for _ in range(after):
        act(first, exploring_actions(first.kind, first.obs, rng)[0])
    (episode,), (steps,) = first.where()
    second.set_state(0, episode, steps, first.get_state(0))
    assert same_bits(first.obs, second.obs)
    for _ in range(20):
        action = exploring_actions(first.kind, first.obs, rng)[0]
        assert act(first, action) == act(second, action)
        if first.terminated[0]:
            break
        assert same_bits(first.get_state(0), second.get_state(0))
        assert same_bits(first.obs, second.obs)
        assert first.reward[0] == second.reward[0]


def test_the_time_limit(plain):
    envs = make(plain, "Pendulum", num_envs=2, time_limit=3)
    envs.reset()
    assert [act(envs, [0, 0]) for _ in range(6)] == [0, 0, 2, 0, 0, 2]
    assert envs.truncated.all()
    assert not envs.terminated.any()
    endless = make(plain, "Pendulum")
    endless.reset()
    assert [act(endless, 0) for _ in range(2_000)] == [0] * 2_000


def test_an_end_at_the_limit_is_both(plain):
    envs = make(plain, "CartPole", time_limit=1)
    envs.reset()
    envs.set_state(0, 0, 0, np.array([2.41, 0.0, 0.0, 0.0]))
    assert act(envs, 0) == 1
    assert envs.terminated[0]
    assert envs.truncated[0]


def test_only_active_envs_step(plain):
    envs = make(plain, "CartPole", num_envs=3)
    envs.reset()
    before = envs.obs.copy()
    envs.active[:] = [True, False, True]
    assert envs.step(masked=True) == 0
    assert (envs.obs != before).any(1).tolist() == [True, False, True]
    assert envs.reward.tolist() == [1.0, 0.0, 1.0]
    assert envs.where() == ([0, 0, 0], [1, 0, 1])


@pytest.mark.parametrize("action", [-1, 2, 2**40, -(2**63)])
def test_an_action_that_is_none_is_at_fault_and_not_taken(plain, action):
    envs = make(plain, "CartPole", num_envs=3)
    envs.reset()
    assert act(envs, [0, action, 0]) == -2
    assert envs.where()[1] == [1, 0, 0]


@pytest.mark.parametrize("kind", ["Pendulum", "MountainCarContinuous"])
def test_a_number_that_is_none_is_at_fault(plain, kind):
    envs = make(plain, kind, num_envs=2)
    envs.reset()
    assert act(envs, [0.0, np.nan]) == -2


def test_remembered_actions_lead_back(plain):
    rng = np.random.default_rng(0)
    envs, again = make(plain, "Pendulum", time_limit=3_000), make(plain, "Pendulum", time_limit=3_000)
    envs.reset()
    for _ in range(2_500):  # longer than was reserved
        act(envs, rng.uniform(-2, 2))
    actions = envs.remembered(0)
    assert actions.shape == (2_500, 1)
    assert again.replay(0, 0, actions)
    assert same_bits(again.get_state(0), envs.get_state(0))
    assert again.where() == envs.where()
    np.testing.assert_array_equal(again.remembered(0), actions)


def test_an_episode_remembers_no_more_than_it_may(plain):
    envs = make(plain, "CartPole", longest_replay=3)
    envs.reset()
    for _ in range(5):
        act(envs, 1)
    assert envs.remembered(0).tolist() == [1, 1, 1]


def test_actions_that_lead_past_an_end_or_are_none_do_not_come_back(plain):
    envs = make(plain, "CartPole")
    assert not envs.replay(0, 0, np.ones(100, np.int64))  # the pole falls before
    assert not envs.replay(0, 0, np.full(3, 9))
    assert not envs.replay(0, 0, np.zeros((3, 2), np.int64))
    assert not envs.replay(0, 0, np.zeros(3, np.float32))
    assert envs.replay(0, 0, np.zeros(3, np.int64))


def test_what_does_not_exist_is_refused(plain):
    envs = make(plain, "CartPole")
    with pytest.raises(IndexError, match="no env 1"):
        envs.get_state(1)
    with pytest.raises(ValueError, match="4 numbers"):
        envs.set_state(0, 0, 0, np.zeros(2))
    envs.close()
    envs.close()
    with pytest.raises(ValueError, match="closed"):
        envs.step()
    with pytest.raises(ValueError, match="closed"):
        envs.get_state(0)
