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
from surefoot.engine.torch.learner import Learner
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
    assert f"To continue from step {step}:\nsurefoot resume run" in said


def test_a_run_that_failed_goes_on_once_the_env_is_mended(capsys):
    assert train("Numbers", {"what": "reward"}) == 1
    config = RUN / "config.toml"
    config.write_text(config.read_text().replace('"reward', '"nothing'))
    assert main(["resume", str(RUN), "--trust"]) == 0
    why = "an error ended the run in the middle of a rollout"
    assert f"could not be restored ({why}); they start afresh" in capsys.readouterr().out
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


# sys.exit() in somebody's code: an error of that code, never a run that looks as if it had gone well


def assert_blamed(said, where):
    assert re.search(rf"{where} of .*(Exits|CartPole-v1).* raised SystemExit: 0", said), said
    assert f'File "{ENVS}"' in said.partition("Traceback")[2]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("where", "at"), [("step", 70), ("reset", 5), ("close", 1)])
def test_an_env_that_calls_sys_exit_is_an_env_that_raises(capsys, where, at, workers):
    assert train("Exits", {"where": where, "at": at}, f"--workers={workers}") == 1
    assert_blamed(capsys.readouterr().err, where)
    run = opened(RUN)
    assert run.directory.read_status()["state"] == "failed"
    if where == "step":
        assert_failed_in_order(128)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["asyncio.CancelledError", "BaseException"])
def test_what_is_no_exception_is_an_error_of_the_env_all_the_same(capsys, kind, workers):
    """A cancelled task, and whatever a library derives from BaseException."""
    Path("mine.py").write_text(
        "import asyncio\nfrom gymnasium.envs.classic_control import CartPoleEnv\n\n"
        f"class Cancels(CartPoleEnv):\n    def step(self, action):\n        raise {kind}('no time')\n",
        encoding="utf-8",
    )
    assert main([*command(RUN, env="mine.py:Cancels", eval_every=None), f"--workers={workers}"]) == 1
    assert re.search(rf"step of .*Cancels.* raised {kind.split('.')[-1]}: no time", capsys.readouterr().err)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_env_that_calls_sys_exit_when_it_is_made_is_named_before_there_is_a_run(capsys, workers):
    assert train("Exits", {"where": "init"}, f"--workers={workers}") == 1
    assert "envs.py:Exits raised SystemExit" in capsys.readouterr().err
    assert not RUN.exists()


@pytest.mark.parametrize("where", ["init", "reset", "step", "close"])
def test_an_evaluation_that_meets_sys_exit_fails_and_the_training_is_kept(capsys, where):
    kwargs = json.dumps({"where": where, "at": 1})
    words = [*command(RUN, eval_every=None), f"--eval-env={ENVS}:Exits", f"--eval-env-kwargs={kwargs}"]
    assert main(words) == 1
    assert "raised SystemExit" in capsys.readouterr().err
    if where in ("reset", "step"):  # the others are met before the training
        assert newest(opened(RUN)).name == "1600"
        assert main(["eval", str(RUN), "--trust", "--episodes=1"]) == 1
        assert "raised SystemExit" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["render", "close"])
def test_a_video_that_meets_sys_exit_is_an_error_of_the_video(capsys, where):
    assert train("Exits", {"where": "nowhere"}, total_steps=32) == 0
    config = RUN / "config.toml"
    config.write_text(config.read_text().replace("nowhere", where))
    assert main(["video", str(RUN), "--trust", "--max-steps=3"]) == 1
    assert_blamed(capsys.readouterr().err, where)


@pytest.mark.parametrize("text", ["import sys; sys.exit(0)", "raise SystemExit"])
def test_a_file_or_module_that_calls_sys_exit_when_it_is_loaded_is_an_error(capsys, monkeypatch, text):
    Path("my_leaving_module.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(Path.cwd())
    assert main(["train", "my_leaving_module.py:Env", "--run-dir=run"]) == 1
    assert main(["train", "CartPole-v1", "--callbacks", "my_leaving_module:Callback", "--run-dir=run"]) == 1
    assert capsys.readouterr().err.count("raised SystemExit") == 2
    assert not RUN.exists()


def test_the_doctor_names_an_env_that_calls_sys_exit(capsys):
    assert main(["doctor", f"{ENVS}:Exits"]) == 1
    assert "SystemExit: 0" in capsys.readouterr().out


CALLBACK = """
import sys, surefoot
class Leaves(surefoot.Callback):
    def {method}(self, trainer, *_):
        if trainer.step >= {step}:
            sys.exit(0)
"""


@pytest.mark.parametrize(
    ("method", "state"), [("on_update", "failed"), ("on_log", "failed"), ("on_end", "failed"), ("on_exit", "done")]
)
def test_a_callback_that_calls_sys_exit_does_not_make_a_run_that_went_well(capsys, method, state):
    Path("mine.py").write_text(CALLBACK.format(method=method, step=800), encoding="utf-8")
    assert main([*command(RUN, eval_every=None), "--callbacks", "mine.py:Leaves"]) == 1
    said = capsys.readouterr().err
    assert "surefoot: sys.exit(0) was called inside the run; to end it early, a callback calls trainer.stop" in said
    assert 'mine.py", line 6' in said
    assert opened(RUN).directory.read_status()["state"] == state
    surefoot.load(RUN)
