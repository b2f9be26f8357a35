import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from surefoot.envs.gym_envs import GymEnvs, SeededEpisodes
from surefoot.envs.seeds import episode_seed
from surefoot.errors import EnvError, NonFiniteError, UsageError
from tests.helpers import BadEnv, NoiseEnv, ReusedBufferEnv, ScriptedEnv


def zeros(envs):
    return np.zeros(envs.num_envs, np.int64)


def play(envs, steps):
    """The steps of `steps` calls with action 0."""
    return [envs.step(zeros(envs)) for _ in range(steps)]


def first_observations(num_envs, run_seed, steps=30):
    """(env index, episode) -> its first observation."""
    envs = GymEnvs(NoiseEnv, num_envs, run_seed)
    episode = [0] * num_envs
    found = {(index, 0): tuple(obs) for index, obs in enumerate(envs.reset())}
    for step in play(envs, steps):
        for index in step.final_obs:
            episode[index] += 1
            found[index, episode[index]] = tuple(step.obs[index])
    return found


def test_an_episode_depends_on_run_seed_env_index_and_number_only():
    few, many = first_observations(2, run_seed=3), first_observations(5, run_seed=3)
    assert len(few) > 8
    assert few.items() <= many.items()
    assert len(set(many.values())) == len(many)
    assert not set(first_observations(2, run_seed=4).values()) & set(few.values())


def test_every_reset_has_the_seed_of_its_episode():
    envs = GymEnvs(lambda: ScriptedEnv(rewards=(1.0,)), 2, run_seed=9)
    envs.reset()
    play(envs, 2)
    assert envs.envs[1].unwrapped.seeds == [episode_seed(9, 1, episode) for episode in range(3)]


def test_a_seed_from_outside_does_not_replace_the_episodes_own():
    env = SeededEpisodes(ScriptedEnv(), run_seed=1, env_index=0)
    env.reset(seed=123)
    env.reset()
    assert env.unwrapped.seeds == [episode_seed(1, 0, 0), episode_seed(1, 0, 1)]


@pytest.mark.parametrize("env", [ScriptedEnv, ReusedBufferEnv])
def test_the_final_observation_is_the_true_last_one_and_obs_is_the_next_episodes_first(env):
    envs = GymEnvs(lambda: env(rewards=(1.0, 2.0)), 2, run_seed=0)
    assert envs.reset().tolist() == [[0.0, 0.0], [0.0, 0.0]]
    first, second, third = play(envs, 3)
    assert first.final_obs == {}
    assert first.obs.tolist() == [[0.0, 1.0], [0.0, 1.0]]
    assert {i: obs.tolist() for i, obs in second.final_obs.items()} == {0: [0.0, 2.0], 1: [0.0, 2.0]}
    assert second.obs.tolist() == [[1.0, 0.0], [1.0, 0.0]]
    assert second.final_info == {0: {"time": 2}, 1: {"time": 2}}
    assert third.obs.tolist() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize(("terminated", "truncated"), [(True, False), (False, True), (True, True)])
def test_terminated_and_truncated_stay_apart(terminated, truncated):
    envs = GymEnvs(lambda: ScriptedEnv((1.0, 2.5), terminated, truncated), 1, run_seed=0)
    envs.reset()
    first, second = play(envs, 2)
    assert not first.terminated.any()
    assert not first.truncated.any()
    assert (second.terminated.item(), second.truncated.item()) == (terminated, truncated)
    assert (first.reward.item(), second.reward.item()) == (1.0, 2.5)
    assert second.valid.all()


def test_rewards_are_float64_as_the_env_gave_them():
    envs = GymEnvs(lambda: ScriptedEnv((0.1,)), 1, run_seed=0)
    envs.reset()
    reward = envs.step(zeros(envs)).reward
    assert reward.dtype == np.float64
    assert reward.item() == 0.1


def test_each_env_gets_its_own_action():
    envs = GymEnvs(lambda: ScriptedEnv(action_space=spaces.Discrete(9)), 3, run_seed=0)
    envs.reset()
    envs.step(np.array([4, 5, 6]))
    assert [int(env.unwrapped.actions[0]) for env in envs.envs] == [4, 5, 6]


def test_inactive_envs_are_not_stepped():
    envs = GymEnvs(ScriptedEnv, 3, run_seed=0)
    envs.reset()
    step = envs.step(zeros(envs), active=np.array([True, False, True]))
    assert step.valid.tolist() == [True, False, True]
    assert step.reward.tolist() == [1.0, 0.0, 1.0]
    assert step.obs.tolist() == [[0.0, 1.0], [0.0, 0.0], [0.0, 1.0]]
    assert [len(env.unwrapped.actions) for env in envs.envs] == [1, 0, 1]


def test_steps_do_not_share_their_arrays():
    envs = GymEnvs(ScriptedEnv, 2, run_seed=0)
    start = envs.reset()
    first = envs.step(zeros(envs))
    kept = first.obs.copy()
    envs.step(zeros(envs))
    np.testing.assert_array_equal(first.obs, kept)
    assert not start.any()


def test_observations_have_the_type_of_the_space():
    class Float64(ScriptedEnv):
        def observation(self):
            return super().observation().astype(np.float64)

    envs = GymEnvs(Float64, 1, run_seed=0)
    assert envs.reset().dtype == np.float32
    assert envs.step(zeros(envs)).obs.dtype == np.float32


def test_the_time_limit_is_the_envs_own():
    assert GymEnvs(lambda: gym.make("CartPole-v1"), 1, 0).time_limit == 500
    assert GymEnvs(ScriptedEnv, 1, 0).time_limit is None


def test_the_time_limit_of_a_wrapped_env_without_a_spec_is_known():
    assert GymEnvs(lambda: gym.wrappers.TimeLimit(ScriptedEnv(), 2), 1, 0).time_limit == 2


def place(env_index, episode, step, run_seed=5):
    """How an error names where it happened."""
    seed = episode_seed(run_seed, env_index, episode)
    return rf"BadEnv \(env {env_index}, seed {seed}, episode {episode}, step {step}\)"


def bad_second_env(fault, **kwargs):
    """Env 0 behaves, env 1 has the fault."""
    kinds = iter([ScriptedEnv(**{k: v for k, v in kwargs.items() if k == "rewards"}), BadEnv(fault, **kwargs)])
    return GymEnvs(lambda: next(kinds), 2, run_seed=5)


FAULTS = pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("raise", EnvError, "ZeroDivisionError: the simulator broke"),
        ("wrong_shape", EnvError, r"shape \(3,\).*\(2,\)"),
        ("scalar_obs", EnvError, r"shape \(\).*\(2,\)"),
        ("nan_obs", NonFiniteError, "observation.*not finite.*nan"),
        ("inf_obs", NonFiniteError, "observation.*not finite.*inf"),
    ],
)


@FAULTS
@pytest.mark.parametrize(("in_episode", "at"), [(0, 0), (0, 2), (1, 0), (1, 1)])
def test_an_error_names_env_index_seed_episode_and_step(fault, error, words, in_episode, at):
    envs = bad_second_env(fault, at=at, in_episode=in_episode)

    def run():
        envs.reset()
        play(envs, 6)

    with pytest.raises(error, match=place(1, in_episode, at)) as caught:
        run()
    assert caught.match(f"(?s){words}")
    if fault == "raise":
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("fault", "error", "what"), [("raise", EnvError, "step of"), ("wrong_shape", EnvError, "returned")]
)
def test_an_error_at_an_episodes_last_step_names_that_step(fault, error, what):
    envs = bad_second_env(fault, at=3)
    envs.reset()
    with pytest.raises(error, match=place(1, 0, 3)):
        play(envs, 3)


@pytest.mark.parametrize("fault", ["nan_reward", "nan_obs"])
def test_a_non_finite_value_at_an_episodes_last_step_names_that_step(fault):
    envs = bad_second_env(fault, at=3)
    envs.reset()
    with pytest.raises(NonFiniteError, match=place(1, 0, 3)):
        play(envs, 3)


def test_a_non_finite_final_observation_is_found():
    envs = bad_second_env("nan_obs", at=3)
    envs.reset()
    with pytest.raises(NonFiniteError, match=r"final observation of BadEnv.*env 1"):
        play(envs, 3)


def test_a_non_finite_reward_is_named():
    envs = bad_second_env("nan_reward", at=2)
    envs.reset()
    with pytest.raises(NonFiniteError, match=f"reward of {place(1, 0, 2)} is not finite: nan"):
        play(envs, 2)


def test_an_old_step_of_four_values_is_an_error_of_the_env():
    envs = bad_second_env("four_values", at=1)
    envs.reset()
    with pytest.raises(EnvError, match=place(1, 0, 1)):
        play(envs, 1)


def test_observations_of_another_kind_of_number_are_refused():
    with pytest.raises(EnvError, match=r"complex128.*float32"):
        GymEnvs(lambda: BadEnv("wrong_dtype", at=0), 1, 0).reset()


def test_a_registered_env_is_named_by_its_id():
    env = SeededEpisodes(gym.make("CartPole-v1"), run_seed=0, env_index=3)
    env.reset()
    assert str(env).startswith("CartPole-v1 (env 3, seed ")


def test_envs_already_made_are_closed_when_a_later_one_fails():
    made, closed = [], []

    class Closing(ScriptedEnv):
        def close(self):
            closed.append(self)

    def make():
        if len(made) == 2:
            raise ValueError("no licence left")
        made.append(Closing())
        return made[-1]

    with pytest.raises(ValueError, match="licence"):
        GymEnvs(make, 3, run_seed=0)
    assert closed == made
    assert len(made) == 2


def test_close_closes_every_env():
    closed = []

    class Closing(ScriptedEnv):
        def close(self):
            closed.append(self)

    GymEnvs(Closing, 3, run_seed=0).close()
    assert len(closed) == 3


def test_an_action_space_with_crossed_bounds_is_refused():
    space = spaces.Box(-1.0, 1.0, (2,))
    space.low, space.high = space.high, space.low
    with pytest.raises(UsageError, match="lower bound above"):
        GymEnvs(lambda: ScriptedEnv(action_space=space), 1, 0)


def test_open_episodes_come_back_by_replaying_their_actions():
    rng = np.random.default_rng(0)
    first = GymEnvs(lambda: gym.make("CartPole-v1"), 3, 5)
    first.reset()
    for _ in range(40):
        obs = first.step(rng.integers(2, size=3)).obs
    again = GymEnvs(lambda: gym.make("CartPole-v1"), 3, 5)
    assert again.load_state_dict(first.state_dict(), obs) == []
    for _ in range(40):
        action = rng.integers(2, size=3)
        np.testing.assert_array_equal(first.step(action).obs, again.step(action).obs)


def test_an_episode_that_does_not_come_back_is_started_afresh():
    first = GymEnvs(lambda: gym.make("CartPole-v1"), 2, 5)
    first.reset()
    obs = first.step(np.array([0, 1])).obs
    obs[1] += 1.0
    again = GymEnvs(lambda: gym.make("CartPole-v1"), 2, 5)
    assert again.load_state_dict(first.state_dict(), obs) == [1]
    assert again.envs[1].steps == 0
    assert again.envs[1].episode == first.envs[1].episode + 1
    np.testing.assert_array_equal(again.observations[0], obs[0])


def test_a_life_is_lost_where_info_says_so_and_not_where_it_denies_it():
    class Lives(ScriptedEnv):
        def step(self, action):
            *rest, info = super().step(action)
            return *rest, {**info, "life_lost": np.bool_(self.time == 2)}

    envs = GymEnvs(lambda: Lives(rewards=(1.0,) * 4), 2, 0)
    envs.reset()
    lost = [envs.step(np.zeros(2, np.int64)).life_lost for _ in range(3)]
    assert [None if x is None else x.tolist() for x in lost] == [None, [True, True], None]
