"""Flags and settings under the names that other libraries have for them."""

import re

import pytest

import surefoot
from surefoot.algorithms import ALGORITHMS
from surefoot.cli.main import main
from surefoot.errors import UsageError
from surefoot.training.config.other_libraries import COMPUTED, ELSEWHERE, explain
from surefoot.training.config.resolve import algorithms_with, all_options

KNOWN = {setting for algo in ALGORITHMS for setting in all_options(algo)}
CARTPOLE = ["train", "CartPole-v1", "--preset", "none"]  # 8 envs × 128 steps


@pytest.mark.parametrize("name", [*ELSEWHERE, *COMPUTED])
def test_every_hint_names_a_setting_that_exists(name):
    """…and is not itself a setting of the default algorithm, which would never ask for it."""
    own = all_options("ppo")
    assert name not in own
    hint = re.match(r"here it is --([a-z-]+)", explain(name, "ppo", own, algorithms_with, as_flag=True))
    assert hint[1].replace("-", "_") in KNOWN


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*CARTPOLE, "--batch-size", "64"], "--num-minibatches 16 (8 envs × 128 steps = 1,024 samples, 64 in each"),
        ([*CARTPOLE, "--batch-size=64"], "--num-minibatches 16 ("),
        (["train", "--batch-size", "64", "CartPole-v1", "--preset", "none"], "--num-minibatches 16 ("),
        ([*CARTPOLE, "--num-envs", "4", "--rollout-length", "2k", "--batch-size", "64"], "--num-minibatches 125 ("),
        ([*CARTPOLE, "--batch-size", "100"], "--num-minibatches 8 (8 envs × 128 steps = 1,024 samples, 128 in each"),
        ([*CARTPOLE, "--batch-size", "100"], "the nearest to 100 that divides"),
        ([*CARTPOLE, "--memory", "gru", "--batch-size", "64"], "--num-minibatches 8 ("),
        ([*CARTPOLE, "--batch-size", "many"], "--num-minibatches (rollout_length × num_envs / batch size)"),
        ([*CARTPOLE, "--n-steps", "5", "--batch-size", "64"], "unknown flag --n-steps; here it is --rollout-length"),
        ([*CARTPOLE, "--algo", "trpo", "--batch-size", "128"], "--value-minibatches 16 ("),
        ([*CARTPOLE, "--algo", "a2c", "--batch-size", "64"], "a2c takes one gradient step per update"),
        ([*CARTPOLE, "--eval-freq", "10000"], "--eval-every (counted in steps of all envs"),
        ([*CARTPOLE, "--target-kl", "0.02"], "--stop-kl (which ends an update early; Stable-Baselines3"),
        ([*CARTPOLE, "--algo", "trpo", "--target-kl", "0.02"], "here it is --max-kl"),
        ([*CARTPOLE, "--algo", "a2c", "--target-kl", "1"], "is not a setting of a2c; it belongs to ppo-penalty"),
        ([*CARTPOLE, "--algo", "trpo", "--clip-range", "1"], "--clip-ratio, which is not a setting of trpo"),
        ([*CARTPOLE, "--kl-target", "0.01"], "--target-kl, which is not a setting of ppo; it belongs to ppo-penalty"),
        ([*CARTPOLE, "--use-sde"], "here it is --std gsde"),
        ([*CARTPOLE, "--anneal-lr"], "here it is --learning-rate-schedule linear"),
        ([*CARTPOLE, "--no-anneal-lr"], "here it is --learning-rate-schedule\n"),
        ([*CARTPOLE, "--train-batch-size", "4000"], "--rollout-length 500 (8 envs × 500 steps = 4,000 samples)"),
        ([*CARTPOLE, "--max-iterations", "10"], "--total-steps 10240 (10 updates of 8 envs × 128 steps"),
        (["train", "--env-id", "CartPole-v1"], "without a flag: surefoot train CartPole-v1"),
        (["bench", "--preset", "none", "--batch-size", "64"], "--num-minibatches 16 ("),
        (["train", "--algo"], "argument --algo: expected one argument (`surefoot train --help`"),
    ],
)
def test_the_flag_and_the_value_to_use_here(words, message, capsys):
    assert main(words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 64}, "num_minibatches=16 (8 envs"),
        ({"batch_size": 64, "num_envs": "16"}, "num_minibatches=32 (16 envs"),
        ({"lr": 1e-3}, "here it is learning_rate"),
        ({"use_sde": True}, "here it is std='gsde'"),
        ({"target_kl": 0.1}, "here it is stop_kl"),
    ],
)
def test_keywords_are_explained_as_flags_are(settings, message):
    with pytest.raises(UsageError) as error:
        surefoot.train("CartPole-v1", preset="none", **settings)
    assert message in str(error.value)


def test_ppo_penalty_has_a_target_kl_of_its_own(capsys):
    assert main([*CARTPOLE, "--algo", "ppo-penalty", "--target-kl", "0.02", "--dry-run"]) == 0
    assert re.search(r"target_kl +0\.02 +given", capsys.readouterr().out)
