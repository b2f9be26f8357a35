"""Stopping at a target return: when it is looked for, what is kept of it, and that a resumed run does the same."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import gymnasium as gym
import pytest
from gymnasium.vector import SyncVectorEnv

import surefoot
from surefoot.algorithms import ALGORITHMS
from surefoot.api import Run, evaluate_run, resume
from surefoot.cli.main import main
from surefoot.envs.playing import Abandoned
from surefoot.errors import UsageError
from surefoot.runs import RunDirectory
from surefoot.training.config.run_config import RunConfig
from surefoot.training.evaluation.result import Evaluation
from surefoot.training.life import session
from surefoot.training.life.session import Interrupted
from surefoot.training.loop import target
from surefoot.training.loop.target import Target
from surefoot.training.reports.progress import LiveProgress

QUIET = {"progress": False, "preset": "none", "seed": 3, "num_envs": 4, "eval_episodes": 12}
PPO = {**QUIET, "total_steps": 4096, "rollout_length": 64, "log_every": 512}


def make_target(wanted=100.0, **settings):
    return Target(RunConfig(target_return=wanted, total_steps=10_000, **settings), 5, lambda: None)


def evaluations(monkeypatch, *means, length=20):
    """Evaluations that find these mean returns, with no spread; what they were asked for: (episodes, seed)."""
    found, asked = iter(means), []

    def evaluate(agent, make, *, episodes, seed, **kwargs):
        asked.append((episodes, seed))
        return Evaluation((float(next(found)),) * episodes, (length,) * episodes, 0, True)

    monkeypatch.setattr(target, "evaluate_agent", evaluate)
    return asked


class TestWhen:
    def test_half_of_the_way_from_the_first_returns(self):
        looked = make_target(100.0)
        assert not looked.due(100, [20.0] * 9)  # too few to know where it began
        assert looked.first is None
        assert not looked.due(200, [20.0] * 10)
        assert looked.first == 20.0
        assert not looked.due(300, [20.0] * 30 + [59.9] * 10)
        assert looked.due(400, [20.0] * 30 + [60.0] * 10)

    def test_negative_returns_and_a_target_below_the_beginning(self):
        looked = make_target(-200.0)
        looked.due(100, [-1400.0] * 10)
        assert not looked.due(200, [-801.0] * 10)
        assert looked.due(200, [-800.0] * 10)
        assert make_target(5.0).due(100, [20.0] * 10)

    def test_ten_times_at_least_whatever_the_training_returns(self, monkeypatch):
        evaluations(monkeypatch, 0.0, length=1)
        looked = make_target()
        assert not looked.due(999, [])
        assert looked.due(1000, [])
        looked.run(None, 1000, lambda: False)
        assert not looked.due(1999, [1.0] * 10)
        assert looked.due(2000, [1.0] * 10)

    def test_as_much_training_as_the_last_try_played(self, monkeypatch):
        evaluations(monkeypatch, 0.0, length=20)
        looked = make_target()
        looked.due(10, [10.0] * 10)
        looked.run(None, 300, lambda: False)
        assert not looked.due(499, [90.0] * 10)
        assert looked.due(500, [90.0] * 10)  # 10 episodes of 20 steps

    def test_never_without_a_target_or_an_env(self):
        assert not Target(RunConfig(), 0, lambda: None).due(10**9, [1e9] * 10)
        assert not Target(RunConfig(target_return=1.0), 0).due(10**9, [1e9] * 10)


class TestTry:
    def test_the_whole_evaluation_follows_ten_promising_episodes(self, monkeypatch):
        asked = evaluations(monkeypatch, 99.0, 100.0, 99.9, 100.0, 100.0)
        looked = make_target(100.0)
        looked.run(None, 1, lambda: False)
        assert [episodes for episodes, _ in asked] == [10]
        looked.run(None, 2, lambda: False)
        assert [episodes for episodes, _ in asked[1:]] == [10, 100]
        assert looked.found is None
        looked.run(None, 3, lambda: False)
        assert (looked.found.episodes, looked.found.mean_return) == (100, 100.0)
        assert looked.summary == {"step": 3, "mean_return": 100.0, "episodes": 100}
        seeds = {seed for _, seed in asked}
        assert len(seeds) == len(asked)  # no episode is played twice
        assert 5 not in seeds  # nor one of the final evaluation
        assert not looked.due(10**6, [1e6] * 10)

    def test_one_standard_error_of_grace(self, monkeypatch):
        """Returns 80 and 110, five of each: mean 95, standard deviation 15, error of the mean 15/√10 = 4.74."""
        few = Evaluation((80.0, 110.0) * 5, (1,) * 10, 0, True)
        asked = []
        monkeypatch.setattr(target, "evaluate_agent", lambda *_, episodes, **__: asked.append(episodes) or few)
        make_target(99.8).run(None, 1, lambda: False)
        assert asked == [10]
        make_target(99.7).run(None, 1, lambda: False)
        assert asked == [10, 10, 100]

    def test_few_episodes_are_played_once(self, monkeypatch):
        asked = evaluations(monkeypatch, 100.0)
        looked = make_target(eval_episodes=4)
        looked.run(None, 1, lambda: False)
        assert [episodes for episodes, _ in asked] == [4]
        assert looked.found.episodes == 4

    def test_an_abandoned_one_leaves_everything_as_it_was(self, monkeypatch):
        def abandoned(*_, **__):
            raise Abandoned

        looked = make_target()
        before = looked.state_dict()
        monkeypatch.setattr(target, "evaluate_agent", abandoned)
        with pytest.raises(Abandoned):
            looked.run(None, 1000, lambda: True)
        assert looked.state_dict() == before

    def test_the_state_comes_back(self, monkeypatch):
        evaluations(monkeypatch, 100.0, 101.0)
        looked, other, higher = make_target(), make_target(), make_target(102.0)
        looked.due(10, [1.0] * 10)
        looked.run(None, 50, lambda: False)
        state = json.loads(json.dumps(looked.state_dict()))
        other.load_state_dict(state)
        assert other.state_dict() == looked.state_dict()
        assert other.found == looked.found
        higher.load_state_dict(state)
        assert higher.found is None


def test_a_run_stops_there_and_reports_fresh_episodes(monkeypatch, capsys):
    tried, real = [], target.evaluate_agent
    monkeypatch.setattr(target, "evaluate_agent", lambda *a, **k: tried.append(real(*a, **k)) or tried[-1])
    words = [f"--{name.replace('_', '-')}={value}" for name, value in PPO.items() if name != "progress"]
    assert main(["train", "CartPole-v1", "--target-return=60", "--json", *words]) == 0
    out = capsys.readouterr()
    result = json.loads(out.out.splitlines()[-1])
    assert (result["stopped"], result["target_return"], result["target_reached"]) == ("target_return", 60.0, True)
    assert result["total_steps"] < 4096
    assert result["eval"]["episodes"] == 12
    assert result["eval"]["mean_return"] >= 60.0
    assert "target return 60: reached\n" in out.err
    last = {"step": result["total_steps"], "mean_return": tried[-1].mean_return, "episodes": 12}
    assert result["target_try"] == last
    assert result["eval"]["mean_return"] != tried[-1].mean_return
    run = Run(RunDirectory(Path(result["run_dir"])))
    assert run.metrics[-1]["step"] == result["total_steps"]
    assert evaluate_run(run, episodes=12)[0].summary() == result["eval"]
    status = run.directory.read_status()
    assert (status["state"], status["why"]) == ("done", "target_return")


def test_a_budget_that_ends_before_it_is_said(capsys):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in PPO.items() if name != "progress"]
    assert main(["train", "CartPole-v1", "--target-return=501", "--json", *words]) == 0
    out = capsys.readouterr()
    result = json.loads(out.out.splitlines()[-1])
    assert (result["stopped"], result["target_reached"], result["total_steps"]) == (None, False, 4096)
    assert result["target_try"] is None
    assert "target return 501: NOT reached\n" in out.err


def test_a_try_that_was_luckier_than_the_final_evaluation_is_said_to_be(monkeypatch, capsys):
    """Tries find 61, the policy is worth less."""
    evaluations(monkeypatch, *[61.0] * 20)

    def final(agent, make, *, episodes, **how):
        return Evaluation((40.0,) * episodes, (40,) * episodes, 0, True)

    monkeypatch.setattr(session, "evaluate_agent", final)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in PPO.items() if name != "progress"]
    assert main(["train", "CartPole-v1", "--target-return=60", "--json", *words]) == 0
    out = capsys.readouterr()
    result = json.loads(out.out.splitlines()[-1])
    assert (result["stopped"], result["target_reached"]) == ("target_return", False)
    assert result["target_try"] == {"step": result["total_steps"], "mean_return": 61.0, "episodes": 12}
    assert result["eval"]["mean_return"] == 40.0
    said = "target return 60: reached when tested (61.0 over 12 episodes), NOT in the final evaluation on new ones\n"
    assert said in out.err


def tries(text):
    pattern = (
        r"^step +([\d,]+)/4,096  greedy return ([\d.]+) over (\d+) episodes  target (\d+): (reached|[\d.]+ to go)$"
    )
    return [found.groups() for line in text.splitlines() if (found := re.match(pattern, line))]


@pytest.mark.parametrize("terminal", [False, True])
def test_every_try_is_a_line(terminal, capsys, monkeypatch):
    evaluations(monkeypatch, 20.0, 58.5, 59.98, 60.0, 61.0, length=1)
    if terminal:
        monkeypatch.setattr(session, "make_progress", lambda **_: LiveProgress(sys.stdout))
    run = surefoot.train("CartPole-v1", target_return=60, **{**PPO, "progress": True})
    lines = tries(capsys.readouterr().out)
    assert [line[1:] for line in lines] == [
        ("20.0", "10", "60", "40.0 to go"),
        ("58.5", "10", "60", "1.50 to go"),
        ("60.0", "10", "60", "0.02 to go"),
        ("61.0", "12", "60", "reached"),
    ]
    steps = [int(line[0].replace(",", "")) for line in lines]
    assert steps == sorted(set(steps))
    assert steps[-1] == run.result["total_steps"]


def test_tries_do_not_disturb_a_machine_that_reads(capsys):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in PPO.items() if name != "progress"]
    assert main(["train", "CartPole-v1", "--target-return=60", "--json", *words]) == 0
    out = capsys.readouterr()
    assert len(out.out.splitlines()) == 1
    assert json.loads(out.out)["target_reached"] is True
    assert tries(out.err)[-1][-1] == "reached"


def test_a_callback_hears_of_every_try():
    heard = []

    class Listens(surefoot.Callback):
        def on_try(self, trainer, evaluation):
            heard.append((trainer.step, evaluation.episodes, evaluation.mean_return >= 60))

    run = surefoot.train("CartPole-v1", target_return=60, callbacks=[Listens()], **PPO)
    assert heard[-1] == (run.result["total_steps"], 12, True)
    assert not any(reached for _, _, reached in heard[:-1])


def test_the_last_evaluation_may_reach_it(monkeypatch):
    monkeypatch.setattr(Target, "due", lambda *_: False)
    run = surefoot.train("CartPole-v1", target_return=5, **PPO)
    assert (run.result["stopped"], run.result["target_reached"]) == (None, True)


def test_looking_changes_nothing_else(tmp_path):
    with_, without = (
        surefoot.train("CartPole-v1", run_dir=tmp_path / str(wanted), target_return=wanted, **PPO)
        for wanted in (501, None)
    )
    assert with_.metrics == without.metrics
    assert with_.result["eval"] == without.result["eval"]
    assert without.result["target_reached"] is None


def test_both_kinds_of_evaluation_at_once():
    run = surefoot.train("CartPole-v1", target_return=60, eval_every=1024, selection_episodes=3, **PPO)
    assert run.result["stopped"] == "target_return"
    assert "eval_return" in run.metrics[-1]  # the last policy may be the best
    assert run.metrics[-1]["step"] == run.result["total_steps"]


def settings(algo):
    if algo == "reinforce":
        return {**QUIET, "total_steps": 9000, "max_episode_steps": 100, "log_every": 1500, "checkpoint_every": 1800}
    length = 6 if algo == "a2c" else 36
    return {**QUIET, "total_steps": 2400, "rollout_length": length, "log_every": 250, "checkpoint_every": 400}


class Die(surefoot.Callback):
    def __init__(self, update):
        self.update = update

    def on_rollout(self, trainer, rollout):
        if trainer.update == self.update:
            trainer.save = lambda **_: None  # a killed process saves nothing
            raise KeyboardInterrupt


def same(left, right):
    assert (left.path / "metrics.jsonl").read_bytes() == (right.path / "metrics.jsonl").read_bytes()
    names = ("eval", "stopped", "target_reached", "total_steps")
    assert [left.result[name] for name in names] == [right.result[name] for name in names]
    folders = [run.path / "checkpoints" / str(run.result["total_steps"]) for run in (left, right)]
    states = [json.loads((folder / "state.json").read_text())["target"] for folder in folders]
    assert states[0] == states[1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("env", "wanted"), [("CartPole-v1", 28.0), ("CartPole-v1", 501.0), ("Pendulum-v1", -1.0)])
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_killed_run_ends_as_an_uninterrupted_one(algo, env, wanted, tmp_path):
    if env == "Pendulum-v1" and algo == "reinforce":
        pytest.skip("one rollout of Pendulum is longer than this run")
    made = {**settings(algo), "target_return": wanted}
    whole = surefoot.train(env, algo, run_dir=tmp_path / "whole", **made)
    die = Die(whole.result["updates"] * 2 // 3)
    with pytest.raises(KeyboardInterrupt):
        surefoot.train(env, algo, run_dir=tmp_path / "killed", callbacks=[die], **made)
    same(resume(tmp_path / "killed", progress=False), whole)


def test_a_signal_in_the_middle_of_a_try(tmp_path, monkeypatch):
    whole = surefoot.train("CartPole-v1", run_dir=tmp_path / "whole", target_return=60, **PPO)
    real = target.evaluate_agent

    def killing(agent, make, *, abandon, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        return real(agent, make, abandon=abandon, **kwargs)

    monkeypatch.setattr(target, "evaluate_agent", killing)
    with pytest.raises(Interrupted, match="everything is saved"):
        surefoot.train("CartPole-v1", run_dir=tmp_path / "stopped", target_return=60, **PPO)
    monkeypatch.setattr(target, "evaluate_agent", real)
    same(resume(tmp_path / "stopped", progress=False), whole)


def test_a_run_that_reached_it_is_over_until_it_gets_more_steps(tmp_path, capsys):
    run = surefoot.train("CartPole-v1", run_dir=tmp_path / "a", target_return=60, **PPO)
    reached = run.result
    again = resume(run, progress=False).result
    assert {**again, "seconds": 0, "steps_per_second": 0, "time_split": 0} == {
        **reached, "seconds": 0, "steps_per_second": 0, "time_split": 0
    }  # fmt: skip
    longer = resume(run, total_steps=4096).result
    assert "target return of 60 is reached; training continues" in capsys.readouterr().out
    assert (longer["total_steps"], longer["stopped"]) == (4096, None)


def test_the_state_of_an_earlier_version_is_read():
    """It knew nothing of tries: in each it played the episodes of the final evaluation."""
    looked = make_target()
    state = looked.state_dict()
    del state["tries"]
    looked.load_state_dict({**state, "found": [[101.0] * 3, [5] * 3, 0], "last_step": 40})
    assert (looked.tries, looked.summary) == (0, {"step": 40, "mean_return": 101.0, "episodes": 3})


def test_wrong_settings_are_refused():
    with pytest.raises(UsageError, match="target_return is tested in an evaluation, but eval_episodes=0"):
        surefoot.train("CartPole-v1", **{**PPO, "eval_episodes": 0}, target_return=100)
    envs = SyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(4)])
    with pytest.raises(UsageError, match="target_return needs an env of its own"):
        surefoot.train(envs, **{name: value for name, value in PPO.items() if name != "num_envs"}, target_return=100)
