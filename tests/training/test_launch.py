"""Starting a run: from another's policy, like another, with a stranger's code, within a time."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import surefoot
from surefoot.cli.main import main
from surefoot.errors import CheckpointError, NonFiniteError, UsageError
from surefoot.runs import list_runs
from surefoot.training.life.crash import write_crash

QUIET = {"progress": False, "eval_episodes": 2, "preset": "none", "num_envs": 4, "rollout_length": 64}
SHORT = {**QUIET, "total_steps": 512, "seed": 1}


class Spy(surefoot.Callback):
    """Keeps the weights that a run begins with."""

    def on_start(self, trainer):
        self.weights = {name: tensor.clone() for name, tensor in trainer.policy.state_dict().items()}


def equal(left, right, names):
    return all(torch.equal(left[name], right[name]) for name in names)


def test_a_run_starts_from_anothers_policy_and_normaliser():
    first = surefoot.train("CartPole-v1", **SHORT, normalize_observations=True, hidden_sizes=(16,))
    learned = surefoot.load(first).policy.state_dict()
    spy = Spy()
    # The shape of the policy comes with it; nobody has to repeat it.
    second = surefoot.train("CartPole-v1", "trpo", **SHORT, init_from=str(first.path), callbacks=[spy])
    assert equal(spy.weights, learned, learned)
    assert learned["normalizer.count"] > 0
    assert second.config["hidden_sizes"] == [16]
    assert second.config["init_from"] == str(first.path / "checkpoints" / "512")
    assert "starting from the policy of" in second.directory.log.read_text()


def test_a_checkpoints_own_directory_serves_as_well_and_a_missing_critic_starts_fresh():
    usual = {name: value for name, value in SHORT.items() if name != "rollout_length"}
    first = surefoot.train("CartPole-v1", "reinforce", **{**usual, "total_steps": 3000})
    folder = next(first.path.glob("checkpoints/[0-9]*"))
    spy = Spy()
    second = surefoot.train("CartPole-v1", "ppo", **SHORT, init_from=str(folder), callbacks=[spy])
    learned = surefoot.load(first).policy.state_dict()
    assert equal(spy.weights, learned, learned)
    assert "critic.layers.0.weight" in spy.weights
    assert "fresh critic" in second.directory.log.read_text()


def test_a_policy_of_another_shape_or_env_is_refused():
    first = surefoot.train("CartPole-v1", **SHORT)
    for name, value in {"hidden_sizes": (8, 8), "activation": "relu", "normalize_observations": True}.items():
        with pytest.raises(UsageError, match=f"{name}=.* was made with .*; drop {name}"):
            surefoot.train("CartPole-v1", **SHORT, init_from=str(first.path), **{name: value})
    with pytest.raises(CheckpointError, match="observation_space is not the one"):
        surefoot.train("Acrobot-v1", **SHORT, init_from=str(first.path))
    with pytest.raises(UsageError, match="there is no run 'nowhere'"):
        surefoot.train("CartPole-v1", **SHORT, init_from="nowhere")


def words(*more):
    return [
        *("train", "CartPole-v1", "--preset", "none", "--num-envs", "4", "--rollout-length", "64"),
        *("--total-steps", "512", "--eval-episodes", "2", *more),
    ]


def test_like_repeats_a_run_byte_for_byte(capsys):
    assert main(words("--seed", "5", "--gamma", "0.9", "--algo", "a2c")) == 0
    assert main(["train", "--like", "latest", "--run-dir", "again"]) == 0
    first = list_runs()[0].metrics.read_bytes()
    assert Path("again/metrics.jsonl").read_bytes() == first
    assert main(["train", "--like", "again", "--seed", "6", "--run-dir", "other"]) == 0
    assert Path("other/metrics.jsonl").read_bytes() != first
    assert "seed = 6" in Path("other/config.toml").read_text(encoding="utf-8")
    assert main(["train", "--like", "again", "--config", "x.toml"]) == 2
    assert "give one of the two" in capsys.readouterr().err


def test_like_says_which_versions_differ(capsys):
    assert main(words()) == 0
    (run,) = list_runs()
    manifest = json.loads(run.manifest.read_text())
    manifest["versions"]["torch"] = "1.0"
    run.manifest.write_text(json.dumps(manifest))
    assert main(["train", "--like", "latest", "--dry-run"]) == 0
    assert "torch is" in capsys.readouterr().err


CANARY = """
import pathlib
pathlib.Path("canary").write_text("executed")
import gymnasium as gym, surefoot
class Env(gym.Wrapper):
    def __init__(self, **kwargs):
        super().__init__(gym.make("CartPole-v1", **kwargs))
class Call(surefoot.Callback):
    pass
class Wrap(gym.Wrapper):
    pass
import torch
class Enc(torch.nn.Module):
    size = 4
    def __init__(self, layout):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, parts):
        return self.linear(parts[""])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ["evil.py:Env"],
        ["CartPole-v1", "--callbacks", "evil.py:Call"],
        ["CartPole-v1", "--wrappers", "evil.py:Wrap{}"],
        ["CartPole-v1", "--eval-env", "evil.py:Env"],
        ["CartPole-v1", "--encoder", "evil.py:Enc"],
    ],
    ids=["env", "callbacks", "wrappers", "eval_env", "encoder"],
)
def test_code_that_only_a_file_names_is_not_executed_untrusted(flags, tmp_path, capsys, monkeypatch):
    (tmp_path / "evil.py").write_text(CANARY)
    canary = tmp_path / "canary"
    assert main(["train", *flags, *words()[2:]]) == 0  # typed by the user: trusted
    (run,) = list_runs()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of somebody else"))
    for command in (
        ["resume", "latest"],
        ["eval", "latest", "--episodes", "1"],
        ["video", "latest", "--max-steps", "3"],
        ["train", "--like", "latest", "--run-dir", "like"],
        ["train", "--config", str(run.config), "--run-dir", "config"],
    ):
        (tmp_path / "evil.py").write_text(CANARY + f"# {command}")  # a new file is executed anew
        canary.unlink(missing_ok=True)
        assert main(command) == 2
        assert "--trust" in capsys.readouterr().err
        assert not canary.exists()
        if command[0] != "video" or flags[0] == "CartPole-v1":
            assert main([*command, "--trust"]) == 0
            assert canary.exists() or command[0] in ("eval", "video")  # which need no callbacks


def test_a_typed_name_is_trusted_even_where_a_file_names_another(tmp_path):
    (tmp_path / "evil.py").write_text(CANARY)
    assert main(["train", "evil.py:Env", *words()[2:]]) == 0
    assert main(["train", "CartPole-v1", "--like", "latest", "--run-dir", "like"]) == 0


@pytest.mark.slow
def test_max_time_saves_and_leaves_in_time_and_resume_goes_on_exactly(tmp_path):
    class Slow(surefoot.Callback):  # however fast the machine
        def on_update(self, trainer, metrics):
            time.sleep(0.05)

    long = {**QUIET, "seed": 3, "total_steps": 60_000, "log_every": 5000}
    whole = surefoot.train("CartPole-v1", run_dir=tmp_path / "whole", **long)
    start = time.perf_counter()
    part = surefoot.train("CartPole-v1", run_dir=tmp_path / "part", max_time="1.5s", callbacks=[Slow()], **long)
    assert time.perf_counter() - start < 20  # a busy machine takes its time, too, to make the envs and to save
    assert part.result["stopped"] == "max_time"
    assert part.result["eval"] is None
    assert part.result["resume"] == f"surefoot resume {part.path}"
    assert 0 < part.result["total_steps"] < 60_000
    assert part.directory.read_status()["state"] == "interrupted"
    done = surefoot.resume(part, max_time="10m", progress=False)
    assert (done.path / "metrics.jsonl").read_bytes() == (whole.path / "metrics.jsonl").read_bytes()
    assert done.result["eval"] == whole.result["eval"]
    assert done.directory.read_status()["state"] == "done"


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_over(tmp_path, capsys):
    whole = surefoot.train("CartPole-v1", run_dir=tmp_path / "whole", **SHORT)

    class Die(surefoot.Callback):
        def on_rollout(self, trainer, rollout):
            if trainer.update == 1:
                trainer.save = lambda **_: False
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="nothing is saved yet"):
        surefoot.train("CartPole-v1", run_dir=tmp_path / "killed", callbacks=[Die()], log_every=1, **SHORT)
    config = tmp_path / "killed" / "config.toml"
    config.write_text(config.read_text().replace("log_every = 1\n", 'log_every = "none"\n'))
    resumed = surefoot.resume(tmp_path / "killed")
    assert "no checkpoint yet: starting from the beginning" in capsys.readouterr().out
    assert resumed.directory.metrics.read_bytes() == whole.directory.metrics.read_bytes()


def test_a_failed_update_leaves_a_bundle_with_its_rollout_and_the_old_weights():
    from safetensors.torch import load_file

    kept = {}

    class Watch(surefoot.Callback):
        def on_rollout(self, trainer, rollout):
            kept.update(weights=trainer.learner.flat.vector.clone(), obs=rollout.obs.clone())
            if trainer.update == 2:
                rollout.reward[3, 1] = torch.nan

        def on_end(self, trainer):
            kept["after"] = trainer.learner.flat.vector.clone()

    with pytest.raises(NonFiniteError, match="it was rejected and the weights") as caught:
        surefoot.train("CartPole-v1", **{**SHORT, "total_steps": 2048}, callbacks=[Watch()])
    (run,) = list_runs()
    assert torch.equal(kept["weights"], kept["after"])
    folder = run.crash / "512"
    assert caught.value.__notes__[0] == f"what happened is in {folder}"
    assert caught.value.__notes__[1:] == [f"To continue from step 512:\nsurefoot resume {run.path}"]
    assert torch.equal(load_file(folder / "rollout.safetensors")["obs"], kept["obs"])
    facts = json.loads((folder / "facts.json").read_text())
    assert (facts["step"], facts["update"]) == (512, 2)
    assert "NonFiniteError" in (folder / "error.txt").read_text()
    assert surefoot.load(run.path).predict(np.zeros(4))[0] in (0, 1)


def test_a_wrong_setting_leaves_no_bundle():
    run = surefoot.train("CartPole-v1", **SHORT)
    assert write_crash(run.directory, None, UsageError("wrong")) is None


def test_a_budget_of_which_much_is_left_is_explained(capsys):
    how = {**SHORT, "total_steps": 2000, "num_envs": 8, "rollout_length": 128, "progress": True}
    surefoot.train("CartPole-v1", **how)
    assert "note: 976 of 2,000 steps are left; another rollout may take up to 1,024" in capsys.readouterr().out
    surefoot.train("CartPole-v1", **how | {"total_steps": 1024})
    assert "steps are left" not in capsys.readouterr().out
