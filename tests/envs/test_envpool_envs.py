"""EnvPool: what its pools say of episodes' ends, by a pool of known behaviour and by the real one."""

import sys
from types import ModuleType

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import surefoot
from surefoot.algorithms import ALGORITHMS
from surefoot.cli.main import main
from surefoot.doctor import examine
from surefoot.envs.config import EnvConfig
from surefoot.envs.envpool_envs import PoolEnv, PoolEnvs, make_pool, told_apart
from surefoot.envs.make import make_env
from surefoot.errors import EnvError, UsageError
from surefoot.training.config.presets import automatic_preset
from surefoot.training.config.resolve import resolve
from surefoot.training.life.trust import foreign_code


class FakePool:
    """As EnvPool 1.2.5 behaves: the observation is (seed, env, episode, elapsed step); a step after the end resets.

    Episodes of env i end by themselves after 3 + i steps, or are cut at `max_episode_steps`. An end at or beyond the
    limit is called a truncation. The reset step repeats the last reward, as dm_control's tasks do.
    """

    made = []

    def __init__(self, num_envs, seed, max_episode_steps=2**31 - 1, players=1, lives=False, **kwargs):
        self.config = {"num_envs": num_envs, "max_episode_steps": max_episode_steps, "max_num_players": players}
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.action_space = gym.spaces.Discrete(2)
        self.seed, self.limit, self.lives, self.kwargs = seed % 1000, max_episode_steps, lives, kwargs
        self.episode, self.time = np.full(num_envs, -1), np.zeros(num_envs, np.int32)
        self.over = np.zeros(num_envs, bool)
        self.closed = False
        FakePool.made.append(self)

    def state(self):
        n = len(self.time)
        obs = np.stack([np.full(n, self.seed), np.arange(n), self.episode, self.time], 1).astype(np.float64)
        info = {"env_id": np.arange(n), "players": {"env_id": np.arange(n)}, "elapsed_step": self.time.copy()}
        if self.lives:  # two lives, the first lost after the second step
            info["lives"] = np.where(self.ended_itself, 0, np.where(self.time >= 2, 1, 2))
            info["terminated"] = self.ended_itself.astype(np.int32)
        return obs, info

    @property
    def ended_itself(self):
        return self.time >= 3 + np.arange(len(self.time))

    def reset(self):
        self.episode += 1
        self.time[:] = 0
        self.over[:] = False
        return self.state()

    def step(self, action):
        assert np.shape(action) == (len(self.time),)
        self.episode += self.over
        self.time = np.where(self.over, 0, self.time + 1).astype(np.int32)
        done = ~self.over & (self.ended_itself | (self.time >= self.limit))
        truncated = done & (self.time >= self.limit)
        self.over = done
        return (*self.split(self.state(), done, truncated),)

    def split(self, state, done, truncated):
        obs, info = state
        return obs, np.ones(len(done), np.float32), done & ~truncated, truncated, info

    def render(self):
        return np.zeros((1, 4, 6, 3), np.uint8)

    def close(self):
        self.closed = True


@pytest.fixture
def fake(monkeypatch):
    module = ModuleType("envpool")
    module.list_all_envs = lambda: ["Count-v1", "Lives-v5"]

    def make(task, *, env_type, num_envs, seed, **kwargs):
        assert env_type == "gymnasium"
        if "nonsense" in kwargs:
            raise TypeError("Config.__new__() got an unexpected keyword argument 'nonsense'\nand more")
        return FakePool(num_envs, seed, lives=task == "Lives-v5", **kwargs)

    module.make = make
    monkeypatch.setitem(sys.modules, "envpool", module)
    FakePool.made = []
    return module


def config(**settings):
    return EnvConfig(**{"env": "envpool:Count-v1", **settings})


def played(envs, steps):
    obs, draw = envs.reset(), np.random.default_rng(0)
    for _ in range(steps):
        step = envs.step(draw.integers(envs.action_space.n, size=envs.num_envs))
        yield obs, step
        obs = step.obs


def test_the_step_after_an_end_is_no_transition_and_its_repeated_reward_does_not_count(fake):
    steps = [step for _, step in played(PoolEnvs(config(), 2, 0), 6)]
    assert [step.valid.tolist() for step in steps] == [
        [True, True], [True, True], [True, True], [False, True], [True, False], [True, True]
    ]  # fmt: skip
    assert [step.terminated.tolist() for step in steps[2:4]] == [[True, False], [False, True]]
    assert not any(step.truncated.any() for step in steps)
    assert steps[2].final_obs[0][3] == 3
    assert steps[3].obs[0].tolist()[2:] == [1, 0]  # the next episode's first
    assert steps[3].start.tolist() == [True, False]


def test_an_end_by_the_clock_is_a_truncation_and_the_other_is_not(fake):
    steps = [step for _, step in played(PoolEnvs(config(max_episode_steps=4), 3, 0), 4)]
    assert steps[2].terminated.tolist() == [True, False, False]  # by itself, before the limit
    assert (steps[3].truncated | steps[3].terminated).tolist() == [False, True, True]
    assert steps[3].truncated.tolist() == [False, True, True]
    assert {i: row[3] for i, row in steps[3].final_obs.items()} == {1: 4, 2: 4}


@pytest.mark.parametrize(
    ("says", "info", "limit", "means"),
    [
        ((True, False), {"elapsed_step": [3]}, 5, (True, False)),
        ((False, True), {"elapsed_step": [5]}, 5, (False, True)),
        ((True, False), {"elapsed_step": [5]}, 5, (False, True)),  # told by the elapsed steps alone
        ((True, False), {"elapsed_step": [5]}, None, (True, False)),
        ((True, False), {"TimeLimit.truncated": [True]}, None, (False, True)),
        ((False, False), {"TimeLimit.truncated": [True], "elapsed_step": [5]}, 5, (False, False)),  # not over
        ((False, True), {"elapsed_step": [9]}, 7, (True, False)),  # a task that does not keep to the limit
        ((False, True), {"elapsed_step": [5], "lives": [0], "terminated": [1]}, 5, (True, False)),  # the game is over
        ((False, True), {"elapsed_step": [5], "lives": [2], "terminated": [0]}, 5, (False, True)),
        ((False, False), {"elapsed_step": [2]}, 5, (False, False)),
    ],
)
def test_ends_are_told_apart(says, info, limit, means):
    columns = {key: np.array(value) for key, value in info.items()}
    terminated, truncated = told_apart(np.array([says[0]]), np.array([says[1]]), columns, limit)
    assert (terminated.tolist(), truncated.tolist()) == ([means[0]], [means[1]])


def test_a_lost_life_is_learned_from_as_an_end_and_the_game_goes_on(fake):
    steps = [step for _, step in played(PoolEnvs(config(env="envpool:Lives-v5"), 1, 0), 6)]
    assert [bool(step.life_lost[0]) for step in steps] == [False, True, False, False, False, True]
    assert [bool(step.terminated[0]) for step in steps] == [False, False, True, False, False, False]


def test_seeds_follow_the_runs_and_a_resumed_run_does_not_see_its_first_episodes_again(fake):
    first, again, other = (PoolEnvs(config(), 2, seed).reset()[:, 0].tolist() for seed in (1, 1, 2))
    assert first == again != other
    envs = PoolEnvs(config(), 2, 1)
    state = envs.state_dict()
    resumed = PoolEnvs(config(), 2, 1)
    replaced = resumed.envs.pool
    assert resumed.load_state_dict(state, np.zeros((2, 4))) == [0, 1]
    assert replaced.closed
    assert resumed.observations[:, 0].tolist() != first
    assert resumed.state_dict() != state


def test_settings_and_keywords_reach_the_pool(fake):
    envs = PoolEnvs(config(env_kwargs={"num_threads": 2}, max_episode_steps=9), 3, 0)
    assert envs.envs.pool.kwargs == {"num_threads": 2}
    assert (envs.num_envs, envs.time_limit, envs.exact_seeds) == (3, 9, False)
    assert PoolEnvs(config(), 1, 0).time_limit is None
    assert envs.mode is AutoresetMode.NEXT_STEP


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env": "envpool:Cout-v1"}, "did you mean 'Count-v1'"),
        ({"env": "envpool:file.py:Env"}, "no task 'file.py:Env'"),
        ({"env_kwargs": {"nonsense": 1}}, "do not fit envpool:Count-v1: .*'nonsense'$"),
        ({"env_kwargs": {"players": 2}}, "2 players"),
        ({"env_kwargs": {"seed": 1}}, "set --seed"),
        ({"env_kwargs": {"batch_size": 1}}, "stepped together"),
        ({"env_kwargs": {"reward_clip": True}}, "--sign-rewards"),
        ({"env_kwargs": {"episodic_life": True}}, "lost life"),
        ({"wrappers": ("TimeAwareObservation",)}, "wrappers"),
        ({"frame_stack": 4}, "stack_num"),
        ({"workers": 2}, "num_threads"),
    ],
)
def test_what_a_pool_cannot_do_is_refused(fake, settings, message):
    with pytest.raises(UsageError, match=message):
        make_pool(config(**settings), 2, 0)


def test_a_pool_that_breaks_while_it_is_made_is_an_env_error(fake, monkeypatch):
    monkeypatch.setattr(fake, "make", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(EnvError, match="ZeroDivisionError while it was made"):
        make_pool(config(), 1, 0)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(UsageError, match=r'pip install "surefoot\[envpool\]"'):
        make_env(config())


def test_one_env_of_a_pool_has_the_episode_of_its_seed(fake):
    env = make_env(config(max_episode_steps=4))
    assert isinstance(env, PoolEnv)
    obs, info = env.reset(seed=7)
    assert obs.tolist() == [7, 0, 0, 0]
    assert info["elapsed_step"] == 0
    assert env.reset(seed=7)[0].tolist() == obs.tolist()
    assert env.reset()[0].tolist() == [7, 0, 1, 0]  # goes on with the pool's own
    assert env.spec.max_episode_steps == 4
    steps = [env.step(0) for _ in range(3)]
    assert [step[2:4] for step in steps] == [(False, False), (False, False), (True, False)]
    assert isinstance(steps[0][1], float)
    env.close()
    assert all(pool.closed for pool in FakePool.made)


def test_it_trains_evaluates_and_resumes_with_every_algorithm(fake, capsys):
    for algo in ALGORITHMS:
        settings = {"total_steps": 128, "num_envs": 2, "max_episode_steps": 4, "eval_episodes": 3, "progress": False}
        steps = {} if algo == "reinforce" else {"rollout_length": 8}
        run = surefoot.train("envpool:Count-v1", algo, seed=0, preset=None, **steps, **settings)
        assert run.result["eval"]["mean_length"] == 3  # pools of one: all are env 0
        assert all(3 <= row["episode_length"] <= 4 for row in run.metrics)
        again = surefoot.resume(run, total_steps=192, progress=False)  # an installed package needs no trust
        assert again.result["total_steps"] > run.metrics[0]["step"]
        assert "not exact" in (run.path / "log.txt").read_text()
        assert "could not be restored" in (run.path / "log.txt").read_text()


@pytest.mark.slow
def test_the_doctor_promises_no_exact_resume(fake):
    """Though a pool of one env, made anew with its seed, does play an episode again."""
    report = examine(config(), episodes=2)
    assert (report.numbers["deterministic"], report.numbers["exact_resume"]) == (True, False)
    assert [f.what for f in report.findings if "exact resume" in f.what] == [
        "exact resume: no (EnvPool seeds its episodes itself; a resumed run begins fresh ones)"
    ]


def test_presets_and_trust_of_pool_ids():
    assert automatic_preset("envpool:CartPole-v1", "ppo") == "CartPole-v1/ppo"
    assert automatic_preset("envpool:Pong-v5", "ppo") == "family/atari-ppo"
    assert automatic_preset("envpool:HalfCheetah-v4", "ppo") == "family/mujoco-ppo"
    assert automatic_preset("envpool:Count-v1", "ppo") is None
    assert foreign_code(resolve("envpool:Count-v1", overrides={"eval_env": "a:b"})) == []


def test_the_real_cartpole():
    pytest.importorskip("envpool")
    envs = PoolEnvs(EnvConfig(env="envpool:CartPole-v1", max_episode_steps=20), 4, 3)
    ends = {"terminated": 0, "truncated": 0}
    length = np.zeros(4, np.int64)
    for before, step in played(envs, 300):
        length += step.valid
        assert np.isfinite(step.obs).all()
        done = step.terminated | step.truncated
        assert (length[step.truncated] == 20).all()
        assert (length[step.terminated] <= 20).all()
        assert set(step.final_obs) == set(np.flatnonzero(done).tolist())
        for index, row in step.final_obs.items():
            assert abs(row - before[index]).max() < 3.0
            if step.terminated[index]:
                assert abs(row[2]) > 0.2 or abs(row[0]) > 2.4
        assert (abs(step.obs[step.start]) <= 0.05).all()  # where CartPole's episodes begin
        assert (step.reward[~step.valid] == 0).all()
        length[done] = 0
        for key in ends:
            ends[key] += int(getattr(step, key).sum())
    assert ends["terminated"] > 5
    assert ends["truncated"] > 5
    envs.close()


def test_the_real_atari_has_its_layout_and_whole_games():
    pytest.importorskip("envpool")
    envs = PoolEnvs(EnvConfig(env="envpool:Breakout-v5"), 1, 0)
    assert (envs.layout.shape, envs.layout.dtype) == ((4, 84, 84), np.uint8)
    lost = over = 0
    for _, step in played(envs, 450):
        lost += int(step.life_lost.sum())
        over += int(step.terminated.sum())
        if step.terminated.any():
            break
    assert (lost, over) == (4, 1)  # five lives: four are lost before the last
    envs.close()


@pytest.mark.slow
def test_the_real_one_on_the_command_line(capsys):
    pytest.importorskip("envpool")
    words = ["--total-steps", "2048", "--seed", "0", "--eval-episodes", "2", "--json"]
    assert main(["train", "envpool:CartPole-v1", *words]) == 0
    assert main(["doctor", "envpool:CartPole-v1", "--episodes", "2", "--json"]) == 0


def test_an_error_of_a_pool_names_its_task_and_its_step(fake, monkeypatch):
    envs = PoolEnvs(config(), 2, 0)
    envs.reset()
    monkeypatch.setattr(FakePool, "state", lambda self: 1 / 0)
    with pytest.raises(EnvError, match=r"step of envpool:Count-v1 \(seed \d+, step 1\) raised ZeroDivisionError"):
        envs.step(np.zeros(2, np.int64))
