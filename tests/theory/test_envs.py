"""The MDPs as environments: what the real trainer samples is what the linear algebra says."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import surefoot
from surefoot.cli.main import main
from surefoot.envs.make import known_envs
from surefoot.envs.shipped_ids import SHIPPED
from surefoot.theory import exact
from surefoot.theory.bridge import exact_batch, table_of

QUICK = {"preset": "none", "progress": False, "eval_episodes": 0, "hidden_sizes": ()}


@pytest.mark.parametrize("name", SHIPPED)
def test_each_is_registered_and_keeps_gymnasiums_contract(name):
    assert name in known_envs()
    env = gym.make(name)
    check_env(env.unwrapped, skip_render_check=True)
    assert env.spec.max_episode_steps == 100


@pytest.mark.parametrize("name", SHIPPED)
def test_pictures(name):
    env = gym.make(name, render_mode="rgb_array")
    env.reset(seed=0)
    frame = env.render()
    assert frame.dtype == np.uint8
    assert frame.shape[0] % 32 == frame.shape[1] % 32 == 0
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) >= 3
    text = gym.make(name, render_mode="ansi")
    text.reset(seed=0)
    assert text.render().startswith("state ")


@pytest.mark.parametrize(
    ("name", "kwargs"), [("surefoot/Grid-v0", {}), ("surefoot/Cliff-v0", {"blind": True}), ("surefoot/Random-v0", {})]
)
def test_a_random_walk_earns_the_exact_return(name, kwargs):
    """1000 episodes of the env itself against η and the undiscounted return, within five standard errors."""
    env = gym.make(name, **kwargs)
    mdp = env.unwrapped.mdp
    rng = np.random.default_rng(0)
    discounted, plain = [], []
    for episode in range(1000):
        env.reset(seed=episode)
        rewards, done = [], False
        while not done:
            _, reward, terminated, truncated, _ = env.step(int(rng.integers(mdp.num_actions)))
            rewards.append(reward)
            done = terminated or truncated
        discounted.append((mdp.gamma ** np.arange(len(rewards)) * rewards).sum())
        plain.append(sum(rewards))
    for found, truth in (
        (discounted, exact.expected_return(mdp, mdp.uniform())),
        (plain, exact.episode_return(mdp, mdp.uniform(), 100)),
    ):
        assert abs(np.mean(found) - truth) < 5.0 * np.std(found) / np.sqrt(len(found)) + 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kwargs"), [("surefoot/Cliff-v0", {}), ("surefoot/Cliff-v0", {"blind": True})])
def test_the_trainer_learns_and_its_numbers_are_the_exact_ones(name, kwargs):
    settings = {"total_steps": 8192, "learning_rate": 0.02, "gamma": 0.95, "seed": 0, "env_kwargs": kwargs, **QUICK}
    settings["num_minibatches"] = 4
    run = surefoot.train(name, **settings)
    agent = surefoot.load(run)
    mdp = gym.make(name, **kwargs).unwrapped.mdp
    table = table_of(mdp, agent.policy)
    assert exact.expected_return(mdp, table) > exact.expected_return(mdp, mdp.uniform())
    found = surefoot.evaluate(agent, name, episodes=300, deterministic=False, env_kwargs=kwargs)
    truth = exact.episode_return(mdp, table, 100)
    assert abs(found.mean_return - truth) < 5.0 * found.std_return / np.sqrt(300)
    batch = exact_batch(mdp, agent.policy)
    assert float(batch.weight.sum()) == pytest.approx(exact.visitation(mdp, table).sum(), rel=1e-5)


def test_wrong_env_kwargs_are_a_users_error(capsys):
    assert main(["train", "surefoot/Cliff-v0", "--env-kwargs", '{"width": 1}']) == 2
    assert capsys.readouterr().err == "surefoot: width=1 is too small; it must be at least 2\n"
    assert main(["train", "surefoot/Cliff-v0", "--env-kwargs", '{"size": 1}']) == 2
    assert "do not fit surefoot/Cliff-v0" in capsys.readouterr().err


@pytest.mark.slow
def test_by_module_and_by_id(capsys):
    assert main(["train", "surefoot.theory.envs:surefoot/Grid-v0", "--dry-run"]) == 0
    assert main(["train", "surefoot/Grid-v0", "--env-kwargs", '{"size": 5}', "--dry-run"]) == 0
    assert main(["doctor", "surefoot/Chain-v0", "--episodes", "2"]) == 0
