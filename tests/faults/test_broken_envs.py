"""NaN and infinity, losses that explode, envs that raise: the run stops there, names it, and keeps what it has."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import surefoot
from surefoot.cli.main import main
from surefoot.engine.optimize import Learner
from surefoot.errors import NonFiniteError
from surefoot.kernels.network import Network
from surefoot.runs.checkpoints import read_verified
from tests.faults import envs
from tests.faults.runs import TINY, command, newest, opened

ENVS = Path(envs.__file__)
RUN = Path("run")


def train(env, kwargs, *words, **changes):
    words = [*words, f"--env-kwargs={json.dumps(kwargs)}"]
    return main([*command(RUN, env=f"{ENVS}:{env}", eval_every=None, **changes), *words])


def assert_failed_in_order(step):
    """The run is marked, its last whole state is saved and acts, what happened is written down."""
    run = opened(RUN)
    assert run.directory.read_status()["state"] == "failed"
    assert surefoot.load(run).predict(np.zeros(4, np.float32))[0] in (0, 1)
    assert read_verified(newest(run))[0]["step"] == step
    assert run.directory.is_locked() is False
    folder = run.directory.crash / str(step)
    facts = json.loads((folder / "facts.json").read_text())
    assert facts["step"] == step
    assert facts["error"].partition(":")[0] in (folder / "error.txt").read_text()
    return folder


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("what", ["observation", "reward", "final observation"])
def test_a_number_that_is_none_stops_the_run_at_that_step_and_names_it(capsys, what, value):
    assert train("Numbers", {"what": what, "value": value}) == 1
    said = capsys.readouterr().err
    assert re.search(
        rf"surefoot: {what} of CartPole-v1 \(env [01], seed \d+, episode \d+, step \d+\) is not finite: .*{value}", said
    )
    step = 128 if what != "final observation" else int(newest(opened(RUN)).name)
    assert step in (128, 160, 192)
    assert_failed_in_order(step)
    assert "what happened is in run/crash" in said


def test_a_run_that_failed_goes_on_once_the_env_is_mended(capsys):
    assert train("Numbers", {"what": "reward"}) == 1
    config = RUN / "config.toml"
    config.write_text(config.read_text().replace('"reward', '"nothing'))
    assert main(["resume", str(RUN), "--trust"]) == 0
    assert "could not be restored; they start afresh" in capsys.readouterr().out
    run = opened(RUN)
    assert run.directory.read_status()["state"] == "done"
    assert [row["step"] for row in run.metrics] == sorted({row["step"] for row in run.metrics})
    assert run.result["total_steps"] == 1600


class Watch(surefoot.Callback):
    """The weights before and after the last update."""

    def on_rollout(self, trainer, rollout):
        self.before, self.step = trainer.learner.flat.vector.clone(), trainer.step

    def on_end(self, trainer):
        self.after = trainer.learner.flat.vector.clone()


def assert_rejected(watch, caught):
    assert torch.equal(watch.before, watch.after)
    assert watch.after.isfinite().all()
    assert "it was rejected and the weights are as before it" in str(caught.value)
    folder = opened(RUN).directory.crash / str(watch.step)
    rollout = load_file(folder / "rollout.safetensors")
    assert rollout["obs"].shape == (17, 2, 4)
    assert rollout["reward"].shape == (16, 2)
    assert all(x.isfinite().all() for x in rollout.values() if x.is_floating_point())
    assert json.loads((folder / "facts.json").read_text())["rollout"]["obs"] == [17, 2, 4]
    assert opened(RUN).directory.read_status()["state"] == "failed"


@pytest.mark.parametrize("algo", ["ppo", "a2c", "vpg"])
def test_a_learning_rate_that_explodes_is_rejected_with_the_weights_as_before(algo):
    watch = Watch()
    settings = {**TINY, "algo": algo, "learning_rate": 1e30, "learning_rate_schedule": "constant", "eval_every": None}
    if algo != "ppo":
        settings = {name: value for name, value in settings.items() if name not in ("num_epochs", "num_minibatches")}
    with pytest.raises(NonFiniteError, match=r"learning_rate=1e\+30 may be too high") as caught:
        surefoot.train(**settings, run_dir=RUN, callbacks=[watch])
    assert_rejected(watch, caught)


def test_a_loss_that_becomes_nan_is_rejected_and_the_checkpoint_before_it_serves(monkeypatch):
    watch, real, calls = Watch(), Learner.descend, []

    def descend(learner, loss):
        calls.append(1)
        return real(learner, loss * float("nan") if len(calls) == 20 else loss)

    monkeypatch.setattr(Learner, "descend", descend)
    with pytest.raises(NonFiniteError, match="grad_norm") as caught:
        surefoot.train(**TINY, run_dir=RUN, callbacks=[watch], engine="torch")
    assert_rejected(watch, caught)
    assert_finite(watch)


def test_kernels_that_make_a_weight_nan_are_rejected_too(monkeypatch):
    watch, real, calls = Watch(), Network.epochs, []

    def epochs(net, theta, *args, **kwargs):
        found = real(net, theta, *args, **kwargs)
        calls.append(1)
        if len(calls) == 20:
            theta[0] = float("nan")
        return found

    monkeypatch.setattr(Network, "epochs", epochs)
    with pytest.raises(NonFiniteError, match="the parameters") as caught:
        surefoot.train(**TINY, run_dir=RUN, callbacks=[watch], engine="native")
    assert_rejected(watch, caught)
    assert_finite(watch)


def assert_finite(watch):
    weights = surefoot.load(RUN).policy.state_dict()
    assert all(tensor.isfinite().all() for tensor in weights.values())
    assert newest(opened(RUN)).name == str(watch.step) == "608"


NAME = r"(CartPole-v1|Breaks) \(env \d+, seed \d+, episode \d+, step \d+\)"


def assert_shows_my_traceback(said):
    """Mine, from my file, and not a frame of surefoot before it."""
    trace = said.partition("Traceback")[2]
    assert "ZeroDivisionError: the gear of my simulator jammed" in trace
    assert f'File "{ENVS}"' in trace
    assert "in jam" in trace
    assert "surefoot/envs" not in trace


@pytest.mark.parametrize(("where", "at", "step"), [("step", 70, 128), ("reset", 5, None), ("step", 1, None)])
def test_an_env_that_raises_is_named_and_shows_its_own_traceback(capsys, where, at, step):
    assert train("Breaks", {"where": where, "at": at}) == 1
    said = capsys.readouterr().err
    assert re.search(rf"surefoot: {where} of {NAME} raised ZeroDivisionError: the gear of my simulator jammed", said)
    assert_shows_my_traceback(said)
    assert opened(RUN).directory.read_status()["state"] == "failed"
    if step is not None:
        assert_failed_in_order(step)


@pytest.mark.parametrize("at", [1, 2])
def test_an_env_that_raises_when_it_is_made_is_named_before_there_is_a_run(capsys, monkeypatch, at):
    assert train("Breaks", {"where": "init", "at": at}) == 1
    said = capsys.readouterr().err
    first = said.partition("Traceback")[0]
    assert "envs.py:Breaks" in first
    assert "raised ZeroDivisionError" in first
    assert "the gear of my simulator jammed" in first
    assert_shows_my_traceback(said)
    assert not RUN.exists()


def test_an_env_that_raises_when_it_is_closed_loses_nothing(capsys):
    """The training is done and saved; that the env does not close is said, with its traceback."""
    code = train("Breaks", {"where": "close", "at": 1})
    said = capsys.readouterr().err
    assert code == 1
    assert re.search(rf"close of {NAME} raised ZeroDivisionError: the gear of my simulator jammed", said)
    assert_shows_my_traceback(said)
    assert newest(opened(RUN)).name == "1600"
    surefoot.load(opened(RUN))


def test_an_env_that_raises_in_an_evaluation_is_named_and_the_training_is_kept(capsys):
    """Ten thousand steps are more than the training makes; `eval_env` breaks at its third."""
    kwargs = json.dumps({"where": "step", "at": 3})
    words = [*command(RUN, eval_every=None), f"--eval-env={ENVS}:Breaks", f"--eval-env-kwargs={kwargs}"]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert re.search(rf"evaluation: .*{NAME} raised ZeroDivisionError", said)
    assert_shows_my_traceback(said)
    assert newest(opened(RUN)).name == "1600"
    surefoot.load(opened(RUN))


def test_an_env_that_cannot_draw_is_an_error_of_the_video_and_no_end_of_a_training(capsys):
    assert train("Breaks", {"where": "render", "at": 2}, "--video-every=800") == 0
    said = capsys.readouterr().out
    assert len(re.findall("warning: .*could not be made", said)) == 1
    assert re.search(rf"render of {NAME} raised ZeroDivisionError: the gear of my simulator jammed", said)
    assert opened(RUN).directory.read_status()["state"] == "done"
    assert list(RUN.rglob("*.mp4")) == []
    assert main(["video", str(RUN), "--trust"]) == 1
    said = capsys.readouterr().err
    assert re.search(rf"render of {NAME} raised ZeroDivisionError", said)
    assert_shows_my_traceback(said)
    assert list(RUN.rglob("*.mp4")) == []
