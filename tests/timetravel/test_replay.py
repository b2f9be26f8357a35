"""An update that is replayed is the one that the run made: the same row, the same weights, and no file is touched."""

import json
import random
import shutil

import numpy as np
import pytest
import safetensors.torch
import torch

import surefoot
from surefoot.algorithms import ALGORITHMS
from surefoot.cli.main import main
from surefoot.errors import CheckpointError, UsageError
from surefoot.runs.checkpoints import steps_of
from tests.test_old_runs import FOLDERS
from tests.timetravel.making import fingerprint, settings, train

NORMALIZED = {"normalize_observations": True, "normalize_rewards": True, "learning_rate_schedule": "linear"}


def policy_at(run, step):
    return safetensors.torch.load_file(run.path / "checkpoints" / str(step) / "policy.safetensors")


def assert_same_weights(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


def without(run, keep):
    """Remove the checkpoints that are not to be kept."""
    for folder in steps_of(run.directory.checkpoints):
        if int(folder.name) not in keep:
            shutil.rmtree(folder)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_is_replayed_exactly(algo, engine):
    run = train(algo, "Pendulum-v1" if algo in ("trpo", "ppo") else "CartPole-v1", engine=engine, **NORMALIZED)
    before, last = fingerprint(run), run.result["updates"]
    for update in (1, last // 2, last):
        found = surefoot.replay(run, update)
        assert found.update == update
        assert found.exact, (found.differences, found.notes)
        assert found.row == found.logged
        assert found.rollout.num_steps
        assert found.batch is not None
        norms = found.gradients.norms
        assert len(norms) == len(found.gradients)
        assert float(norms.double().mean()) == pytest.approx(found.metrics["grad_norm"], rel=1e-4)
        assert float(found.samples.kl[found.rollout.valid.flatten()].mean()) == pytest.approx(
            found.metrics["kl"], rel=1e-2, abs=1e-6
        )
        if algo in ("npg", "trpo"):
            assert found.gradients.policy.shape == found.gradients.natural_step.shape
    assert_same_weights(found.weights_after, policy_at(run, found.step))
    assert fingerprint(run) == before


def test_the_weights_on_the_way_are_those_of_the_checkpoints():
    run = train()
    steps = [int(folder.name) for folder in steps_of(run.directory.checkpoints)]
    assert len(steps) > 3
    for step in steps[:3]:
        found = surefoot.replay(run, step=step)
        assert found.step == step
        assert found.start != f"the checkpoint of step {step:,}"
        assert_same_weights(found.weights_after, policy_at(run, step))
        following = surefoot.replay(run, step=step + 1)
        assert following.update == found.update + 1
        assert following.start == f"the checkpoint of step {step:,}"
        assert_same_weights(following.weights_before, found.weights_after)


@pytest.mark.parametrize("engine", ["native", pytest.param("torch", marks=pytest.mark.slow)])
@pytest.mark.parametrize("memory", ["gru", pytest.param("lstm", marks=pytest.mark.slow)])
def test_a_memory_is_replayed_exactly(memory, engine):
    run = train(engine=engine, memory=memory, memory_size=4, **NORMALIZED)
    found = surefoot.replay(run, 9)
    assert found.exact
    assert "rollout/context/memory" in found.arrays()


@pytest.mark.slow
def test_workers_and_more_than_one_epoch_of_estimates():
    run = train(env="Pendulum-v1", workers=2, recompute_advantage=True, num_epochs=3)
    assert surefoot.replay(run, 9).exact


@pytest.mark.slow
def test_rows_with_evaluations_are_the_same_too():
    run = train(eval_every=200, selection_episodes=2, eval_max_steps=20)
    without(run, [])
    rows = [row for row in run.metrics if "eval_return" in row]
    assert len(rows) > 2
    found = surefoot.replay(run, rows[1]["update"])
    assert found.exact
    assert found.row["eval_return"] == rows[1]["eval_return"]
    assert found.start == "the beginning of the run"


@pytest.mark.slow
def test_gradients_have_names_and_make_the_first_step():
    """Adam's first step is the learning rate times the sign of the gradient."""
    run = train("vpg", learning_rate=1e-3, max_grad_norm=None)
    found = surefoot.replay(run, 1)
    gradients = found.gradients[0]
    assert gradients.keys() == {slot.name for slot in found.gradients.slots}
    for name, gradient in gradients.items():
        step = found.weights_after[name] - found.weights_before[name]
        sure = gradient.abs() > 2e-3  # far above the epsilon of Adam
        assert gradient.shape == step.shape
        torch.testing.assert_close(step[sure], -1e-3 * gradient.sign()[sure], rtol=1e-2, atol=1e-6)
    assert list(found.gradients.tensor_norms.values()) == sorted(found.gradients.tensor_norms.values(), reverse=True)


@pytest.mark.slow
def test_a_run_that_was_given_more_steps_is_replayed_through_both_of_its_lives():
    """Schedules end at the budget in force: it was another one before the resume."""
    run = train(learning_rate_schedule="linear")
    first = run.result["updates"]
    surefoot.resume(run, total_steps=2 * run.config["total_steps"], progress=False)
    last = run.result["updates"]
    assert last == 2 * first
    without(run, [])
    for update in (first - 1, first, first + 1, last):
        assert surefoot.replay(run, update).exact, update


@pytest.mark.slow
def test_a_run_that_went_on_beyond_its_target_is_replayed_through_it():
    run = train(target_return=1.0, total_steps=960, eval_episodes=2, eval_max_steps=20)
    first = run.result["updates"]
    assert run.result["stopped"] == "target_return"
    surefoot.resume(run, total_steps=1000, progress=False)
    assert run.result["updates"] > first
    for kept in (list(run.checkpoints.steps), []):
        without(run, kept)
        assert surefoot.replay(run, run.result["updates"]).exact


class StopAt(surefoot.Callback):
    def __init__(self, update):
        self.update = update

    def on_update(self, trainer, metrics):
        if trainer.update == self.update:
            trainer.stop("enough")


@pytest.mark.slow
def test_a_run_that_a_callback_stopped_has_its_last_row_too():
    run = surefoot.train("CartPole-v1", run_dir="run", callbacks=[StopAt(7)], **settings())
    assert run.metrics[-1]["update"] == 7
    assert surefoot.replay(run, 7).exact


class Killed(surefoot.Callback):
    def on_rollout(self, trainer, rollout):
        if trainer.update == 7:
            trainer.save = lambda **_: None
            raise KeyboardInterrupt


def test_without_a_row_there_is_nothing_to_compare_with():
    with pytest.raises(KeyboardInterrupt):
        surefoot.train(
            "CartPole-v1", run_dir="run", callbacks=[Killed()], **settings(log_every=10_000, checkpoint_every=96)
        )
    run = surefoot.Run("run")
    found = surefoot.replay(run, 3)
    assert (found.exact, found.logged, found.row) == (None, None, None)
    assert found.metrics["kl"] >= 0.0
    assert "none was logged" in repr(found)


@pytest.mark.slow
def test_the_update_that_was_rejected_can_be_looked_into():
    with pytest.raises(surefoot.NonFiniteError):
        train(learning_rate=1e30, max_grad_norm=None, checkpoint_every=48)
    run = surefoot.Run("run")
    failed = json.loads(next(run.path.glob("crash/*/facts.json")).read_text())["update"] + 1
    found = surefoot.replay(run, failed)
    assert "not finite" in found.error
    assert len(found.gradients)
    assert_same_weights(found.weights_before, found.weights_after)
    with pytest.raises(UsageError, match=f"updates 1 to {failed}"):
        surefoot.replay(run, failed + 1)


def test_a_row_that_is_not_as_logged_is_said_to_be_so(capsys):
    run = train()
    rows = run.metrics
    rows[2]["kl"] += 1e-12
    run.directory.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = surefoot.replay(run, rows[2]["update"])
    assert found.exact is False
    assert list(found.differences) == ["kl"]
    assert found.parted == rows[2]["update"]
    assert found.reasons
    assert main(["replay", "run", "--update", str(rows[2]["update"])]) == 1
    said = capsys.readouterr().out
    assert "NOT as logged" in said
    assert "It may differ because of:" in said
    assert surefoot.replay(run, rows[3]["update"]).exact


def test_a_damaged_checkpoint_is_passed_over_unless_strict():
    run = train()
    good, bad = steps_of(run.directory.checkpoints)[:2]
    (bad / "policy.safetensors").write_bytes(b"nothing")
    found = surefoot.replay(run, step=int(bad.name) + 1)
    assert found.exact
    assert found.start == f"the checkpoint of step {int(good.name):,}"
    assert any("skipped" in note for note in found.notes)
    with pytest.raises(CheckpointError):
        surefoot.replay(run, step=int(bad.name) + 1, strict=True)


@pytest.mark.slow
def test_the_callers_generators_are_left_alone():
    run = train()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), float(torch.rand(()))
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    surefoot.replay(run, 2)
    assert (random.random(), np.random.rand(), float(torch.rand(()))) == expected


ENV = "import gymnasium\n\ndef make(**kwargs):\n    return gymnasium.make('CartPole-v1', **kwargs)\n"


def test_what_cannot_be_replayed_is_said_clearly(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(ENV)
    run = train(env="mine.py:make")
    assert surefoot.replay(run, 2).exact  # one's own run needs no word
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    with pytest.raises(UsageError, match=r"env = mine\.py:make\n.*--trust"):
        surefoot.replay(run, 2)
    assert surefoot.replay(run, 2, trust=True).exact
    from_python = train(env=lambda: __import__("gymnasium").make("CartPole-v1"), run_dir="lambda")
    with pytest.raises(UsageError, match="made in Python"):
        surefoot.replay(from_python, 2)
    for wrong, message in (({}, "say which"), ({"update": 2, "step": 3}, "say which"), ({"update": 99}, "1 to 16")):
        with pytest.raises(UsageError, match=message):
            surefoot.replay(run, **wrong)
    with pytest.raises(UsageError, match="there is no step 0"):
        surefoot.replay(run, step=0)


@pytest.mark.parametrize("schema", [7, "\x1b[31m"])
def test_a_run_of_another_version(schema, tmp_path):
    """Its rows may mean something else; a difference would be no news."""
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": schema}))
    for question in (lambda: surefoot.replay(tmp_path, 1), lambda: surefoot.diff(tmp_path, tmp_path)):
        with pytest.raises(CheckpointError, match=r"was written by (a newer|another version of) surefoot") as refused:
            question()
        assert str(refused.value).isprintable()


def test_the_command_saves_every_array(capsys):
    run = train("trpo")
    for file in ("arrays.npz", "arrays.safetensors"):
        assert main(["replay", "run", "--update", "5", "--json", "--out", file]) == 0
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        arrays = np.load(file) if file.endswith("npz") else safetensors.torch.load_file(file)
        assert {name: list(arrays[name].shape) for name in arrays} == said["shapes"]
        assert said["exact"] is True
    found = surefoot.replay(run, 5)
    assert np.array_equal(np.load("arrays.npz")["rollout/reward"], found.rollout.reward.numpy())
    for name in ("rollout/obs", "batch/advantage", "samples/ratio", "gradients/natural_step"):
        assert name in said["shapes"]
    assert main(["replay", "run", "--update", "5", "--out", "arrays.txt"]) == 2
    assert main(["replay", "run", "--update", "5", "--out", "nowhere/arrays.npz"]) == 2
    assert main(["replay", "run"]) == 2
    assert "as logged" in repr(found)
    assert "<table>" in found._repr_html_()


@pytest.mark.parametrize(
    "name", ["ppo-cartpole", *(pytest.param(n, marks=pytest.mark.slow) for n in ("trpo-discrete", "ppo-gru"))]
)
def test_a_run_of_an_earlier_version_can_be_replayed(name, tmp_path):
    """Its numbers may differ in the last bits, as machines do; it says so then."""
    shutil.copytree(FOLDERS[0] / name, tmp_path / "old")
    run = surefoot.Run(tmp_path / "old")
    found = surefoot.replay(run, run.metrics[-1]["update"])
    assert found.logged == run.metrics[-1]
    assert found.exact or found.notes


@pytest.mark.slow
def test_files_of_a_stranger_are_read_with_care(capsys):
    run = train()
    with run.directory.metrics.open("a") as file:
        file.write('{"kl": 1}\n{"update": "many", "step": 3}\n{"upda')  # rows of something else, and a torn one
    assert surefoot.replay(run, 16).exact
    assert surefoot.diff(run, run).same
    manifest = json.loads(run.directory.manifest.read_text())
    run.directory.manifest.write_text(json.dumps({**manifest, "extended": [{"step": None}]}))
    with pytest.raises(CheckpointError, match="is malformed"):
        surefoot.replay(run, 2)
    assert main(["replay", "run", "--update", "2"]) == 4
    assert "manifest.json" in capsys.readouterr().err
