"""Train 2k steps = train k, be stopped, resume k: the same rows and weights, byte for byte."""

import json
import os
import signal
from importlib.util import find_spec

import numpy as np
import pytest

import surefoot
from surefoot.algorithms import ALGORITHMS
from surefoot.api import resume
from surefoot.cli.main import main
from surefoot.errors import BusyError, CheckpointError, UsageError
from surefoot.runs import RunDirectory
from surefoot.training.life.session import Interrupted
from tests.helpers import episode_rows
from tests.marks import quick

EXTRAS = {"normalize_observations": True, "normalize_rewards": True, "learning_rate_schedule": "linear", "num_envs": 3}


ENVS = {  # env -> (the package that it needs beyond the base, its settings)
    "CartPole-v1": ("gymnasium", {}),
    "Pendulum-v1": ("gymnasium", {}),
    "LunarLander-v3": ("Box2D", {}),
    "HalfCheetah-v5": ("mujoco", {}),
    "Hopper-v5": ("mujoco", {}),
    "Ant-v5": ("mujoco", {}),
    "ALE/Pong-v5": ("ale_py", {"env_kwargs": {"obs_type": "ram"}}),
}


def settings(algo):
    common = {**EXTRAS, "preset": "none", "progress": False, "seed": 3, "eval_episodes": 2, "eval_max_steps": 200}
    common |= {"eval_every": 700, "selection_episodes": 2}
    if algo == "reinforce":
        return {**common, "total_steps": 9000, "max_episode_steps": 100, "log_every": 1500, "checkpoint_every": 1800}
    length = 6 if algo == "a2c" else 36
    return {**common, "total_steps": 1800, "rollout_length": length, "log_every": 250, "checkpoint_every": 400}


class Die(surefoot.Callback):
    """Ends the run the hard way in the middle of a rollout, some time after a checkpoint."""

    def __init__(self, update):
        self.update = update

    def on_rollout(self, trainer, rollout):
        if trainer.update == self.update:
            trainer.run.set_status("running", step=0)
            trainer.save = lambda **_: None  # a killed process saves nothing
            raise KeyboardInterrupt


def weights(run):
    return max(run.path.glob("checkpoints/*"), key=lambda p: int(p.name) if p.name.isdigit() else -1)


def same(left, right):
    assert (left.path / "metrics.jsonl").read_bytes() == (right.path / "metrics.jsonl").read_bytes()
    assert episode_rows(left) == episode_rows(right)
    for name in ("policy.safetensors", "policy.json"):
        assert (weights(left) / name).read_bytes() == (weights(right) / name).read_bytes()
    best = [run.path / "checkpoints" / (run.path / "checkpoints" / "BEST").read_text().strip() for run in (left, right)]
    assert best[0].name == best[1].name
    assert len({(folder / "policy.safetensors").read_bytes() for folder in best}) == 1
    assert left.result["eval"] == right.result["eval"]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("env", quick(ENVS, "CartPole-v1", "Pendulum-v1"))
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_killed_run_resumes_to_the_bytes_of_an_uninterrupted_one(algo, env, tmp_path):
    package, own = ENVS[env]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    whole = surefoot.train(env, algo, run_dir=tmp_path / "whole", **settings(algo), **own)
    die = Die(whole.result["updates"] * 2 // 3)
    with pytest.raises(KeyboardInterrupt):
        surefoot.train(env, algo, run_dir=tmp_path / "killed", callbacks=[die], **settings(algo), **own)
    resumed = resume(tmp_path / "killed", progress=False)
    same(resumed, whole)


MEMORIES = [("ppo", "gru"), ("trpo", "lstm"), ("reinforce", "gru"), ("a2c", "lstm")]


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "memory"), quick(MEMORIES, ("ppo", "gru"), ("trpo", "lstm")))
def test_a_memory_resumes_exactly(algo, memory, tmp_path):
    own = {"memory": memory, "memory_size": 16, "num_envs": 4}
    whole = surefoot.train("CartPole-v1", algo, run_dir=tmp_path / "whole", **settings(algo) | own)
    assert whole.result["engine"] == "native"
    die = Die(whole.result["updates"] * 2 // 3)
    with pytest.raises(KeyboardInterrupt):
        surefoot.train("CartPole-v1", algo, run_dir=tmp_path / "killed", callbacks=[die], **settings(algo) | own)
    same(resume(tmp_path / "killed", progress=False), whole)


@pytest.mark.parametrize("algo", quick(["ppo", "trpo"], "ppo"))
def test_the_torch_engine_resumes_exactly_too(algo, tmp_path):
    given = {**settings(algo), "engine": "torch"}
    whole = surefoot.train("CartPole-v1", algo, run_dir=tmp_path / "whole", **given)
    die = Die(whole.result["updates"] * 2 // 3)
    with pytest.raises(KeyboardInterrupt):
        surefoot.train("CartPole-v1", algo, run_dir=tmp_path / "killed", callbacks=[die], **given)
    same(resume(tmp_path / "killed", progress=False), whole)


UPDATES = {
    "surrogate": {"surrogate": "spo"},
    "clock": {"optimizer": "adam-rel"},
    "noise": {"mean_noise": 0.3},
    "outer": {"outer_learning_rate": 1.3},
    "critic": {"value_epochs": 3},
}
UPDATES["all"] = {name: value for settings in UPDATES.values() for name, value in settings.items()}
CASES = [(engine, case) for engine in ("native", "torch") for case in UPDATES]


@pytest.mark.parametrize(("engine", "case"), quick(CASES, ("native", "all")))
def test_settings_that_change_an_update_resume_exactly(engine, case, tmp_path):
    given = {**settings("ppo"), "engine": engine, "num_epochs": 2, **UPDATES[case]}
    whole = surefoot.train("Pendulum-v1", "ppo", run_dir=tmp_path / "whole", **given)
    die = Die(whole.result["updates"] * 2 // 3)
    with pytest.raises(KeyboardInterrupt):
        surefoot.train("Pendulum-v1", "ppo", run_dir=tmp_path / "killed", callbacks=[die], **given)
    same(resume(tmp_path / "killed", progress=False), whole)


def test_another_engine_goes_on_and_says_so(tmp_path, capsys):
    run = surefoot.train("CartPole-v1", run_dir=tmp_path / "a", **settings("ppo"))
    assert run.result["engine"] == "native"
    file = run.path / "config.toml"
    file.write_text(file.read_text().replace('engine = "auto"', 'engine = "torch"'))
    resumed = resume(run, total_steps="3k")
    assert resumed.result["engine"] == "torch"
    assert "began with the native engine and continues with torch (as asked)" in capsys.readouterr().out


@pytest.mark.parametrize("update", [5, 15], ids=["midway", "last"])
def test_a_signal_finishes_the_update_and_saves_an_exact_checkpoint(tmp_path, update):
    class Term(surefoot.Callback):
        def on_rollout(self, trainer, rollout):
            if trainer.update == update:
                os.kill(os.getpid(), signal.SIGTERM)

    whole = surefoot.train("CartPole-v1", run_dir=tmp_path / "whole", **settings("ppo"))
    with pytest.raises(Interrupted, match="everything is saved") as caught:
        surefoot.train("CartPole-v1", run_dir=tmp_path / "stopped", callbacks=[Term()], **settings("ppo"))
    assert caught.value.exit_code == 143
    assert RunDirectory(tmp_path / "stopped").read_status()["state"] == "interrupted"
    same(resume(tmp_path / "stopped", progress=False), whole)


LINEAR = {"learning_rate": 1e-3, "clip_ratio_schedule": "linear", "log_every": 1}


def test_more_steps_are_the_schedules_new_horizon(tmp_path, capsys):
    """A finished run's learning rate is near 0. Extended, it has that of a run which was so long from the start."""
    run = surefoot.train("CartPole-v1", run_dir=tmp_path / "a", **settings("ppo") | LINEAR)
    end = run.result["total_steps"]
    assert end == 1728
    longer = resume(run, total_steps="3600")
    assert longer.result["total_steps"] == 3564
    said = capsys.readouterr().out
    assert "total_steps is 3,600 from now on; it was 1,800. Schedules end there: " in said
    assert "learning_rate goes on at 0.00052 instead of 4e-05" in said
    assert "clip_ratio goes on at 0.104 instead of 0.008" in said
    for row in longer.metrics:
        before = row["step"] - 108  # one rollout
        expected = 1e-3 * (1 - before / (1800 if row["step"] <= end else 3600))
        assert row["learning_rate"] == pytest.approx(expected), row["step"]
    assert longer.config["total_steps"] == 3600
    assert json.loads((run.path / "manifest.json").read_text())["extended"] == [
        {"step": 1728, "from": 1800, "to": 3600}
    ]
    assert resume(run, progress=False).result["total_steps"] == 3564  # it is done, and not back at 1800


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["native", "torch"])
def test_an_extended_run_that_is_killed_resumes_to_the_same_bytes(engine, tmp_path):
    given = settings("ppo") | LINEAR | {"engine": engine}

    class Suspend(surefoot.Callback):
        def on_update(self, trainer, metrics):
            if trainer.update == 8:
                trainer.suspend("halfway")

    runs = [tmp_path / name for name in ("whole", "killed")]
    for folder in runs:
        surefoot.train("CartPole-v1", run_dir=folder, callbacks=[Suspend()], **given)
    whole = resume(runs[0], total_steps=3000, progress=False)
    with pytest.raises(KeyboardInterrupt):
        resume(runs[1], total_steps=3000, progress=False, callbacks=[Die(20)])
    same(resume(runs[1], progress=False), whole)
    assert whole.metrics[8]["learning_rate"] == pytest.approx(1e-3 * (1 - 8 * 108 / 3000))


def test_a_resume_that_is_refused_changes_no_horizon(tmp_path):
    run = surefoot.train("CartPole-v1", run_dir=tmp_path / "a", **settings("ppo"))
    before = (run.path / "config.toml").read_bytes(), (run.path / "manifest.json").read_bytes()
    with pytest.raises(UsageError, match="already at step"):
        resume(run, total_steps=1000)
    resume(run, max_time="1h", progress=False)
    assert before == ((run.path / "config.toml").read_bytes(), (run.path / "manifest.json").read_bytes())


def test_a_rate_that_a_callback_has_set_has_no_horizon(tmp_path, capsys):
    class Set(surefoot.Callback):
        def on_update(self, trainer, metrics):
            trainer.learner.learning_rate = 5e-4

    run = surefoot.train("CartPole-v1", run_dir=tmp_path / "a", callbacks=[Set()], **settings("ppo"))
    longer = resume(run, total_steps=2400)
    assert "total_steps is 2,400 from now on; it was 1,800\n" in capsys.readouterr().out
    assert longer.metrics[-1]["learning_rate"] == pytest.approx(5e-4)


def test_a_repetition_says_that_the_run_was_extended(tmp_path, capsys):
    run = surefoot.train("CartPole-v1", run_dir=tmp_path / "a", **settings("ppo"))
    assert main(["train", "--like", str(run.path), "--dry-run"]) == 0
    assert "on the way" not in capsys.readouterr().err
    resume(run, total_steps=2400, progress=False)
    assert main(["train", "--like", str(run.path), "--dry-run"]) == 0
    assert "that run's total_steps was changed on resume" in capsys.readouterr().err


def test_a_budget_below_the_present_step_is_refused(tmp_path):
    run = surefoot.train("CartPole-v1", run_dir=tmp_path / "a", **settings("ppo"))
    with pytest.raises(UsageError, match="already at step 1,728"):
        resume(run, total_steps=1000)


def test_a_damaged_checkpoint_is_passed_over_and_said(tmp_path, capsys):
    whole = surefoot.train("CartPole-v1", run_dir=tmp_path / "whole", **settings("ppo"))
    run = surefoot.train("CartPole-v1", run_dir=tmp_path / "hurt", **settings("ppo"))
    file = weights(run) / "state.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    resumed = resume(run)
    assert "skipped" in capsys.readouterr().out
    same(resumed, whole)


def test_an_env_that_does_not_come_back_starts_afresh_and_is_named(tmp_path, capsys):
    (tmp_path / "wild.py").write_text(
        "import gymnasium as gym, numpy as np\n"
        "class Wild(gym.Wrapper):\n"
        "    made = 0\n"
        "    def __init__(self):\n"
        "        super().__init__(gym.make('CartPole-v1'))\n"
        "        Wild.made += 1\n"
        "        self.shift = Wild.made\n"
        "    def step(self, action):\n"
        "        obs, *rest = self.env.step(action)\n"
        "        return (obs + np.float32(1e-3 * self.shift), *rest)\n"
    )
    run = surefoot.train(f"{tmp_path}/wild.py:Wild", run_dir=tmp_path / "run", **settings("ppo"))
    resume(run, total_steps=2400)
    assert "could not be restored; they start afresh" in capsys.readouterr().out


def test_two_processes_cannot_hold_one_run(tmp_path):
    run = surefoot.train("CartPole-v1", run_dir=tmp_path / "a", **settings("ppo"))
    holder = RunDirectory(run.path)
    holder.lock()
    with pytest.raises(BusyError, match=r"is in use by pid \d+ on "):
        resume(run)
    holder.unlock()
    resume(run, total_steps=2400, progress=False)


def test_changed_spaces_are_refused(tmp_path):
    run = surefoot.train("CartPole-v1", run_dir=tmp_path / "a", **settings("ppo"))
    config = run.path / "config.toml"
    text = config.read_text()
    config.write_text(text.replace('env = "CartPole-v1"', 'env = "Acrobot-v1"'))
    with pytest.raises(CheckpointError, match="was trained with env CartPole-v1, not Acrobot-v1"):
        resume(run)
    config.write_text(text.replace("wrappers = []", 'wrappers = ["TimeAwareObservation"]'))
    with pytest.raises(CheckpointError, match="observation_space is not the one"):
        resume(run)


def test_a_resumed_finished_run_changes_nothing(tmp_path):
    run = surefoot.train("CartPole-v1", run_dir=tmp_path / "a", **settings("ppo"))
    before = (run.path / "metrics.jsonl").read_bytes()
    again = resume(run, progress=False)
    assert (again.path / "metrics.jsonl").read_bytes() == before
    assert np.isclose(again.result["eval"]["mean_return"], run.result["eval"]["mean_return"])
