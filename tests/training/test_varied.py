"""`surefoot train ENV --seeds 0..3 --vary NAME=A,B`, in Triton's interpreter: every run is what it is alone."""

import os
import re
import signal
from pathlib import Path

import pytest

import surefoot
from surefoot.cli.main import main
from surefoot.cli.varied import varied
from surefoot.engine.cuda.population.members import Members
from surefoot.runs import RunDirectory
from surefoot.runs.files import read_toml
from surefoot.training.config.resolve import resolve
from surefoot.training.life import seeds as seeds_module
from surefoot.training.life.launch import resume_directory, train_config
from surefoot.training.life.seeds import train_seeds
from surefoot.training.life.signals import Interrupted
from tests.engine.population import on_the_cpu
from tests.training.test_seeds import QUIET, config, files

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
pytest.importorskip("triton")
VARY = ("learning_rate=1e-2,3e-3", "entropy_coef=0,0.1")  # the second needs other kernels


@pytest.fixture
def without_a_gpu(monkeypatch):
    on_the_cpu(monkeypatch)
    monkeypatch.setattr(seeds_module, "_require_gpu", lambda *_, **__: None)


def combinations(*words):
    return varied(words, {}, config(), lambda given: config(**given))


def stop_after(monkeypatch, turns):
    """A signal comes after so many times that all began together."""
    own, count = Members.begin, []

    def begin(self, turns_of_all):
        own(self, turns_of_all)
        count.append(len(turns_of_all))
        if len(count) == turns:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Members, "begin", begin)


@pytest.mark.slow
def test_every_run_has_the_bytes_that_it_has_alone(tmp_path, without_a_gpu):
    configs = combinations(*VARY)
    results = train_seeds(configs, (3,), run_dir=tmp_path / "several", **QUIET)
    assert len(results) == len(configs) == 4
    for name in configs:
        own = tmp_path / "several" / f"{name}-s3"
        written = read_toml(own / "config.toml")
        assert name == f"entropy_coef={written['entropy_coef']},learning_rate={written['learning_rate']}"
        again = resolve(config_file=own / "config.toml", preset="none", agreed="ppo")  # `--like`
        alone = train_config(again, run_dir=tmp_path / "alone" / name, trust=True, **QUIET)
        assert files(own) == files(Path(alone["run_dir"]))
        assert surefoot.Run(RunDirectory(own)).status["state"] == "done"
    policies = {files(tmp_path / "several" / f"{name}-s3")["checkpoints/60/policy.safetensors"] for name in configs}
    assert len(policies) == 4


@pytest.mark.slow
def test_after_a_signal_every_run_resumes_alone_with_its_own_settings(tmp_path, monkeypatch, without_a_gpu):
    stop_after(monkeypatch, 3)
    configs = combinations("gamma=0.9,0.99", "total_steps=48,60")
    with pytest.raises(Interrupted, match="surefoot resume"):
        train_seeds(configs, (3,), run_dir=tmp_path / "several", **QUIET)
    for name, own in configs.items():
        place = tmp_path / "several" / f"{name}-s3"
        assert surefoot.Run(RunDirectory(place)).status["step"] == 36
        resume_directory(RunDirectory(place), trust=True, **QUIET)
        alone = train_config(with_seed(own, 3), run_dir=tmp_path / "alone" / name, **QUIET)
        assert files(place)["metrics"] == files(Path(alone["run_dir"]))["metrics"]
        last = [f"checkpoints/{own.run.total_steps}/{kind}.safetensors" for kind in ("policy", "state")]
        assert all(files(place)[file] == files(Path(alone["run_dir"]))[file] for file in last)


def with_seed(own, seed):
    return config(seed, gamma=own.algorithm.gamma, total_steps=own.run.total_steps)


REFUSED = {
    "hidden_sizes=64,64;32,32": r"same hidden_sizes; they may differ in learning_rate, .*`surefoot sweep --env",
    "num_envs=4,8": "same num_envs",
    "rollout_length=4,8": "same rollout_length",
    "num_minibatches=1,2": "same num_minibatches",
    "num_epochs=1,2": "same num_epochs",
    "stop_kl=0.01,0.02": "same stop_kl",
    "algo=ppo,a2c": "surefoot sweep --env CartPole-v1 --algo A B",
    "env=CartPole-v1,Pendulum-v1": "surefoot sweep --env A B",
    "seed=1,2": "list the seeds after --seeds",
    "learning_rat=1e-3,1e-4": "did you mean 'learning_rate'",
    "max_kl=0.1,0.2": "it belongs to npg, trpo",
    "learning_rate=1e-3": "one value; give at least two, or use --learning-rate 1e-3",
    "learning_rate=1e-3,0.001": "names learning_rate=0.001 twice",
    "gamma=0.9,1.5": "gamma=1.5 is too large",
    "gamma": "write it as",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused_before_anything_is_written(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "CartPole-v1", "--device", "cuda", "--seeds", "0..3", "--vary", words]) == 2
    assert re.search(REFUSED[words], capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--vary", "gamma=0.9,0.99"], "needs their seeds: add --seeds 0"),
        (["--vary", "gamma=0.9,0.99", "--gamma", "0.5", "--seeds", "0"], "both fixed and varied"),
        (["--vary", "gamma=0.9,0.99", "--seeds", "0..3"], r"--seeds 0..3` with the same --vary"),
        (["--vary", "gamma=0.9,0.99", "--vary", "gamma=0.5,0.6", "--seeds", "0"], "names gamma twice"),
    ],
)
def test_flags_that_do_not_fit(flags, reason, capsys):
    assert main(["train", "CartPole-v1", *flags]) == 2
    assert re.search(reason, capsys.readouterr().err)


def test_a_dry_run_lists_the_combinations(capsys):
    words = ["--seeds", "0..3", "--vary", "gamma=0.9,0.99", "--vary", "clip_ratio=0.1,0.2", "--dry-run"]
    assert main(["train", "CartPole-v1", *words]) == 0
    said = capsys.readouterr().out
    assert "16 runs, with the seeds 0..3 and each of these:" in said
    assert "clip_ratio=0.2,gamma=0.99" in said


@pytest.mark.slow
def test_runs_without_a_folder_share_a_new_one(tmp_path, monkeypatch, without_a_gpu):
    monkeypatch.chdir(tmp_path)
    stop_after(monkeypatch, 1)
    with pytest.raises(Interrupted):
        train_seeds(combinations("gamma=0.9,0.99"), (3,), **QUIET)
    (folder,) = (tmp_path / "runs" / "CartPole-v1" / "ppo").iterdir()
    assert sorted(run.name for run in folder.iterdir()) == ["gamma=0.9-s3", "gamma=0.99-s3"]
    assert [read_toml(run / "config.toml")["gamma"] for run in sorted(folder.iterdir())] == [0.9, 0.99]
