"""Evaluation during training: fixed episodes of its own, the best kept, nothing else changed."""

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import surefoot
from surefoot.envs.playing import Abandoned
from surefoot.errors import CheckpointError, UsageError
from surefoot.training.config.resolve import resolve
from surefoot.training.evaluation.result import Evaluation
from surefoot.training.loop.selection import Selection

QUIET = {"progress": False, "eval_episodes": 3, "preset": "none", "seed": 2, "num_envs": 4, "rollout_length": 64}
EVALUATED = {**QUIET, "total_steps": 2048, "eval_every": 512, "selection_episodes": 4, "log_every": 1024}


def scores(monkeypatch, values):
    """Evaluations that find these mean returns, one after the other."""
    found, seen = iter(values), []

    def evaluate(agent, make, *, seed, **kwargs):
        seen.append(seed)
        return Evaluation((float(next(found)),) * 4, (10,) * 4, 0, True)

    monkeypatch.setattr("surefoot.training.loop.selection.evaluate_agent", evaluate)
    return seen


def test_the_best_checkpoint_is_the_one_that_was_evaluated_best(monkeypatch):
    seen = scores(monkeypatch, [5, 9, 7, 9])
    run = surefoot.train("CartPole-v1", **EVALUATED)
    assert (run.path / "checkpoints" / "BEST").read_text() == "1024\n"  # the first of two equals
    assert run.result["best"] == {"step": 1024, "selection_return": 9.0}
    rows = {row["step"]: row.get("eval_return") for row in run.metrics}
    assert rows == {512: 5.0, 1024: 9.0, 1536: 7.0, 2048: 9.0}
    assert len(set(seen)) == 1  # the same episodes every time ...
    assert seen[0] != run.config["seed"]  # ... and not those of the final evaluation
    best, last = (surefoot.load(run, which).policy.state_dict() for which in ("best", "latest"))
    assert any((best[name] != last[name]).any() for name in best)
    assert str(surefoot.load(run, 1024).policy.state_dict()) == str(best)


def test_evaluation_changes_nothing_but_its_own_columns(tmp_path):
    with_, without = (
        surefoot.train("CartPole-v1", run_dir=tmp_path / str(every), **{**EVALUATED, "eval_every": every})
        for every in (1024, None)
    )
    names = ("eval_return", "eval_return_low", "eval_return_high", "eval_length")
    plain = [{name: value for name, value in row.items() if name not in names} for row in with_.metrics]
    assert plain == without.metrics
    assert all(name in with_.metrics[0] for name in names)
    assert with_.result["eval"] == without.result["eval"]
    assert without.result["best"] is None
    with pytest.raises(CheckpointError, match="no best checkpoint"):
        surefoot.load(without, "best")


def test_the_end_of_a_run_is_evaluated_too():
    run = surefoot.train("CartPole-v1", **{**EVALUATED, "total_steps": 1300})
    assert [row["step"] for row in run.metrics if "eval_return" in row] == [512, 1024, 1280]


def test_an_abandoned_evaluation_is_made_again():
    config = resolve("CartPole-v1", preset="none", overrides={"eval_every": 100, "selection_episodes": 2}).run
    selection = Selection(config, 0, lambda: gym.make("CartPole-v1"))
    agent = surefoot.load(surefoot.train("CartPole-v1", **{**QUIET, "total_steps": 256}))
    with pytest.raises(Abandoned):
        selection.run(agent, 120, lambda: True)
    assert selection.due(120)
    assert selection.best is None
    selection.run(agent, 120, lambda: False)
    assert not selection.due(120)
    assert (selection.next_step, selection.best[0]) == (200, 120)
    other = Selection(config, 0)
    other.load_state_dict(json.loads(json.dumps(selection.state_dict())))
    assert other.state_dict() == {"next_step": 200, "last_step": 120, "best": selection.best, "waited": 0}


def test_a_best_that_the_disk_refused_is_not_the_best(monkeypatch):
    from surefoot.training.loop import writing

    scores(monkeypatch, [5, 9, 7, 6])
    real = writing.write_checkpoint

    def full_at_1024(root, step, *what, **how):
        if step == 1024:
            raise OSError(28, "No space left on device")
        return real(root, step, *what, **how)

    monkeypatch.setattr(writing, "write_checkpoint", full_at_1024)
    run = surefoot.train("CartPole-v1", **EVALUATED)
    assert run.result["best"] == {"step": 1536, "selection_return": 7.0}
    assert np.isfinite(surefoot.load(run, "best").predict(np.zeros(4))[0])
    assert run.directory.read_status()["state"] == "done"
    assert "could not be written" in run.directory.log.read_text()


def test_a_ready_made_vector_env_needs_another_to_evaluate_in():
    envs = SyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(4)])
    settings = {name: value for name, value in EVALUATED.items() if name != "num_envs"}
    with pytest.raises(UsageError, match="eval_every needs an env of its own"):
        surefoot.train(envs, **settings)
    envs = SyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(4)])
    run = surefoot.train(envs, **settings, eval_env="CartPole-v1")
    assert run.result["best"] is not None


PATIENT = {**EVALUATED, "total_steps": 4096, "patience": 2}


def test_patience_stops_a_run_whose_evaluations_do_not_improve(monkeypatch):
    scores(monkeypatch, [5, 4, 9, 9, 7, 100])
    run = surefoot.train("CartPole-v1", **PATIENT)
    assert run.result["stopped"] == "patience"
    assert run.status["why"] == "patience"
    assert run.result["total_steps"] == 5 * 512  # an equal one is no better
    assert run.result["best"]["step"] == 3 * 512
    assert run.metrics[-1]["step"] == run.checkpoints.latest == 5 * 512
    assert run.result["eval"] is not None


def test_patience_that_runs_out_with_the_budget_did_not_stop_the_run(monkeypatch):
    scores(monkeypatch, [5, 4, 3])
    run = surefoot.train("CartPole-v1", **{**PATIENT, "total_steps": 1536})
    assert run.result["stopped"] is None


def test_patience_survives_a_kill_exactly(monkeypatch, tmp_path):
    values = [5, 6, 4, 6, 3, 2]
    scores(monkeypatch, values)
    whole = surefoot.train("CartPole-v1", run_dir=tmp_path / "whole", **PATIENT)
    assert whole.result["total_steps"] == 4 * 512

    class Kill(surefoot.Callback):
        def on_rollout(self, trainer, rollout):
            if trainer.step >= 3 * 512:  # one of two evaluations has been waited for
                trainer.save = lambda **_: None
                raise KeyboardInterrupt

    scores(monkeypatch, values)
    often = {**PATIENT, "checkpoint_every": 256}
    with pytest.raises(KeyboardInterrupt):
        surefoot.train("CartPole-v1", run_dir=tmp_path / "killed", **often, callbacks=[Kill()])
    scores(monkeypatch, values[3:])
    killed = surefoot.resume(tmp_path / "killed", progress=False)
    assert killed.result["stopped"] == "patience"
    assert (killed.path / "metrics.jsonl").read_bytes() == (whole.path / "metrics.jsonl").read_bytes()


def test_a_run_out_of_patience_stays_as_it_is_until_it_is_given_more_steps(monkeypatch):
    scores(monkeypatch, [5, 4, 3])
    run = surefoot.train("CartPole-v1", **PATIENT)
    rows = (run.path / "metrics.jsonl").read_bytes()
    assert surefoot.resume(run, progress=False).result["stopped"] == "patience"
    assert (run.path / "metrics.jsonl").read_bytes() == rows
    scores(monkeypatch, [2, 1])
    more = surefoot.resume(run, total_steps=8192, progress=False)
    assert more.result["total_steps"] == 5 * 512
    assert "patience of 2 evaluations is exhausted; the count starts again" in more.directory.log.read_text()


def test_patience_needs_evaluations():
    with pytest.raises(UsageError, match=r"patience has no effect without eval_every.*set --eval-every"):
        resolve("CartPole-v1", overrides={"patience": 3})
    resolve("CartPole-v1", overrides={"patience": 3, "eval_every": "none"})  # switched off in so many words
    with pytest.raises(UsageError, match="patience=0 is too small"):
        resolve("CartPole-v1", overrides={"patience": 0, "eval_every": 1000})
