"""Warnings about how a run goes: each has a history that brings it, and names flags that exist; health brings none."""

import json
import re
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import surefoot
from surefoot.algorithms import ALGORITHMS
from surefoot.analysis.memory import Memory
from surefoot.analysis.rule import Facts, Moment
from surefoot.analysis.rules import RULES
from surefoot.analysis.watch import Watch, first_cause
from surefoot.training.config.resolve import all_options, resolve

HEALTHY = {
    "episode_return": lambda at: 20.0 + at,
    "episode_length": 50.0,
    "value_loss": 3.0,
    "kl_max": 0.1,
    "time_limit_fraction": 0.1,
    "dead_units": 0.0,
    "kl": 0.01,
    "clip_fraction": 0.1,
    "entropy": 0.5,
    "explained_variance": 0.7,
    "epochs": 10.0,
    "action_clip_fraction": 0.2,
    "step_fraction": 1.0,
}
TOTAL = 200_000


def facts(algo="ppo", **changes):
    settings = resolve("CartPole-v1", algo, "none").algorithm.as_dict()
    settings |= {"stop_kl": 0.02} if "stop_kl" in settings else {}
    settings |= {name: changes.pop(name) for name in ("clip_ratio", "gamma") if name in changes}
    known = {"env": "CartPole-v1", "num_envs": 8, "total_steps": TOTAL, "discrete": True, "settings": settings}
    return Facts(**(known | changes))


def history(rows=200, episodes=lambda at: 10 * at, **metrics):
    """Rows of a run of 200k steps; a metric may be a function of the row's number."""
    for at in range(1, rows + 1):
        row = HEALTHY | metrics
        row = {name: value(at) if callable(value) else value for name, value in row.items()}
        yield row | {"step": at * TOTAL // 200, "update": at, "episodes": episodes(at)}


def said(rows, known=None):
    advice = Watch(known or facts())
    messages = [message for row in rows for message in advice.look(row)]
    assert messages == [warning["message"] for warning in advice.said]
    return {warning["name"]: warning for warning in advice.said}


def continuous():
    return facts(discrete=False)


def stuck(rows, env=3):
    """Every env but one ends an episode per row."""
    for row in rows:
        yield row, [(at, float(row["update"]), 40) for at in range(8) if at != env]


CASES = {  # rule -> (metrics that bring it, words, what is known of the run)
    "no_episode_ends": ({"episode_return": None}, r"no episode has ended in the last 40,000", facts()),
    "stuck_env": ({}, r"env 3 of 8 has not ended an episode for \d,\d+ of its steps; the longest took 40", facts()),
    "rewards_too_large": (
        {"value_loss": 1e8, "explained_variance": 0.0, "episode_return": 3e4},
        r"loss is 1e\+08 .* returns reach 3e\+04. Try --normalize-rewards, or a smaller --reward-scale",
        facts(),
    ),
    "actions_cut": (
        {"action_clip_fraction": 0.99, "episode_return": 20.0},
        r"99% of the actions lie outside the env's bounds and are cut. Try --action-bounds tanh",
        continuous(),
    ),
    "exploration_too_small": ({"std/0": 0.003}, r"standard deviation is 0.003, from the start on", continuous()),
    "clip_too_wide": (
        {"kl": 0.4, "clip_fraction": 0.0},
        r"KL 0.4 each update, and 0.0% of the samples clipped. Lower --clip-ratio \(now 10.0\)",
        facts(clip_ratio=10.0),
    ),
    "updates_too_large": (
        {"kl": 152.0, "clip_fraction": 0.97, "entropy": 0.0},
        r"KL 152 each, 97% of the samples clipped; the policy has collapsed \(entropy 0.000\). Lower --learning-rate",
        facts(),
    ),
    "updates_growing": (
        {"kl": lambda at: 0.01 if at < 30 else 0.2},
        r"KL is 20 times its usual size since update 30 \(0.2 each\). Lower --learning-rate",
        facts(),
    ),
    "dead_units": (
        {"dead_units": lambda at: 0.1 if at < 3 else 0.9},
        r"90% of the actor's last hidden units are dead.* Try --activation tanh",
        facts(),
    ),
    "gamma_too_small": ({}, r"γ looks 2.0 steps ahead, but episodes last 50.* Raise --gamma", facts(gamma=0.5)),
    "time_limit_dominates": (
        {"time_limit_fraction": 0.87, "episode_length": 8.0, "episode_return": 8.0},
        r"87% of episodes end at the time limit, after 8 steps, while γ looks 100 steps ahead.* --max-episode-steps",
        facts(),
    ),
    "collapsed": (
        {"kl": 0.0, "entropy": 0.0001, "episode_return": lambda at: 21.0 if at == 1 else 9.5},
        r"stopped exploring \(entropy 0.000\) without having learned: return 9.5, at first 21. Lower --learning-rate",
        facts(),
    ),
    "critic_not_learning": (
        {"explained_variance": -0.01, "explained_variance_after": -0.01},
        r"explained variance is usually -0.01, and updates do not change it; its loss is 3. Raise --value-coef",
        facts(),
    ),
    "values_too_large": (
        {"explained_variance": 0.01, "value_loss": 1500.0, "episode_return": lambda at: 20.0 + at % 3},
        r"the critic explains nothing .*its loss of 1.5e\+03 suggests .* Try --normalize-rewards",
        facts(),
    ),
    "observation_says_nothing": (
        {"explained_variance": 0.01, "episode_return": lambda at: 20.0 + at % 3},
        r"the return is no better than at the start \(21.*explained variance at most 0.01",
        facts(),
    ),
    "action_changes_nothing": (
        {"episode_return": lambda at: 20.0 + at % 3},
        r"the return is no better than at the start .* the critic explains up to 70%",
        facts(),
    ),
    "nothing_learned": (
        {"kl": 1e-6, "explained_variance": 0.0, "episode_return": 20.0},
        r"nothing is learned: KL 1.0e-06 each update and expl",
        facts(),
    ),
    "no_step_accepted": ({"step_fraction": 0.0}, "the line search rejects every step", facts("trpo")),
    "epochs_cut_short": ({"epochs": 1.0}, "every update ends after one of 10 epochs", facts()),
}


def test_a_healthy_run_is_left_in_peace():
    assert said(history()) == {}
    assert said(history(episodes=lambda at: at // 15)) == {}
    assert said(history(), facts(time_limit=500)) == {}


def test_every_rule_has_its_history():
    assert list(CASES) == [rule.name for rule in RULES]


SETTLED = ("no_episode_ends", "stuck_env", "gamma_too_small", "exploration_too_small")  # not a matter of moments


def rows_of(name, rows=200):
    silent = {"episodes": lambda at: 0} if name == "no_episode_ends" else {}
    return list(history(rows, **silent, **CASES[name][0]))


@pytest.mark.parametrize("name", CASES)
def test_each_is_said_once_with_its_numbers(name):
    _, words, known = CASES[name]
    watch = Watch(known)
    for row, episodes in stuck(rows_of(name), env=3 if name == "stuck_env" else None):
        watch.add_episodes(episodes, row["step"])
        watch.look(row)
    assert [warning["name"] for warning in watch.said] == [name]
    assert re.search(words, watch.said[0]["message"])
    assert 0 < watch.said[0]["step"] <= 0.55 * TOTAL
    (advice,) = watch.advice.values()
    assert advice.text.startswith(advice.evidence)
    assert advice.flag is None or advice.flag in advice.text


@pytest.mark.parametrize("name", [name for name in CASES if name not in SETTLED])
def test_a_bad_moment_is_no_reason_for_a_warning(name):
    """A hundredth of the run, five times; after a start that was well."""
    known = CASES[name][2]
    pairs = zip(history(), rows_of(name), strict=True)
    short = known.settings | {"clip_ratio": 0.2}
    mixed = [ill if 0 < ill["step"] // 1000 % 40 < 2 and ill["step"] > 20_000 else well for well, ill in pairs]
    assert said(mixed, replace(known, settings=short)) == {}


def test_an_end_of_an_episode_begins_the_silence_anew():
    found = said(history(episodes=lambda at: min(at, 100)))
    assert found["no_episode_ends"]["step"] == 140_000
    assert said(history(rows=139, episodes=lambda at: min(at, 100))) == {}


def test_a_policy_that_is_sure_because_it_has_learned_is_left_in_peace():
    assert said(history(kl=0.001, entropy=0.0001, episode_return=lambda at: float(at))) == {}
    assert said(history(kl=1e-6, explained_variance=0.0, episode_return=lambda at: min(500.0, 10.0 * at))) == {}
    no_critic = {"explained_variance": None, "clip_fraction": None}
    assert said(history(kl=0.0, episode_return=lambda at: float(at), **no_critic), facts("reinforce")) == {}
    assert list(said(history(kl=0.0, episode_return=20.0, **no_critic), facts("reinforce"))) == ["nothing_learned"]
    continuous = facts(discrete=False)  # whose entropy may be any number
    assert said(history(kl=0.001, entropy=-3.0, episode_return=lambda at: -float(at)), continuous) == {}


def test_silence_is_judged_by_the_steps_of_each_env():
    rows = list(history(episodes=lambda at: 0, episode_return=None))
    assert said(rows, facts(num_envs=128)) == {}  # 1,562 steps of each
    assert said(rows, facts(total_steps=10**7))["no_episode_ends"]["step"] == 81_000  # 10,000 of each
    known = said(rows, facts(time_limit=5_000))["no_episode_ends"]
    assert "though the env declares at most 5,000 an episode. Check the env's TimeLimit" in known["message"]
    assert said(rows, facts(time_limit=20_000)) == {}


def test_what_was_said_is_not_said_again_after_a_resume():
    rows = list(history(kl=152.0, clip_fraction=0.97))
    first = Watch(facts())
    assert [message for row in rows[:2] for message in first.look(row)] == []
    second = Watch(facts())
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert len([message for row in rows[2:50] for message in second.look(row)]) == 1
    third = Watch(facts())
    third.load_state_dict(json.loads(json.dumps(second.state_dict())))
    assert [message for row in rows[50:] for message in third.look(row)] == []
    assert third.said == second.said


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("name", CASES)
def test_every_flag_that_is_named_exists(name, algo):
    known, rule = facts(algo, time_limit=None), next(rule for rule in RULES if rule.name == name)
    bad = {
        "kl": 9.0,
        "clip_fraction": 0.9,
        "entropy": 0.0,
        "explained_variance": 0.0,
        "step_fraction": 0.0,
        "epochs": 1.0,
        "episode_return": 20.0,
        "action_clip_fraction": 0.99,
    }
    memory = Memory()
    memory.add_row({"std/0": 0.001, "episode_return": 20.0, "kl": 0.1, "explained_variance": 0.0})
    if {"no_step_accepted": "max_kl", "epochs_cut_short": "stop_kl", "clip_too_wide": "clip_ratio"}.get(
        name, "gamma"
    ) not in known.settings:
        return  # such an algorithm has no such metric
    message = rule.say(Moment(HEALTHY | bad | {"step": 1, "update": 1, "episodes": 0}, known, 10_000, 21.5, memory))
    flags = {flag.replace("-", "_") for flag in re.findall(r"--([a-z-]+)", message)}
    assert flags <= set(all_options(algo))
    assert "None" not in message
    assert "nan" not in message


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_no_row_is_too_odd_to_be_asked(algo):
    """A warning must not end a run."""
    odd = [None, 0.0, 1.0, -1e9, 1e9, float("nan"), float("inf")]
    known = facts(algo)
    for value in odd:
        said(history(rows=20, **dict.fromkeys(HEALTHY, value)), known)
    said([{"step": 10, "episodes": 0}, {"step": 199_000, "episodes": 0}], known)


def test_every_rule_has_its_line_in_the_docs():
    docs = Path(__file__).parents[2] / "docs"
    rules = re.findall(r"^\| `([a-z_]+)` \|", (docs / "diagnose.md").read_text(), re.MULTILINE)
    assert rules == [rule.name for rule in RULES]
    for name in ("outside_space", "dark_image"):
        assert f"| `{name}` |" in (docs / "metrics.md").read_text()


def test_one_huge_update_that_broke_the_policy_is_named_before_what_it_broke():
    def once(then):
        return lambda at: 17.0 if at == 1 else then

    dead = {"kl": once(0.0), "dead_units": 0.7, "episode_return": 20.0}
    sure = {"kl": once(0.0), "entropy": 0.0, "episode_return": lambda at: 21.0 if at == 1 else 9.5}
    for broken in (dead, sure):
        found = next(iter(said(history(**broken)).values()))
        assert found["name"] == "updates_too_large"
        assert "far too large: KL 17 in one of them" in found["message"]
    assert said(history(kl=once(0.01))) == {}
    assert list(said(history(**{**dead, "kl": 0.01}))) == ["dead_units"]


def test_a_policy_that_was_sure_at_once_has_collapsed_though_the_return_is_better_by_chance():
    better = {"episode_return": lambda at: -170.0 if at < 5 else -130.0 - at % 3}
    assert list(said(history(kl=0.0, entropy=lambda at: 1.3 if at < 4 else 0.0, **better))) == ["collapsed"]
    learned = {"entropy": lambda at: 1.3 * max(0.0, 1.0 - at / 50)}
    assert said(history(kl=0.001, **learned)) == {}


def test_a_policy_without_chance_is_named_before_the_returns_that_never_change():
    same = {"time_limit_fraction": 1.0, "episode_length": 500.0, "episode_return": -500.0}
    assert list(said(history(**same))) == ["time_limit_dominates"]
    assert list(said(history(**same, kl=0.0, entropy=0.0))) == ["collapsed"]


def test_a_limit_of_the_users_own_is_named_before_the_policy_that_had_nothing_to_learn():
    same = {"time_limit_fraction": 1.0, "episode_length": 20.0, "episode_return": -20.0, "kl": 0.0, "entropy": 0.0}
    known = facts()
    found = said(history(**same), replace(known, settings=known.settings | {"max_episode_steps": 20}))
    assert {"collapsed", "time_limit_dominates"} <= set(found)
    assert first_cause(list(found.values()))["name"] == "time_limit_dominates"


def test_a_limit_of_the_users_own_is_named_once_the_return_stalls_below_it():
    cut = {"time_limit_fraction": 1.0, "episode_length": 20.0}
    stalled = {**cut, "episode_return": lambda at: min(at, 30.0) + at % 2}
    known = facts()
    own = replace(known, settings=known.settings | {"max_episode_steps": 20})
    assert "the return has stopped rising" in said(history(**stalled), own)["time_limit_dominates"]["message"]
    assert said(history(**stalled), known) == {}  # the env's own limit is part of the task
    assert said(history(**cut), own) == {}  # still rising
    earned = {**stalled, "time_limit_fraction": lambda at: 0.0 if at < 5 else 1.0}
    assert said(history(**earned), own) == {}
    assert said(history(**{**stalled, "episode_length": 50.0}), own) == {}


def test_noise_outside_the_bounds_is_named_though_the_return_rises():
    assert list(said(history(action_clip_fraction=0.97), continuous())) == ["actions_cut"]
    learned = {"action_clip_fraction": lambda at: min(0.97, 0.05 * at)}
    assert said(history(**learned), continuous()) == {}


def test_a_run_that_learns_late_is_cleared():
    late = {"episode_return": lambda at: 20.0 + at % 3 + max(0, at - 140)}
    watch = Watch(facts())
    messages = [message for row in history(**late) for message in watch.look(row)]
    assert len(messages) == 1
    assert "the return is no better than at the start" in messages[0]
    assert (watch.said, watch.advice) == ([], {})


def test_a_frozen_critic_that_is_right_by_chance_is_still_frozen():
    chance = {"explained_variance": lambda at: 0.3 if at % 5 == 0 else -0.2}
    assert list(said(history(**chance, explained_variance_after=chance["explained_variance"]))) == [
        "critic_not_learning"
    ]


def test_a_critic_without_a_loss_has_nothing_to_learn():
    still = {"explained_variance": 0.0, "explained_variance_after": 0.0}
    assert list(said(history(**still))) == ["critic_not_learning"]
    assert said(history(**still, value_loss=0.0)) == {}


class Endless(gym.Env):
    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}


@pytest.mark.slow
def test_a_run_says_it_once_in_its_log_its_output_and_its_result(capsys):
    short = {
        "preset": "none",
        "num_envs": 1,
        "rollout_length": 64,
        "seed": 0,
        "eval_episodes": 0,
        "learning_rate": 1e-9,
    }
    run = surefoot.train(Endless, total_steps=12_800, log_every=640, **short)
    names = [warning["name"] for warning in run.result["warnings"]]
    assert names == ["no_episode_ends", "nothing_learned"]
    out, log = capsys.readouterr().out, (run.path / "log.txt").read_text()
    for warning in run.result["warnings"]:
        assert out.count(f"warning: {warning['message']}") == 1
        assert log.count(warning["message"]) == 1


def test_a_short_run_in_which_no_episode_ended_says_so_at_its_end():
    short = {"preset": "none", "num_envs": 4, "rollout_length": 32, "eval_episodes": 0, "progress": False}
    (warning,) = surefoot.train(Endless, total_steps=256, **short).result["warnings"]
    assert "no episode ended in the whole run (64 steps of every env)" in warning["message"]
    assert surefoot.train("CartPole-v1", total_steps=128, **short).result["warnings"] == []  # it has a time limit


@pytest.mark.slow
def test_a_resumed_run_does_not_repeat_itself(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import gymnasium as gym\nfrom tests.training.test_advice import Endless\nEnv = Endless\n"
    )
    how = {"preset": "none", "num_envs": 1, "rollout_length": 64, "seed": 0, "eval_episodes": 0, "progress": False}

    class Leave(surefoot.Callback):
        def on_update(self, trainer, metrics):
            if trainer.step >= 8_000:
                trainer.suspend("enough")

    run = surefoot.train("mine.py:Env", total_steps=12_800, log_every=640, callbacks=[Leave()], **how)
    before = run.result["warnings"]
    assert [warning["name"] for warning in before] == ["no_episode_ends", "nothing_learned"]
    surefoot.resume(run, trust=True, progress=False)
    assert run.result["warnings"] == before
    assert (run.path / "log.txt").read_text().count(before[0]["message"]) == 1
