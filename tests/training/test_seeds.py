"""`surefoot train ENV --seeds 0..3`, in Triton's interpreter: the directories are those of single runs."""

import json
import os
import signal
from pathlib import Path

import pytest

import surefoot
from surefoot.cli.main import main
from surefoot.engine.cuda.population.members import Members
from surefoot.engine.cuda.population.pages import Page
from surefoot.engine.torch import instruments, summary
from surefoot.engine.torch import learner as learner_module
from surefoot.errors import NonFiniteError, SurefootError, UsageError
from surefoot.runs import RunDirectory
from surefoot.training.build import checks
from surefoot.training.config.resolve import resolve
from surefoot.training.life import seeds as seeds_module
from surefoot.training.life.launch import resume_directory, train_config
from surefoot.training.life.seeds import train_seeds
from surefoot.training.life.signals import Interrupted
from tests.engine import population as interpreted
from tests.engine.population import on_the_cpu

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
pytest.importorskip("triton")
ENGINE = f"{Path(interpreted.__file__)}:Interpreted"
QUIET = {"progress": False, "own_process": True}


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch):
    on_the_cpu(monkeypatch)
    monkeypatch.setattr(seeds_module, "_require_gpu", lambda *_, **__: None)


def config(seed=None, **settings):
    size = {"num_envs": 3, "rollout_length": 4, "hidden_sizes": (8,), "max_episode_steps": 5, "num_minibatches": 1}
    how = {"num_epochs": 2, "total_steps": 60, "log_every": 12, "eval_episodes": 2, "engine": ENGINE}
    how["checkpoint_every"] = 60  # and not one per minute: the interpreter may be slow
    given = {**size, **how, "device": "cpu", **settings}
    return resolve("CartPole-v1", "ppo", preset="none", overrides=given if seed is None else {**given, "seed": seed})


TIMES = ("seconds", "timings.jsonl", "episodes.csv")  # and the sizes of files that hold some


def files(directory):
    """What a run wrote that depends on nothing but the run: names and contents."""
    found = {"metrics": (directory / "metrics.jsonl").read_bytes()}
    for file in sorted((directory / "checkpoints").rglob("*")):
        if file.suffix == ".safetensors":
            found[str(file.relative_to(directory))] = file.read_bytes()
        elif file.name == "state.json":
            found[str(file.relative_to(directory))] = without(json.loads(file.read_text()), TIMES)
    return found


def without(tree, names):
    if isinstance(tree, dict):
        return {name: without(x, names) for name, x in tree.items() if name not in names}
    return [without(x, names) for x in tree] if isinstance(tree, list) else tree


@pytest.mark.slow
@pytest.mark.parametrize("every", [12, 36])  # rows after each iteration, or after three, of which one is measured
def test_every_run_has_the_bytes_that_it_has_alone(every, tmp_path, monkeypatch):
    monkeypatch.setattr(instruments, "PASSES", 1)
    given = {"log_every": every, "checkpoint_every": every + 12}  # a checkpoint may lie between two rows
    results = train_seeds(config(**given), (3, 5), run_dir=tmp_path / "several", **QUIET)
    assert [result["seed"] for result in results] == [3, 5]
    for seed in (3, 5):
        alone = train_config(config(seed, **given), run_dir=tmp_path / f"alone{seed}", **QUIET)
        own, single = tmp_path / "several" / f"s{seed}", Path(alone["run_dir"])
        assert files(own) == files(single)
        assert len(files(own)) >= 3
        run = surefoot.Run(RunDirectory(own))
        assert run.status["state"] == "done"
        assert run.result["eval"]["mean_return"] == alone["eval"]["mean_return"]


@pytest.mark.slow
def test_after_a_signal_every_run_resumes_alone_to_the_same_bytes(tmp_path, monkeypatch):
    own, count = Members.begin, []

    def begin(self, turns):
        own(self, turns)
        count.append(len(turns))
        if len(count) == 4:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Members, "begin", begin)
    with pytest.raises(Interrupted, match="surefoot resume"):
        train_seeds(config(), (3, 5), run_dir=tmp_path / "several", **QUIET)
    for seed in (3, 5):
        place = tmp_path / "several" / f"s{seed}"
        assert surefoot.Run(RunDirectory(place)).status["state"] == "interrupted"
        assert surefoot.Run(RunDirectory(place)).status["step"] == 48
        resume_directory(RunDirectory(place), trust=True, **QUIET)
        alone = train_config(config(seed), run_dir=tmp_path / f"alone{seed}", **QUIET)
        assert files(place)["metrics"] == files(Path(alone["run_dir"]))["metrics"]
        last = ["checkpoints/60/policy.safetensors", "checkpoints/60/state.safetensors"]
        assert all(files(place)[name] == files(Path(alone["run_dir"]))[name] for name in last)


@pytest.mark.slow
def test_a_run_that_fails_leaves_the_others_alone(tmp_path, monkeypatch):
    own, members = Page.sound, []

    def sound(self, tolerance):
        found = own(self, tolerance)
        found[0] &= members[0].update != 2  # the update before the one that is read
        return found

    def refuse(learner, names, numbers):
        if learner.update == 3 and learner is members[0]:
            raise NonFiniteError("the update gave nan")
        return summary.understood(learner, names, numbers)

    init = Members.__init__
    monkeypatch.setattr(
        Members, "__init__", lambda self, parts: init(self, parts) or members.insert(0, parts[0].learner)
    )
    monkeypatch.setattr(Page, "sound", sound)
    monkeypatch.setattr(learner_module, "understood", refuse)
    with pytest.raises(SurefootError, match=r"1 of 2 runs failed \(s3\)"):
        train_seeds(config(), (3, 5), run_dir=tmp_path / "several", **QUIET)
    status = [surefoot.Run(RunDirectory(tmp_path / "several" / f"s{seed}")).status for seed in (3, 5)]
    assert (status[0]["state"], status[0]["step"]) == ("failed", 36)
    assert status[1]["state"] == "done"


def test_what_cannot_be_trained_at_once_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    place = tmp_path / "several"
    for settings, reason in {
        "stop_kl": ({"stop_kl": 0.01}, "an update may end early"),
        "wide": ({"hidden_sizes": (128,)}, "fused kernels"),
        "memory": ({"memory": "gru"}, "fused kernels"),
        "no critic's loss": ({"value_coef": 0.0}, "not one kernel: the critic's loss has no weight"),
    }.values():
        with pytest.raises(UsageError, match=f"at once: .*{reason}.*surefoot sweep"):
            train_seeds(config(**settings), (3, 5), run_dir=place, **QUIET)
    monkeypatch.setattr(checks, "available_bytes", lambda _: 2**24)
    with pytest.raises(UsageError, match="4096 runs at once"):
        train_seeds(config(), range(4096), run_dir=place, **QUIET)
    assert not place.exists()


def test_a_callback_that_may_read_the_policy_is_refused(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("import surefoot\nclass Own(surefoot.Callback):\n    pass\n")
    with pytest.raises(UsageError, match="Own may read the policy"):
        train_seeds(config(callbacks=(f"{file}:Own",)), (3, 5), run_dir=tmp_path / "several", trust=True, **QUIET)
    assert not (tmp_path / "several").exists()


def test_without_a_gpu_the_command_says_what_to_use(monkeypatch, capsys):
    monkeypatch.undo()
    assert main(["train", "CartPole-v1", "--seeds", "0..3"]) == 2
    assert "surefoot sweep --env CartPole-v1 --seeds 0..3" in capsys.readouterr().err
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["train", "CartPole-v1", "--seeds", "0..3", "--device", "cuda"]) == 2
    assert "PyTorch sees no CUDA device here. On the CPU, `surefoot sweep" in capsys.readouterr().err
    assert main(["train", "CartPole-v1", "--seeds", "0..3", "--seed", "1"]) == 2
    assert main(["train", "CartPole-v1", "--seeds", "0..3", "--ranks", "2", "--num-envs", "4"]) == 2
    assert "--ranks one run in several" in capsys.readouterr().err
