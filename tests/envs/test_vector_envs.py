import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from surefoot.envs.gym_envs import GymEnvs, SeededEpisodes
from surefoot.envs.seeds import derive_seed
from surefoot.envs.tensor_envs import TensorEnvs
from surefoot.envs.vector_envs import VectorEnvs
from surefoot.errors import EnvError, NonFiniteError, SurefootError, UsageError
from tests.helpers import BadEnv, NoiseEnv, ScriptedEnv

MODES = pytest.mark.parametrize("mode", list(AutoresetMode))
NUM_ENVS = 3


def cart_pole():
    return gym.make("CartPole-v1")


def short_cart_pole():
    return gym.make("CartPole-v1", max_episode_steps=7)


def vector(make, mode, num_envs=NUM_ENVS, run_seed=0, **kwargs):
    makers = [lambda i=i: SeededEpisodes(make(), run_seed, i) for i in range(num_envs)]
    return VectorEnvs(SyncVectorEnv(makers, autoreset_mode=mode, **kwargs), run_seed)


def transitions(envs, count):
    """Per env, its first `count` transitions: obs, action, reward, ends, the observation that really followed.

    The k-th transition of env i has the k-th action of script i, whatever steps that are none lie between.
    """
    script = np.random.default_rng(1).integers(0, 2, size=(envs.num_envs, count + 1))
    found = [[] for _ in range(envs.num_envs)]
    obs = envs.reset()
    while min(map(len, found)) < count:
        action = np.array([script[i, min(len(found[i]), count)] for i in range(envs.num_envs)])
        step = envs.step(action)
        for i in np.flatnonzero(step.valid):
            following = step.final_obs.get(i, step.obs[i])
            ends = bool(step.terminated[i]), bool(step.truncated[i])
            row = (obs[i].tolist(), int(action[i]), float(step.reward[i]), *ends, following.tolist())
            assert (i in step.final_obs) == any(ends)
            found[i].append(row)
        obs = step.obs
    return [rows[:count] for rows in found]


@MODES
@pytest.mark.parametrize("make", [cart_pole, short_cart_pole, NoiseEnv])
def test_every_mode_gives_the_episodes_of_our_own_envs(mode, make):
    own = transitions(GymEnvs(make, NUM_ENVS, run_seed=0), 80)
    assert transitions(vector(make, mode), 80) == own
    ends = {row[3:5] for rows in own for row in rows}
    assert (
        ends
        == {
            cart_pole: {(False, False), (True, False)},
            short_cart_pole: {(False, False), (False, True)},
            NoiseEnv: {(False, False), (True, False), (False, True)},
        }[make]
    )


@MODES
def test_a_vector_env_that_reuses_its_arrays_gives_the_same_episodes(mode):
    assert transitions(vector(NoiseEnv, mode, copy=False), 40) == transitions(vector(NoiseEnv, mode), 40)


class ReusingVectorEnv(SyncVectorEnv):
    """Hands out its own arrays, which the next step or reset overwrites."""

    def step(self, actions):
        *_, info = super().step(actions)
        return self._observations, self._rewards, self._terminations, self._truncations, info


@MODES
def test_a_step_keeps_its_arrays_whatever_the_vector_env_does_with_them(mode):
    makers = [lambda i=i: SeededEpisodes(NoiseEnv(), 0, i) for i in range(NUM_ENVS)]
    reusing = VectorEnvs(ReusingVectorEnv(makers, autoreset_mode=mode, copy=False), 0)
    plain = vector(NoiseEnv, mode)
    reusing.reset(), plain.reset()
    action = np.zeros(NUM_ENVS, np.int64)
    for ours, theirs in [(reusing.step(action), plain.step(action)) for _ in range(20)]:
        for name in ("obs", "reward", "terminated", "truncated", "valid"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def test_next_step_marks_the_reset_as_no_transition():
    envs = vector(lambda: ScriptedEnv(rewards=(1.0, 2.0)), AutoresetMode.NEXT_STEP, num_envs=1)
    envs.reset()
    steps = [envs.step(np.zeros(1, np.int64)) for _ in range(6)]
    assert [bool(s.valid[0]) for s in steps] == [True, True, False, True, True, False]
    assert [bool(s.terminated[0]) for s in steps] == [False, True, False, False, True, False]
    assert [list(s.final_obs) for s in steps] == [[], [0], [], [], [0], []]
    assert steps[1].final_obs[0].tolist() == [0.0, 2.0]
    assert steps[2].obs.tolist() == [[1.0, 0.0]]


def test_in_next_step_mode_only_the_env_that_ended_is_invalid():
    lengths = iter([(1.0,), (1.0, 1.0, 1.0)])
    envs = vector(lambda: ScriptedEnv(rewards=next(lengths)), AutoresetMode.NEXT_STEP, num_envs=2)
    envs.reset()
    valid = [envs.step(np.zeros(2, np.int64)).valid.tolist() for _ in range(4)]
    assert valid == [[True, True], [False, True], [True, True], [False, False]]


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_the_other_modes_have_no_invalid_step(mode):
    envs = vector(lambda: ScriptedEnv(rewards=(1.0, 2.0)), mode)
    envs.reset()
    steps = [envs.step(np.zeros(NUM_ENVS, np.int64)) for _ in range(6)]
    assert all(s.valid.all() for s in steps)
    assert steps[1].final_obs[2].tolist() == [0.0, 2.0]
    assert steps[1].obs.tolist() == [[1.0, 0.0]] * NUM_ENVS


def test_a_reset_clears_the_pending_fake_step():
    envs = vector(lambda: ScriptedEnv(rewards=(1.0,)), AutoresetMode.NEXT_STEP, num_envs=1)
    envs.reset()
    assert envs.step(np.zeros(1, np.int64)).terminated.all()
    envs.reset()
    assert envs.step(np.zeros(1, np.int64)).valid.all()


@MODES
def test_the_info_of_an_episodes_last_step_is_kept(mode):
    envs = vector(lambda: ScriptedEnv(rewards=(1.0, 2.0)), mode)
    envs.reset()
    first, second = (envs.step(np.zeros(NUM_ENVS, np.int64)) for _ in range(2))
    assert first.final_info == {}
    assert {i: int(info["time"]) for i, info in second.final_info.items()} == {0: 2, 1: 2, 2: 2}


@MODES
def test_inactive_envs_are_marked_invalid(mode):
    envs = vector(ScriptedEnv, mode)
    envs.reset()
    active = np.array([True, False, True])
    assert envs.step(np.zeros(NUM_ENVS, np.int64), active).valid.tolist() == [True, False, True]
    assert active.tolist() == [True, False, True]


@pytest.mark.parametrize("metadata", [{}, {"autoreset_mode": None}, {"autoreset_mode": "whenever"}])
def test_an_undeclared_mode_is_refused_with_the_fix(metadata):
    class Undeclared(VectorEnv):
        num_envs = 1

    Undeclared.metadata = metadata
    with pytest.raises(UsageError, match=r"metadata\['autoreset_mode'\]"):
        VectorEnvs(Undeclared(), 0)


def test_same_step_without_a_final_observation_is_refused():
    envs = vector(lambda: ScriptedEnv(rewards=(1.0,)), AutoresetMode.NEXT_STEP)
    envs.mode = AutoresetMode.SAME_STEP
    envs.reset()
    with pytest.raises(UsageError, match="final_obs"):
        envs.step(np.zeros(NUM_ENVS, np.int64))


@pytest.mark.parametrize("given", [None, np.zeros((3, 5)), [{}, {}, {}]])
def test_a_final_observation_that_is_none_names_its_env(given):
    class Odd(SyncVectorEnv):
        def step(self, actions):
            *rest, info = super().step(actions)
            return *rest, {**info, "final_obs": [None] * 3 if given is None else given}

    envs = VectorEnvs(Odd([lambda: ScriptedEnv(rewards=(1.0,))] * 3, autoreset_mode=AutoresetMode.SAME_STEP), 0)
    envs.reset()
    with pytest.raises(EnvError, match=r"index 0: info\['final_obs'\] has no observation of the env's space"):
        envs.step(np.zeros(3, np.int64))


@pytest.mark.parametrize("form", ["dicts", "array", "none"])
def test_final_infos_of_older_envs_are_read(form):
    class Older(SyncVectorEnv):
        def step(self, actions):
            *rest, info = super().step(actions)
            each = [{"height": 7.0}, None, {"height": 9.0}]
            found = {"dicts": each, "array": np.array(each, object), "none": None}[form]
            return *rest, {**info, "final_info": found}

    envs = VectorEnvs(Older([lambda: ScriptedEnv(rewards=(1.0,))] * 3, autoreset_mode=AutoresetMode.SAME_STEP), 0)
    envs.reset()
    found = envs.step(np.zeros(3, np.int64)).final_info
    assert found == ({0: {}, 1: {}, 2: {}} if form == "none" else {0: {"height": 7.0}, 1: {}, 2: {"height": 9.0}})


class Pixels(VectorEnv):
    """Bytes, says its space."""

    def __init__(self, dtype):
        self.dtype, self.num_envs, self.metadata = dtype, 2, {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = gym.spaces.Box(0, 255, (3,), np.uint8)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, 2)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, 2)

    def reset(self, *, seed=None, options=None):
        return np.full((2, 3), 0.7).astype(self.dtype), {}


@pytest.mark.parametrize("tensors", [False, True])
def test_floats_are_not_cut_to_the_bytes_of_a_space(tensors):
    def first(dtype):
        envs = Pixels(dtype)
        obs, info = envs.reset()
        begun = (torch.from_numpy(obs) if tensors else obs), info
        return (TensorEnvs(envs, begun) if tensors else VectorEnvs(envs, 0, begun)).reset()

    assert first(np.uint8).shape == (2, 3)
    assert first(np.bool_).shape == (2, 3)
    for wrong in ("float32", "float64", "int32"):
        with pytest.raises(EnvError, match=f"returned observations of {wrong}; its space says uint8"):
            first(wrong)


def test_the_first_reset_is_seeded_and_later_ones_go_on():
    envs = VectorEnvs(SyncVectorEnv([ScriptedEnv] * 2), run_seed=4)
    envs.reset()
    envs.reset()
    seed = derive_seed(4, "vector")
    assert [env.seeds for env in envs.envs.envs] == [[seed, None], [seed + 1, None]]


class Raising(SyncVectorEnv):
    """A vector env of somebody's, one of whose methods raises when it is called for the nth time."""

    def __init__(self, method, at, error):
        super().__init__([ScriptedEnv] * 2, autoreset_mode=AutoresetMode.DISABLED)
        self.calls = {"reset": 0, "step": 0, "close": 0}
        self.fault = (method, at, error)

    def called(self, name):
        self.calls[name] += 1
        if (name, self.calls[name]) == self.fault[:2]:
            raise self.fault[2]

    def reset(self, **kwargs):
        self.called("reset")
        return super().reset(**kwargs)

    def step(self, actions):
        self.called("step")
        return super().step(actions)

    def close(self):
        self.called("close")


def play(envs, steps=6):
    envs.reset()
    for _ in range(steps):
        envs.step(np.zeros(2, np.int64))
    envs.close()


@pytest.mark.parametrize(
    ("method", "at", "where"),
    [("reset", 1, "step 0"), ("step", 2, "step 2"), ("reset", 2, "step 3"), ("close", 1, "step 6")],
)
def test_an_error_of_the_vector_env_says_what_was_going_on(method, at, where):
    mine = KeyError("mine")
    expected = (
        rf"{method} of Raising\(num_envs=2\) \(seed {derive_seed(4, 'vector')}, {where}\) raised KeyError: 'mine'"
    )
    with pytest.raises(EnvError, match=expected) as caught:
        play(VectorEnvs(Raising(method, at, mine), 4))
    assert caught.value.__cause__ is mine


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UsageError("do this"), SurefootError("ours")])
@pytest.mark.parametrize("method", ["reset", "step"])
def test_interrupts_and_our_own_errors_go_through(error, method):
    with pytest.raises(type(error)) as caught:
        play(VectorEnvs(Raising(method, 1, error), 0))
    assert caught.value is error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda obs, reward, ended, cut, info: (obs, reward, ended, info),
            "step of .* returned 4 values; it must return five",
        ),
        (lambda obs, *rest: (obs[:, :1], *rest), "returned observations that are not in its space"),
        (lambda obs, *rest: (obs.astype(complex), *rest), "an observation is of complex128; its space says float32"),
        (lambda obs, reward, *rest: (obs, reward[:, None], *rest), r"rewards of the shape \(2, 1\); it must be \(2,\)"),
        (lambda obs, reward, *rest: (obs, ["a", "b"], *rest), "rewards that are not numbers"),
        (lambda obs, reward, ended, *rest: (obs, reward, ended[:1], *rest), r"terminated of the shape \(1,\)"),
    ],
)
def test_what_a_vector_env_must_not_return(change, message):
    class Wrong(SyncVectorEnv):
        def step(self, actions):
            return change(*super().step(actions))

    envs = VectorEnvs(Wrong([ScriptedEnv] * 2), 0)
    envs.reset()
    with pytest.raises(EnvError, match=message):
        envs.step(np.zeros(2, np.int64))


@MODES
@pytest.mark.parametrize(("fault", "what"), [("nan_obs", "observation"), ("nan_reward", "reward")])
@pytest.mark.parametrize("at", [2, 3])
def test_non_finite_values_name_the_env(mode, fault, what, at):
    kinds = iter([ScriptedEnv(), BadEnv(fault, at=at)])
    envs = vector(lambda: next(kinds), mode, num_envs=2)
    envs.reset()
    for _ in range(at - 1):
        envs.step(np.zeros(2, np.int64))
    with pytest.raises(NonFiniteError, match=f"{what} of vector env, index 1"):
        envs.step(np.zeros(2, np.int64))


def test_a_non_finite_first_observation_is_found_at_reset():
    envs = vector(lambda: BadEnv("nan_obs", at=0), AutoresetMode.SAME_STEP, num_envs=1)
    with pytest.raises(NonFiniteError):
        envs.reset()


def test_spaces_and_time_limit_are_those_of_one_env():
    envs = VectorEnvs(gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"), run_seed=0)
    assert envs.observation_space.shape == (4,)
    assert envs.action_space == gym.spaces.Discrete(2)
    assert (envs.num_envs, envs.time_limit, envs.exact_seeds) == (2, 500, False)
    envs.close()
    assert envs.envs.closed


@MODES
def test_lost_lives_count_at_transitions_that_end_nothing(mode):
    class Careless(ScriptedEnv):
        def reset(self, **kwargs):
            return super().reset(**kwargs)[0], {"life_lost": True}

        def step(self, action):
            *rest, info = super().step(action)
            return *rest, {**info, "life_lost": self.time != 1}

    envs = vector(Careless, mode, num_envs=1)
    envs.reset()
    lost = [envs.step(np.zeros(1, np.int64)).life_lost for _ in range(4)]
    # Three steps an episode: the second loses a life, the third is the end; the fourth is a reset or a first step.
    assert [bool(x is not None and x[0]) for x in lost] == [False, True, False, False]


class MethodMasked(ScriptedEnv):
    """Only the action (time mod 2) is legal; said by a method alone."""

    def action_masks(self):
        return np.arange(2) == self.time % 2


@MODES
def test_masks_of_a_method(mode):
    envs = vector(MethodMasked, mode)
    assert envs.layout.mask_size == 2
    row = envs.reset()
    for _ in range(7):
        time = row[:, 1].astype(int)  # of the observation (episode, step)
        legal = row[:, 2:].argmax(1)
        alive = ~envs._ended
        np.testing.assert_array_equal(legal[alive], time[alive] % 2)
        row = envs.step(legal).obs


def test_a_vector_env_s_own_masks_are_taken():
    class Own(SyncVectorEnv):
        def action_masks(self):
            return np.array([[True, False]] * self.num_envs)

    envs = VectorEnvs(Own([cart_pole] * 2, autoreset_mode=AutoresetMode.SAME_STEP), 0)
    np.testing.assert_array_equal(envs.reset()[:, 4:], [[1, 0], [1, 0]])
