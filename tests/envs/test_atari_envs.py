"""Games played by ale-py's own vector env, against Gymnasium's preprocessing frame by frame."""

import gymnasium as gym
import numpy as np
import pytest

import surefoot
from surefoot.envs import atari_envs
from surefoot.envs.atari_envs import Atari
from surefoot.envs.backends import backend_of
from surefoot.envs.config import EnvConfig
from surefoot.envs.seeds import episode_seed
from surefoot.errors import UsageError
from surefoot.training.evaluation.agent import Agent
from surefoot.types import InEqualParts
from tests.contracts.test_exact_resume import Die, weights

pytest.importorskip("ale_py", reason="Atari is an extra")

SEED = 3


def made(game="Breakout", num_envs=2, threads=1, **settings):
    envs = Atari().make_many(EnvConfig(env=f"atari:{game}-v5", **settings), num_envs, SEED, native=True)
    envs.use_threads(threads, measure=False)
    return envs


class Begun(gym.Wrapper):
    """Begins an episode as ale-py's vector env does, in an env of Gymnasium's."""

    def __init__(self, env):
        super().__init__(env)
        self.ale_seed, self.frames = 0, 0

    def reset(self, **kwargs):
        env, ale = self.env.unwrapped, self.env.unwrapped.ale
        self.env.reset(seed=0)
        ale.setInt("random_seed", self.ale_seed)
        env.load_game()
        ale.reset_game()
        fires = "FIRE" in env.get_action_meanings()
        if fires:
            ale.act(1)
        for _ in range(self.frames - fires):
            ale.act(0)
        return ale.getScreenGrayscale(), {}


def by_gymnasium(game):
    from surefoot.envs.make import import_plugins

    import_plugins("ALE/")
    env = gym.make(f"ALE/{game}-v5", frameskip=1, obs_type="grayscale", disable_env_checker=True)
    begun = Begun(env)
    processed = gym.wrappers.AtariPreprocessing(begun, noop_max=0, frame_skip=4, screen_size=84)
    return begun, gym.wrappers.FrameStackObservation(processed, 4)


@pytest.mark.parametrize("game", ["Breakout", pytest.param("Pong", marks=pytest.mark.slow)])
def test_every_frame_and_reward_is_gymnasiums(game):
    envs, (begun, single) = made(game), by_gymnasium(game)
    generator, episode, ends = np.random.default_rng(0), 0, 0
    obs = envs.reset()

    def begin():
        begun.ale_seed = episode_seed(SEED, 0, episode)
        begun.frames = int(envs.games[0].ale.reset(options={"reset_mask": np.zeros(2, np.bool_)})[1]["frame_number"][0])
        return single.reset()[0]

    expected = begin()
    np.testing.assert_array_equal(obs[0], expected)
    for _ in range(160):
        action = generator.integers(envs.action_space.n, size=2)
        step, (expected, reward, over, _, _) = envs.step(action), single.step(action[0])
        assert (step.reward[0], step.terminated[0]) == (reward, over)
        if over:
            np.testing.assert_array_equal(step.final_obs[0], expected)
            episode, ends = episode + 1, ends + 1
            expected = begin()
        np.testing.assert_array_equal(step.obs[0], expected)
    assert ends > 0 or game == "Pong"
    envs.close()


def play(envs, steps, seed=0, begin=True):
    generator = np.random.default_rng(seed)
    if begin:
        envs.reset()
    return [envs.step(generator.integers(envs.action_space.n, size=envs.num_envs)) for _ in range(steps)]


def same(left, right):
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one.obs, other.obs)
        np.testing.assert_array_equal(one.reward, other.reward)
        np.testing.assert_array_equal(one.terminated, other.terminated)
        np.testing.assert_array_equal(one.life_lost, other.life_lost)


@pytest.mark.slow
def test_open_episodes_are_restored_and_go_on_as_before():
    envs = made(num_envs=3)
    last = play(envs, 150)[-1]
    state = envs.state_dict()
    assert len({0 if rows is None else len(rows) for rows in state["actions"]}) > 1
    again = made(num_envs=3, threads=2)
    envs.state_shape().check(state)
    assert again.load_state_dict(state, last.obs) == []
    np.testing.assert_array_equal(again.observations, last.obs)
    same(play(envs, 60, seed=1, begin=False), play(again, 60, seed=1, begin=False))
    assert again.state_dict()["episode"] == envs.state_dict()["episode"]


@pytest.mark.slow
def test_a_replay_that_arrives_elsewhere_begins_the_next_episode():
    envs = made()
    last = play(envs, 20)[-1]
    state, shown = envs.state_dict(), last.obs.copy()
    shown[1, 0, 0, 0] += 1
    assert made().load_state_dict(state, shown) == [1]
    state["actions"][0] = state["actions"][0][:-1]
    again = made()
    assert again.load_state_dict(state, shown) == [0, 1]
    assert again.episode_numbers() == [number + 1 for number in state["episode"]]
    assert again.state_dict()["steps"] == [0, 0]


@pytest.mark.slow
def test_a_lost_life_is_no_end_and_scores_are_whole():
    steps = play(made(), 200)
    lost = np.array([step.life_lost for step in steps])
    over = np.array([step.terminated for step in steps])
    assert lost.sum() >= 4 * over.sum() > 0
    assert not (lost & over).any()
    assert steps[0].reward.dtype == np.float64


def test_idle_games_wait_at_the_beginning_of_their_episode():
    envs, active = made(), np.array([True, False])
    first = envs.reset()
    for _ in range(3):
        step = envs.step(np.array([1, 1]), active)
    np.testing.assert_array_equal(step.obs[1], first[1])
    assert step.valid.tolist() == [True, False]
    assert envs.episode_numbers() == [0, 0]
    assert envs.state_dict()["steps"] == [3, 0]


@pytest.mark.slow
def test_episodes_are_cut_after_max_episode_steps():
    steps = play(made(max_episode_steps=5), 10)
    assert [bool(step.truncated.all()) for step in steps] == [False, False, False, False, True] * 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"env": "atari:Pong-v5", "frame_stack": 2}, "use ALE/Pong-v5"),
        ({"env": "atari:Pong-v5", "workers": 2}, "use ALE/Pong-v5"),
        ({"env": "atari:Pong-v5", "env_kwargs": {"obs_type": "ram"}}, "obs_type cannot be given"),
        ({"env": "atari:Pong-v5", "env_kwargs": {"full_action_space": 1}}, "must be true or false"),
        ({"env": "atari:Pong-v5", "env_kwargs": {"repeat_action_probability": 2}}, "a number from 0 to 1"),
        ({"env": "atari:Pomg-v5"}, "did you mean 'Pong-v5'"),
    ],
)
def test_what_cannot_be_applied_is_refused(settings, said):
    with pytest.raises(UsageError, match=said):
        Atari().make_many(EnvConfig(**settings), 2, 0, native=True)


def test_an_id_uses_the_preset_of_the_game_and_evaluates_in_gymnasiums_env():
    backend = backend_of("atari:Pong-v5")
    assert backend.preset_ids("atari:Pong-v5") == ("ALE/Pong-v5",)
    assert "atari:Pong-v5" in backend.ids()
    one, many = backend.make_one(EnvConfig(env="atari:Pong-v5")), made("Pong")
    assert (one.observation_space, one.action_space) == (many.observation_space, many.action_space)


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_bytes_of_an_uninterrupted_one(tmp_path):
    settings = {"total_steps": 192, "num_envs": 2, "rollout_length": 16, "num_minibatches": 2, "num_epochs": 1}
    settings |= {"checkpoint_every": 32, "seed": 0, "progress": False}
    whole = surefoot.train("atari:Breakout-v5", run_dir=tmp_path / "whole", **settings)
    with pytest.raises(KeyboardInterrupt):
        surefoot.train("atari:Breakout-v5", run_dir=tmp_path / "killed", callbacks=[Die(4)], **settings)
    resumed = surefoot.resume(tmp_path / "killed", progress=False)
    for name in ("policy.safetensors", "policy.json", "state.safetensors"):
        assert (weights(resumed) / name).read_bytes() == (weights(whole) / name).read_bytes()
    assert isinstance(surefoot.load(resumed), Agent)


@pytest.mark.parametrize(("num_envs", "parts"), [(2, 1), (31, 1), (32, 2), (66, 3), (100, 5), (128, 8), (1024, 8)])
def test_parts_are_of_one_size_and_depend_on_the_number_of_games_alone(num_envs, parts):
    assert atari_envs.number_of_parts(num_envs) == parts


@pytest.mark.slow
def test_parts_at_their_own_pace_play_as_all_together(monkeypatch):
    together = made(num_envs=4, max_episode_steps=30)
    monkeypatch.setattr(atari_envs, "LEAST", 2)
    apart, at_once = (made(num_envs=4, threads=2, max_episode_steps=30) for _ in range(2))
    assert isinstance(apart, InEqualParts)
    assert apart.parts == [slice(0, 2), slice(2, 4)]
    expected = play(together, 70)
    same(play(at_once, 70), expected)
    actions, counts = np.random.default_rng(0).integers(apart.action_space.n, size=(70, 4)), [0, 0]
    apart.reset()
    for part, own in enumerate(apart.parts):
        apart.send(part, actions[0, own])
    while min(counts) < 70:
        for part in apart.answered():
            step, own, whole = apart.take(part), apart.parts[part], expected[counts[part]]
            np.testing.assert_array_equal(step.obs, whole.obs[own])
            np.testing.assert_array_equal(step.reward, whole.reward[own])
            for index, last in step.final_obs.items():
                np.testing.assert_array_equal(last, whole.final_obs[own.start + index])
            counts[part] += 1
            if counts[part] < 70:
                apart.send(part, actions[counts[part], own])
    for envs in (apart, at_once):
        np.testing.assert_equal(envs.state_dict(), together.state_dict())
        envs.close()


@pytest.mark.slow
def test_steps_that_an_interruption_left_behind_do_not_reach_the_next_rollout():
    envs, fresh = made(), made()
    first = envs.reset()
    envs.send(0, np.array([1, 1]))
    again, _ = envs.reset(), fresh.reset()
    np.testing.assert_array_equal(again, fresh.reset())
    assert (again != first).any()


def test_a_limit_on_openmps_threads_that_games_obey_is_said(monkeypatch):
    monkeypatch.setattr(atari_envs, "usable_cores", lambda: 16)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    envs = Atari().make_many(EnvConfig(env="atari:Pong-v5"), 2, SEED, native=True)
    envs.use_threads(1, measure=True)
    assert "the games have 1 thread, because of OMP_NUM_THREADS; --threads 16 lets all cores play" in envs.notes[-1]
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert len(made().notes) == 1
