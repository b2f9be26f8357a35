"""Where two runs first differ: a planted reward, a setting, a weight in a checkpoint; and equal runs are the same."""

import json
import shutil

import pytest
import safetensors.torch
import torch

import surefoot
from surefoot.cli.main import main
from surefoot.runs.checkpoints import read_verified, write_checkpoint
from tests.timetravel.making import fingerprint, train

ENV = """
import gymnasium

class Bug(gymnasium.Wrapper):
    '''Gives another reward in step 30 of an episode, which the first rollouts do not come to.'''

    def __init__(self, env, reward):
        super().__init__(env)
        self.bug = reward

    def reset(self, **kwargs):
        self.time, (obs, info) = 0, self.env.reset(**kwargs)
        return obs, info

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.time += 1
        if self.time == 30:
            reward += self.bug
        return obs, reward, terminated, truncated, info

def make(bug=0.0, **kwargs):
    return Bug(gymnasium.make("CartPole-v1", **kwargs), bug)
"""


def changed(run, step, file, change):
    """Write a checkpoint of the run again with other tensors, as sound as it was."""
    root = run.directory.checkpoints
    manifest, files = read_verified(root / str(step))
    tensors = safetensors.torch.load(files[file])
    change(tensors)
    facts = {name: manifest[name] for name in ("env", "algo", "seed", "mid_rollout")}
    shutil.rmtree(root / str(step))
    write_checkpoint(root, step, {**files, file: safetensors.torch.save(tensors)}, facts, keep=None)


def copied(run, name):
    shutil.copytree(run.path, name)
    return surefoot.Run(name)


def test_equal_runs_are_the_same(capsys):
    one, other = train(run_dir="a"), train(run_dir="b", name="another name")
    before = fingerprint(one), fingerprint(other)
    found = surefoot.diff(one, other)
    assert found.same
    assert repr(found) == "Difference(the same: 16 updates)"
    assert main(["diff", "a", "b"]) == 0
    assert capsys.readouterr().out.endswith("the same: 16 updates\n")
    assert before == (fingerprint(one), fingerprint(other))


@pytest.mark.parametrize("engine", ["native", pytest.param("torch", marks=pytest.mark.slow)])
def test_a_reward_that_differs_is_found_by_its_step_and_env(engine, tmp_path, capsys):
    (tmp_path / "bug.py").write_text(ENV)
    own = {"env": "bug.py:make", "engine": engine, "num_envs": 4}
    one, other = train(run_dir="a", **own), train(run_dir="b", env_kwargs={"bug": 0.25}, **own)
    found = surefoot.diff(one, other)
    assert list(found.settings) == ["env_kwargs"]
    time, env = found.place.sample
    assert (found.place.what, found.place.tensor, found.place.values) == ("rollout", "reward", (1.0, 1.25))
    left, right = found.replays
    assert (left.update, right.update) == (found.update, found.update)
    assert float(left.rollout.reward[time, env]) == 1.0
    assert float(right.rollout.reward[time, env]) == 1.25
    assert torch.equal(left.rollout.reward[:time], right.rollout.reward[:time])
    assert found.update > 1
    before = surefoot.replay(one, found.update - 1), surefoot.replay(other, found.update - 1)
    assert torch.equal(before[0].rollout.reward, before[1].rollout.reward)
    assert all(one.exact for one in (*before, left, right))
    assert main(["diff", "a", "b", "--json"]) == 1
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["place"]["sample"] == [time, env]
    assert said["update"] == found.update


def test_a_learning_rate_that_differs_shows_in_the_second_gradient():
    one, other = train(run_dir="a", num_epochs=2), train(run_dir="b", num_epochs=2, learning_rate=1e-3)
    found = surefoot.diff(one, other)
    assert list(found.settings) == ["learning_rate"]
    assert found.update == 1
    assert found.place.what == "gradient of minibatch 2"
    assert "learning_rate" in "\n".join(found.lines())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "update", "what", "tensor"),
    [
        ({"gamma": 0.9}, 1, "batch", "advantage"),
        ({"seed": 4}, 1, "weights before the update", None),
        ({"hidden_sizes": (9,)}, 1, "weights before the update", None),
        ({"num_envs": 4}, 1, "rollout", "obs"),
        ({"reward_scale": 0.5}, 1, "rollout", "reward"),
        ({"clip_ratio": 1e-6}, 1, "gradient of minibatch 2", None),
        ({"algo": "trpo"}, 1, "batch", "advantage"),
    ],
    ids=lambda value: str(value),
)
def test_a_setting_that_differs_is_found_where_it_first_acts(settings, update, what, tensor):
    one, other = train(run_dir="a"), train(run_dir="b", **settings)
    found = surefoot.diff(one, other)
    assert found.update == update
    assert found.place.what == what
    assert tensor is None or found.place.tensor == tensor
    assert settings.keys() <= found.settings.keys()


def test_a_weight_in_a_checkpoint_is_found_by_its_tensor_and_index():
    one = train(run_dir="a")
    other = copied(one, "b")
    step = one.checkpoints.steps[2]

    def nudge(tensors):
        tensors["actor.layers.0.weight"][1, 2] += 1e-3

    changed(other, step, "policy.safetensors", nudge)
    found = surefoot.diff(one, other)
    assert not found.same
    assert found.row is None
    place = found.checkpoint.place
    assert (found.checkpoint.step, place.tensor, place.index) == (step, "actor.layers.0.weight", (1, 2))
    assert place.values[1] - place.values[0] == pytest.approx(1e-3, rel=1e-3)
    assert "only their files differ" in found.notes[-1]
    assert "actor.layers.0.weight at [1, 2]" in repr(found)


@pytest.mark.slow
def test_a_run_that_went_on_from_a_changed_weight_parts_at_its_checkpoint():
    one = train(run_dir="a")
    other = copied(one, "b")
    steps = one.checkpoints.steps
    for step in steps[3:]:
        shutil.rmtree(other.directory.checkpoints / str(step))
    (other.directory.checkpoints / "LATEST").unlink()
    changed(other, steps[2], "policy.safetensors", lambda tensors: tensors["actor.layers.0.bias"].add_(1e-3))
    surefoot.resume(other, progress=False)
    found = surefoot.diff(one, other)
    assert found.row is not None
    assert found.checkpoint.step == steps[2]
    assert found.checkpoint.place.tensor == "actor.layers.0.bias"
    assert str(found.checkpoint.place) in found.verdict


@pytest.mark.slow
def test_the_state_of_the_optimizer_is_compared_too():
    one = train(run_dir="a")
    other = copied(one, "b")

    def nudge(tensors):
        name = next(name for name in sorted(tensors) if name.startswith("learner.optimizer"))
        tensors[name].view(-1)[0] += 1

    changed(other, one.checkpoints.steps[1], "state.safetensors", nudge)
    assert surefoot.diff(one, other).checkpoint.place.tensor.startswith("learner.optimizer")


@pytest.mark.slow
def test_runs_without_common_checkpoints_are_replayed_from_their_own():
    one = train(run_dir="a", checkpoint_every=100)
    other = train(run_dir="b", checkpoint_every=250, learning_rate_schedule="linear")
    for run in (one, other):
        shutil.rmtree(run.directory.checkpoints)
        run.directory.checkpoints.mkdir()
    found = surefoot.diff(one, other)
    assert found.update == 2  # where the rate is another for the first time
    assert found.place.what in ("weights after the update", "gradient of minibatch 2")


@pytest.mark.slow
def test_one_that_ends_earlier_is_the_same_so_far():
    one, other = train(run_dir="a"), train(run_dir="b", total_steps=480)
    found = surefoot.diff(one, other)
    assert not found.same
    assert found.verdict == "the same up to update 10, where B ends; A goes on to 16"


def test_where_nothing_can_be_replayed_the_files_are_compared(capsys):
    def env():
        return __import__("gymnasium").make("CartPole-v1")

    one, other = train(run_dir="a", env=env), train(run_dir="b", env=env, gamma=0.5)
    found = surefoot.diff(one, other)
    assert found.row.update == 2
    assert found.place is None
    assert "made in Python" in found.notes[-1]
    assert "they first differ between updates 1 and 2" in found.verdict
    assert main(["diff", "a", "nowhere"]) == 2
    assert main(["diff", "a"]) == 2
    assert "<table>" in found._repr_html_()
