"""Evaluation plays a fixed list of episodes, to their end."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import surefoot
from surefoot.api import evaluate_run
from surefoot.envs.config import EnvConfig
from surefoot.envs.make import make_env
from surefoot.errors import EnvError, NonFiniteError, UsageError
from surefoot.policies.config import PolicyConfig
from surefoot.training.build.parts import initial_policy
from surefoot.training.evaluation import evaluate
from surefoot.training.evaluation.agent import Agent
from surefoot.training.evaluation.evaluate import EnvMaker, env_maker, evaluate_agent
from tests import parallel_worlds
from tests.building import make_policy
from tests.envs_for_learning import Recall


class Lottery(gym.Env):
    """An episode's length is drawn from its seed; every step pays 1."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 60))
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(4, np.float32), 1.0, self.left == 0, False, {}


@pytest.fixture
def agent():
    return Agent(make_policy())


@pytest.mark.parametrize("num_envs", [1, 3, 7, 32])
def test_the_episodes_do_not_depend_on_how_many_envs_play_them(agent, num_envs):
    found = evaluate_agent(agent, Lottery, episodes=20, num_envs=num_envs)
    assert found.returns == evaluate_agent(agent, Lottery, episodes=20, num_envs=20).returns


def test_short_episodes_are_not_preferred(agent):
    """Counting the first 40 episodes to finish on 20 envs would favour short ones; a fixed list does not."""
    found = evaluate_agent(agent, Lottery, episodes=400, num_envs=20)
    assert found.mean_return == pytest.approx(30.0, abs=2.5)  # lengths are uniform on 1..59
    assert found.episodes == len(found.returns) == 400


def test_the_step_budget_ends_an_env_without_a_time_limit(agent):
    class Endless(Lottery):
        def step(self, action):
            return np.zeros(4, np.float32), 1.0, False, False, {}

    found = evaluate_agent(agent, Endless, episodes=3, max_steps=50)
    assert (found.mean_return, found.cut) == (50.0, 3)


def test_episodes_that_are_asked_for_are_none_of_a_runs_own():
    """Not those that a run of the same seed trained on, chose its best by, tried for its target with, or reports."""
    seeds = []

    class Listens(Lottery):
        def reset(self, *, seed=None, options=None):
            seeds.append(seed)
            return super().reset(seed=seed, options=options)

    how = {"preset": "none", "progress": False, "num_envs": 2, "rollout_length": 16, "total_steps": 128}
    how |= {"num_minibatches": 1, "eval_episodes": 5, "eval_every": 32, "selection_episodes": 5, "target_return": 1e6}
    run = surefoot.train(Listens, seed=0, max_episode_steps=50, **how)
    own = set(seeds)
    seeds.clear()
    surefoot.evaluate(surefoot.load(run), Listens, episodes=100, seed=0)
    assert len(own) >= 20
    assert len(set(seeds)) == 100
    assert not own & set(seeds)


def test_the_same_episodes_are_asked_for_by_name_and_by_run(tmp_path):
    how = {"preset": "none", "progress": False, "num_envs": 2, "rollout_length": 16, "total_steps": 64}
    run = surefoot.train("CartPole-v1", seed=0, num_minibatches=1, eval_episodes=3, run_dir=tmp_path / "run", **how)
    by_run = evaluate_run(run, episodes=4, seed=7)[0]
    assert surefoot.evaluate(surefoot.load(run), "CartPole-v1", episodes=4, seed=7) == by_run
    assert evaluate_run(run, episodes=3)[0].summary() == run.result["eval"]


def test_another_seed_plays_other_episodes(agent):
    first, second = (evaluate_agent(agent, Lottery, episodes=10, seed=s).returns for s in (0, 1))
    assert first != second


def test_an_env_that_raises_is_named(agent):
    class Broken(Lottery):
        def step(self, action):
            raise RuntimeError("wheel came off")

    with pytest.raises(
        EnvError, match=r"evaluation: step of Broken \(env 0, seed \d+, episode 0, step 1\) raised RuntimeError"
    ):
        evaluate_agent(agent, Broken, episodes=2)


def test_public_evaluate_takes_ids_and_factories(agent):
    policy = make_policy(spaces.Discrete(2))
    assert surefoot.evaluate(Agent(policy), "CartPole-v1", episodes=3).episodes == 3
    assert surefoot.evaluate(agent, Lottery, episodes=3).episodes == 3
    with pytest.raises(UsageError, match="does not take nonsense"):
        surefoot.evaluate(agent, Lottery, nonsense=1)
    with pytest.raises(UsageError, match="at least 1"):
        surefoot.evaluate(agent, Lottery, episodes=0)


def test_evaluation_does_not_move_the_normaliser():
    agent = Agent(make_policy(normalize_observations=True))
    before = {name: tensor.clone() for name, tensor in agent.policy.state_dict().items()}
    evaluate_agent(agent, Lottery, episodes=5)
    for name, tensor in agent.policy.state_dict().items():
        assert (tensor == before[name]).all(), name


def agent_for(observations, actions, critic=True, **policy):
    return Agent(initial_policy(observations, actions, PolicyConfig(**policy), 3, critic=critic, masked=False))


def classic_agent(env, **policy):
    one = make_env(EnvConfig(env=env))
    return agent_for(one.observation_space, one.action_space, critic=False, **policy)


class TestNativeEnvs:
    """What evaluation finds does not depend on whether Gymnasium's envs or their native twins are played in."""

    @pytest.mark.parametrize("memory", ["none", "gru"])
    @pytest.mark.parametrize(
        "env", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0"]
    )
    def test_the_same_to_the_last_bit(self, env, memory, monkeypatch):
        agent, config = classic_agent(env, memory=memory), EnvConfig(env=env, max_episode_steps=60)
        for how in ({"episodes": 10}, {"episodes": 9, "num_envs": 4, "max_steps": 30, "deterministic": False}):
            theirs = evaluate_agent(agent, EnvMaker(config, native=False), seed=2, **how)
            assert evaluate_agent(agent, lambda: make_env(config), seed=2, **how) == theirs
            with monkeypatch.context() as patch:
                patch.setattr(EnvMaker, "__call__", lambda _: pytest.fail("an env of Gymnasium's"))
                assert evaluate_agent(agent, EnvMaker(config), seed=2, **how) == theirs

    def test_more_episodes_than_envs(self, monkeypatch):
        agent, config = classic_agent("CartPole-v1"), EnvConfig(env="CartPole-v1")
        found = [evaluate_agent(agent, EnvMaker(config, native=native), episodes=150) for native in (True, False)]
        assert found[0] == found[1]
        assert found[0].episodes == 150
        assert EnvMaker(config).at_once > EnvMaker(EnvConfig(env="LunarLander-v3")).at_once == evaluate.AT_ONCE

    def test_an_agent_of_another_env_gets_gymnasiums_own_error(self):
        with pytest.raises(EnvError, match="evaluation: "):
            evaluate_agent(classic_agent("Acrobot-v1"), EnvMaker(EnvConfig(env="CartPole-v1")), episodes=2)

    def test_a_policy_that_is_not_finite_is_named(self):
        agent = classic_agent("Pendulum-v1")
        with np.errstate(invalid="ignore"):
            for parameter in agent.policy.parameters():
                parameter.data.fill_(np.nan)
        with pytest.raises(NonFiniteError, match="the policy's outputs are not finite"):
            evaluate_agent(agent, EnvMaker(EnvConfig(env="Pendulum-v1")), episodes=2)

    def test_noise_that_is_held_through_an_episode_is_held_in_both(self):
        agent, config = classic_agent("Pendulum-v1", std="gsde"), EnvConfig(env="Pendulum-v1", max_episode_steps=30)
        how = {"episodes": 7, "num_envs": 3, "deterministic": False}
        native, theirs = (evaluate_agent(agent, EnvMaker(config, native=native), **how) for native in (True, False))
        assert native == theirs

    def test_workers_are_not_for_evaluation(self):
        config = EnvConfig(env="CartPole-v1", workers=2, restart_workers=1)
        assert EnvMaker(config).native_episodes(classic_agent("CartPole-v1"), 2, 0) is not None


class TestNumbersOfEarlierVersions:
    """Written down before one loop took the place of three: the same seeds must go on giving the same returns."""

    def test_gymnasium_envs(self, agent):
        found = evaluate_agent(agent, Lottery, episodes=50, num_envs=7, deterministic=False)
        assert found.returns[:8] == (35.0, 29.0, 14.0, 8.0, 54.0, 4.0, 47.0, 2.0)

    def test_memory(self):
        own = agent_for(Recall.observation_space, Recall.action_space, memory="lstm")
        found = evaluate_agent(own, Recall, episodes=12, num_envs=6, deterministic=False)
        assert found.returns == (0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0)

    @pytest.mark.parametrize("native", [True, False])
    def test_native_envs_and_their_originals(self, native):
        make = env_maker(EnvConfig(env="CartPole-v1", max_episode_steps=60), native=native)
        how = {"num_envs": 9, "seed": 4, "deterministic": False}
        found = evaluate_agent(classic_agent("CartPole-v1", memory="gru"), make, episodes=40, **how)
        assert found.lengths[:12] == (19, 20, 17, 14, 15, 10, 14, 13, 21, 26, 27, 13)

    @pytest.mark.parametrize("native", [True, False])
    def test_continuous_actions_and_a_limit(self, native):
        make = env_maker(EnvConfig(env="Pendulum-v1", max_episode_steps=60), native=native)
        found = evaluate_agent(classic_agent("Pendulum-v1"), make, episodes=40, num_envs=9, seed=4, max_steps=50)
        assert found.returns[:3] == pytest.approx((-396.9863628486844, -323.4191511363891, -351.1947666374251), 1e-4)
        assert found.cut == 40

    @pytest.mark.parametrize(
        ("world", "max_steps", "returns", "lengths"),
        [
            ("RandomWorld", None, (19 / 3, 15.0, 44 / 3, 19.0, 6.0, 15.0), (6, 7, 7, 7, 6, 7)),
            ("Latecomer", 3, (17 / 3,) * 6, (3,) * 6),
        ],
    )
    def test_several_agents(self, world, max_steps, returns, lengths):
        one = getattr(parallel_worlds, world)()
        own = agent_for(one.observation_space("a"), one.action_space("a"), memory="gru")
        make = env_maker(EnvConfig(env=f"pettingzoo:{parallel_worlds.__file__}:{world}"))
        how = {"num_envs": 4, "seed": 1, "deterministic": False, "max_steps": max_steps}
        found = evaluate_agent(own, make, episodes=25, **how)
        assert found.returns[:6] == pytest.approx(returns)
        assert found.lengths[:6] == lengths


class TestAgent:
    def test_single_and_batched_observations(self, agent):
        single, state = agent.predict(np.zeros(4, np.float32))
        batch, _ = agent.predict(np.zeros((5, 4), np.float32))
        assert single.shape == ()
        assert batch.shape == (5,)
        assert state is None

    def test_actions_are_inside_the_space(self):
        space = spaces.Box(-0.01, 0.01, (2,), np.float32)
        agent = Agent(make_policy(space))
        for deterministic in (True, False):
            action, _ = agent.predict(np.ones(4, np.float32) * 50, deterministic=deterministic)
            assert space.contains(action)

    def test_discrete_actions_start_where_the_space_does(self):
        agent = Agent(make_policy(spaces.Discrete(2, start=7)))
        assert agent.predict(np.zeros(4))[0] in (7, 8)

    def test_a_wrong_shape_is_an_error(self, agent):
        with pytest.raises(UsageError, match=r"shape \(3,\); the policy expects \(4,\)"):
            agent.predict(np.zeros(3))
