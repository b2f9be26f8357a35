"""Settings that change over a run: worked out by hand, typed in every way, and followed by every engine."""

import json
import math
import pickle

import pytest

import surefoot
from surefoot.algorithms import ppo_clip, trpo
from surefoot.cli.main import main
from surefoot.errors import UsageError
from surefoot.schedules import Schedule, as_schedule, from_function, parse_schedule
from surefoot.training.config.resolve import resolve
from surefoot.training.config.toml_files import to_toml

QUICK = {"preset": "none", "seed": 0, "num_envs": 2, "rollout_length": 16, "total_steps": 128, "eval_episodes": 0}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("linear:4:0", [4.0, 3.0, 2.0, 0.0]),
        ("linear:4", [4.0, 3.0, 2.0, 0.0]),
        ("linear:1:5", [1.0, 2.0, 3.0, 5.0]),
        ("linear:0:2", [0.0, 0.5, 1.0, 2.0]),
        ("cosine:4:0", [4.0, 2.0 + math.sqrt(2.0), 2.0, 0.0]),
        ("points:0=0,0.5=2,1=2", [0.0, 1.0, 2.0, 2.0]),
        ("points:0=8,0.25=4,0.5=0,1=1", [8.0, 4.0, 0.0, 1.0]),
    ],
)
def test_by_hand(text, values):
    """At the start, after a quarter, at half time and at the end."""
    schedule = parse_schedule(text)
    assert [schedule.at(remaining) for remaining in (1.0, 0.75, 0.5, 0.0)] == pytest.approx(values, abs=1e-12)
    assert float(schedule) == max(value for _, value in schedule.points)
    again = parse_schedule(str(schedule))
    assert (again.points, again.smooth) == (schedule.points, schedule.smooth)
    assert pickle.loads(pickle.dumps(schedule)).points == schedule.points  # noqa: S301 (our own)


def test_a_line_to_zero_is_the_number_times_what_remains_to_the_bit():
    schedule = parse_schedule("linear:0.0003:0")
    for step in range(0, 1000, 7):
        remaining = 1.0 - step / 1000
        assert schedule.factor(remaining) == remaining
        assert schedule.at(remaining) == 0.0003 * remaining


def test_a_function_is_followed():
    schedule = from_function(lambda done: 2.0 * 0.5**done)
    for done in (0.0, 0.123, 0.5, 0.999, 1.0):
        assert schedule.at(1.0 - done) == pytest.approx(2.0 * 0.5**done, rel=1e-5)
    assert as_schedule("x", lambda done: done).at(0.25) == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("linear:fast", "is not a schedule"),
        ("points:0=1", "from 0 to 1"),
        ("points:0.5=1,0=2,1=3", "from 0 to 1"),
        ("linear:-1:0", "passes through -1"),
        (lambda done: "much", "is not a schedule"),
        ("points:0=1,1=nan", "no number"),
    ],
)
def test_what_is_no_schedule_is_said(value, message):
    with pytest.raises(UsageError, match=message):
        ppo_clip.Config(learning_rate=value)


def test_what_cannot_change_is_refused():
    with pytest.raises(UsageError, match="log_std_init=linear"):
        resolve("Pendulum-v1", preset="none", overrides={"log_std_init": "linear:1:0"})
    with pytest.raises(UsageError, match="keeps its ratio"):
        ppo_clip.Config(critic_learning_rate="linear:1e-3")
    with pytest.raises(UsageError, match="a schedule already"):
        ppo_clip.Config(learning_rate="linear:1e-3", learning_rate_schedule="linear")
    with pytest.raises(UsageError, match="adaptive_kl sets the learning rate itself"):
        ppo_clip.Config(learning_rate="cosine:1e-3", adaptive_kl=0.01)


def test_a_schedule_replaces_the_one_of_a_preset():
    config = resolve("CartPole-v1", overrides={"learning_rate": "cosine:1e-3"})
    assert config.preset == "CartPole-v1/ppo"
    assert config.algorithm.learning_rate.smooth
    assert (config.algorithm.learning_rate_schedule, config.algorithm.clip_ratio_schedule) == ("constant", "linear")
    plain = resolve("CartPole-v1", overrides={"learning_rate": 1e-3})
    assert plain.algorithm.learning_rate_schedule == "linear"


def test_settings_at_a_share_of_the_run():
    config = ppo_clip.Config(clip_ratio="linear:0.2:0.1", entropy_coef="cosine:0.02", learning_rate_schedule="linear")
    half = config.at(0.5)
    assert (half.clip_ratio, half.entropy_coef) == (pytest.approx(0.15), pytest.approx(0.01))
    assert half.learning_rate == 0.5 * config.learning_rate
    assert not isinstance(half.clip_ratio, Schedule)
    plain = trpo.Config()
    assert plain.at(0.5) is plain


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_both_ways_to_say_it_give_the_same_bytes(engine, tmp_path):
    short = {"learning_rate_schedule": "linear", "clip_ratio_schedule": "linear"}
    long = {"learning_rate": "linear:3e-4", "clip_ratio": "linear:0.2"}
    runs = [
        surefoot.train("CartPole-v1", run_dir=tmp_path / name, engine=engine, progress=False, **QUICK, **how)
        for name, how in (("short", short), ("long", long))
    ]
    assert runs[0].metrics == runs[1].metrics
    rates = [row["learning_rate"] for row in runs[0].metrics]
    assert rates[0] == pytest.approx(3e-4)
    assert rates[-1] == pytest.approx(0.25 * 3e-4)


@pytest.mark.parametrize("algo", ["reinforce", "vpg", "trpo", "ppo-penalty", "ppo"])
def test_any_number_of_any_algorithm_may_change(algo, tmp_path):
    settings = {"entropy_coef": "points:0=0.1,0.5=0,1=0", "gamma": "linear:0.9:0.99", "max_grad_norm": "linear:1:0.5"}
    more = {"max_episode_steps": 20} if algo == "reinforce" else {}
    kept = {key: value for key, value in QUICK.items() if algo != "reinforce" or key != "rollout_length"}
    run = surefoot.train("CartPole-v1", algo, run_dir=tmp_path, progress=False, **kept, **settings, **more)
    text = (run.path / "config.toml").read_text(encoding="utf-8")
    assert 'gamma = "linear:0.9:0.99"' in text
    again = resolve(preset=None, config_file=run.path / "config.toml")
    assert again.algorithm.gamma.points == ((0.0, 0.9), (1.0, 0.99))
    assert to_toml(again) == text


def test_on_the_command_line(capsys):
    words = ["train", "CartPole-v1", "--preset=none", "--entropy-coef=linear:0.01:0", "--dry-run"]
    assert main(words) == 0
    assert "linear:0.01:0.0" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["entropy_coef"] == "linear:0.01:0.0"


def test_a_killed_run_goes_on_along_its_schedule(tmp_path):
    how = {"learning_rate": lambda done: 1e-3 * (1.0 - done) ** 2, "progress": False, **QUICK}
    whole = surefoot.train("CartPole-v1", run_dir=tmp_path / "whole", **how)

    class Stop(surefoot.Callback):
        def on_update(self, trainer, metrics):
            if trainer.update == 2:
                trainer.suspend("here")

    surefoot.train("CartPole-v1", run_dir=tmp_path / "part", callbacks=[Stop()], **how)
    resumed = surefoot.resume(tmp_path / "part")
    assert resumed.metrics == whole.metrics
