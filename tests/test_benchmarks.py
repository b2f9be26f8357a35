"""What the scripts in benchmarks/ compute, by hand on small numbers."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from surefoot.algorithms import get_algorithm
from surefoot.kernels.description import Description, Linear
from surefoot.settings import options
from surefoot.training.config.resolve import resolve

FOLDER = Path(__file__).parent.parent / "benchmarks"
NEW = [
    "cold_start",
    "conformance",
    "gpu",
    "instruments",
    "mujoco_batch",
    "mujoco_equal",
    "ray_sweep",
    "roofline",
    "same_learning",
    "scaling",
    "slurm_sweep",
    "suite_under_load",
    "versus_peers",
]


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module


@pytest.mark.parametrize("name", NEW)
def test_every_script_explains_itself(name, module, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        module(name).main()
    assert "--out FILE.json" in capsys.readouterr().out


def test_the_arithmetic_of_a_gradient_step(module):
    """Actor 3-5-2, critic 3-1, two samples. Per sample and layer: products 2·3·5 = 30, 2·5·2 = 20, 2·3·1 = 6.

    Forward and weight gradient 2·(30 + 5) + 2·(20 + 2) + 2·(6 + 1) = 128; input gradient only of the actor's second
    layer, 20. Parameters: 3·5 + 5 + 5·2 + 2 + 3·1 + 1 = 36, and 16·36 = 576.
    """
    actor = [Linear(3, 5, 0, 15, True), Linear(5, 2, 20, 30, False)]
    critic = [Linear(3, 1, 32, 35, False)]
    network = Description(3, 0, "tanh", [], actor, critic, [], 36, 32, 0)
    assert module("roofline").step_flops(network, 2) == 2 * (128 + 20) + 576
    trunk = [Linear(3, 3, 0, 9, True)]  # then the first layers of actor and critic pass their gradients on
    shared = Description(3, 0, "tanh", trunk, actor, critic, [], 48, 44, 0)
    assert module("roofline").step_flops(shared, 1) == 2 * (18 + 3) + 128 + 20 + 30 + 6 + 16 * 48


def test_the_area_under_a_learning_curve(module):
    """Ends at 10 (return 1), 20 (2 and 4: mean 3), 50 (7), until 60: (1·10 + 3·30 + 7·10) / 50."""
    assert module("same_learning").area([10, 20, 20, 50], [1.0, 2.0, 4.0, 7.0], 60) == pytest.approx(170 / 50)


def test_the_difference_of_two_engines(module):
    interval = module("same_learning").difference_interval
    middle, low, high = interval([11.0, 22.0, 33.0], [10.0, 20.0, 30.0])
    assert (middle, low, high) == (pytest.approx(0.1), pytest.approx(0.1), pytest.approx(0.1))  # seed by seed
    middle, low, high = interval([-90.0, -110.0], [-100.0, -100.0])
    assert (middle, low, high) == (0.0, pytest.approx(-0.1), pytest.approx(0.1))


def test_the_settings_are_the_same_on_both_sides(module):
    """Where both have a name for a thing, they have the same value; and surefoot takes its flags."""
    names = {"gamma": "gamma", "gae_lambda": "gae_lambda", "learning_rate": "learning_rate", "num_epochs": "n_epochs",
             "clip_ratio": "clip_range", "entropy_coef": "ent_coef", "value_clip": "clip_range_vf",
             "value_epochs": "n_critic_updates", "cg_iterations": "cg_max_steps", "cg_damping": "cg_damping",
             "max_kl": "target_kl"}  # fmt: skip
    for setting in module("peers.settings").SETTINGS:
        shape = {"num_envs": setting.num_envs, "rollout_length": setting.rollout_length}
        config = resolve(setting.env, setting.algo, "none", None, shape | setting.ours)
        own = config.flat()
        known = {option.name for option in options(get_algorithm(setting.algo).config_type)}
        for ours, theirs in names.items():
            if ours in known and theirs in setting.theirs:
                assert own[ours] == setting.theirs[theirs], (setting.name, ours)
        parts = own.get("num_minibatches", own.get("value_minibatches"))
        if "batch_size" in setting.theirs:
            assert setting.num_envs * setting.rollout_length == parts * setting.theirs["batch_size"]
        if setting.jax:
            assert (own["num_epochs"], parts) == (setting.jax["epochs"], setting.jax["minibatches"])
        falling = {"learning_rate": own["learning_rate_schedule"], "clip_range": own.get("clip_ratio_schedule")}
        assert {name for name, schedule in falling.items() if schedule == "linear"} == set(setting.linear)
        assert setting.normalize == own["normalize_observations"] == own["normalize_rewards"]
        assert set(setting.steps) == {"surefoot", *setting.peers} >= set(setting.goals)


def test_the_tasks_that_defaults_are_studied_on_pay_as_they_say(module):
    """Exactly what is wanted earns 1 a step, random play about the `low` of the scale."""
    untuned = module("peers.untuned")
    for name in ("match-box", "match-binary", "match-choices", "match-choice"):
        env, total = untuned.make(name), 0.0
        obs, _ = env.reset(seed=0)
        env.action_space.seed(1)  # not the stream that the env draws from
        over = False
        while not over:
            assert env.observation_space.contains(obs)
            assert env.step(obs)[1] == 1.0
            obs, reward, _, over, _ = env.step(env.action_space.sample())
            total += reward
        assert 2 * total == pytest.approx(untuned.TASKS[name].low, abs=8.0), name
    env = untuned.make("reach-dict")
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    after, reward, *_ = env.step(1)
    assert after["position"][0] > obs["position"][0]
    assert reward == pytest.approx(-np.linalg.norm(after["position"] - after["goal"]))


def test_the_summary_of_the_defaults(module):
    """Normalised: 0, ¼, ½, 1 on one task, four times 1 on the other."""
    page = module("defaults_page")
    found = {
        "match-binary": {"0": 50.0, "1": 62.5, "2": 75.0, "3": 100.0},
        "cartpole": {"0": 500.0, "1": 500.0, "2": 500.0, "3": 500.0},
    }
    middle, low, high = page.summary(found, list(found))
    assert middle == pytest.approx((0.5 + 1.0 + 1.0 + 1.0) / 4)  # without the two smallest and the two largest of eight
    assert low <= middle <= high <= 1.0
    assert page.cell(found, "match-binary") == "71.9 / 50.0"
    assert page.cell(found, "hopper") == "–"


def test_tables_go_into_the_page(tmp_path, module):
    fill = module("report").fill
    page = "before\n<!-- results a -->\nold\n<!-- end -->\n<!-- results b -->\nkept\n<!-- end -->\n"
    (tmp_path / "a.md").write_text("| x |\n")
    (tmp_path / "a.json").write_text('{"machine": {"cpu": "C", "cores": 2, "commit": "abc"}}')
    done = fill(page, tmp_path)
    assert "| x |" in done
    assert "old" not in done
    assert "kept" in done
    assert fill(done, tmp_path) == done
