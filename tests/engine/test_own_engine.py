"""An engine of one's own: one file, named by file, module, package or class, and no change anywhere else."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import surefoot
from surefoot.cli.main import main
from surefoot.engine.names import BUILT_IN, GROUP
from surefoot.engine.registry import engine_class
from surefoot.engine.torch.engine import TorchEngine
from surefoot.errors import CodeError, UsageError
from surefoot.training.build.envs import gpu_for_envs
from surefoot.training.config.resolve import resolve
from tests import toy_engine
from tests.installing import install
from tests.toy_engine import Counting

SOURCE = Path(toy_engine.__file__)
TINY = {
    "preset": "none", "num_envs": 2, "rollout_length": 16, "num_minibatches": 2, "num_epochs": 2, "total_steps": 128,
    "hidden_sizes": (8,), "eval_episodes": 1, "eval_max_steps": 9, "threads": 1, "seed": 0, "progress": False,
    "log_every": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def file(tmp_path):
    Counting.calls.clear()
    shutil.copy(SOURCE, tmp_path / "mine.py")


@pytest.mark.parametrize("how", ["file", "module", "package", "class"])
def test_it_trains_evaluates_and_resumes(how, tmp_path, monkeypatch, capsys):
    install(tmp_path / "site", monkeypatch, GROUP, counting="tests.toy_engine:Counting")
    names = {"file": "mine.py:Counting", "module": "tests.toy_engine:Counting", "package": "counting"}
    engine = names.get(how, Counting)
    whole = surefoot.train("CartPole-v1", engine=engine, run_dir="whole", **TINY)
    assert whole.result["engine_chosen"] == "counting"
    assert whole.result["engine_reason"] == "engine torch (as asked)"
    part = surefoot.train("CartPole-v1", engine=engine, run_dir="part", callbacks=[Halfway()], **TINY)
    assert part.config["engine"] == names.get(how, "tests.toy_engine:Counting")
    surefoot.resume(part, progress=False)
    assert (part.path / "metrics.jsonl").read_bytes() == (whole.path / "metrics.jsonl").read_bytes()
    assert main(["eval", "part", "--episodes=1"]) == 0
    if how != "file":  # whose module is another object
        assert Counting.calls == {"serves": 3, "learner": 3, "collector": 3}


class Halfway(surefoot.Callback):
    def on_update(self, trainer, metrics):
        if trainer.update == 2:
            trainer.suspend("halfway")


def test_its_numbers_are_those_of_the_engine_that_it_wraps():
    rows = [surefoot.train("CartPole-v1", engine=engine, **TINY).metrics for engine in (Counting, "torch")]
    assert rows[0] == rows[1]


def test_our_own_classes_have_their_names():
    run = surefoot.train("CartPole-v1", engine=TorchEngine, **TINY)
    assert run.config["engine"] == "torch"
    assert [engine_class(name).name for name in BUILT_IN] == list(BUILT_IN)


def test_a_class_that_cannot_be_found_again_is_said(capsys):
    class Local(TorchEngine):
        name = "local"

    run = surefoot.train("CartPole-v1", engine=Local, **TINY)
    assert run.config["engine"] == "<Local>"
    assert run.result["next"] is None
    assert "the engine <Local> was passed in Python" in (run.path / "log.txt").read_text()
    with pytest.raises(UsageError, match=r"the engine <Local> was passed in Python and is not recorded"):
        surefoot.resume(run, total_steps=256)
    assert main(["eval", str(run.path), "--episodes=1"]) == 0


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (
            "naitve",
            r"unknown engine 'naitve'; did you mean 'native'\? \(known: auto, native, hybrid, cuda, torch; one of",
        ),
        ("mine.py:Contuing", "there is no 'Contuing' in mine.py; did you mean 'Counting'"),
        ("none.py:Counting", r"engine: the file none\.py does not exist"),
        ("no_such_module:Counting", "No module named 'no_such_module'"),
        ("mine.py:Counter", r"engine=mine\.py:Counter is Counter, not a class derived from .*contract\.Engine"),
        ("mine.py:Abstract", r"engine=mine\.py:Abstract is not complete; it lacks collector, learner, serves"),
        ("mine.py:Refusing", r"engine=mine\.py:Refusing is not available: it is Sunday; use --engine torch or auto"),
    ],
)
def test_what_is_no_engine(engine, words):
    with pytest.raises(UsageError, match=words):
        surefoot.train("CartPole-v1", engine=engine, **TINY)
    assert not Path("runs").exists()


def test_one_that_raises_when_it_is_loaded(tmp_path):
    (tmp_path / "broken.py").write_text("import math\n1 / 0\n")
    with pytest.raises(CodeError, match=r"broken\.py raised ZeroDivisionError when it was loaded \(.*, line 2\)"):
        surefoot.train("CartPole-v1", engine="broken.py:Mine", **TINY)


def test_a_wrong_name_is_refused_before_anything_is_loaded(capsys):
    assert main(["train", "CartPole-v1", "--engine=hybird", "--dry-run"]) == 2
    assert "did you mean 'hybrid'" in capsys.readouterr().err


# A resumed run uses the engine that it began with.


def manifest_of(run, **changes):
    found = json.loads((run.path / "manifest.json").read_text())
    found = {key: value for key, value in (found | changes).items() if value is not None}
    (run.path / "manifest.json").write_text(json.dumps(found))


@pytest.mark.parametrize("began", ["native", "hybrid", "torch"])
def test_a_run_goes_on_with_the_engine_that_its_manifest_names(began, capsys):
    run = surefoot.train("CartPole-v1", **TINY)
    assert json.loads((run.path / "manifest.json").read_text())["engine_chosen"] == "native"
    manifest_of(run, engine_chosen=began)
    resumed = surefoot.resume(run, total_steps=256, progress=False)
    assert resumed.result["engine_chosen"] == began
    why = "the kernels serve this policy" if began == "native" else "as the run began"
    assert resumed.result["engine_reason"] == f"engine {resumed.result['engine']} ({why})"
    assert resumed.config["engine"] == "auto"


@pytest.mark.parametrize(("said", "expected"), [("torch", "hybrid"), ("native", "native")])
def test_what_manifests_of_0_1_0_mean(said, expected):
    """They said torch also where the MLPs were compiled."""
    run = surefoot.train("CartPole-v1", **TINY)
    manifest_of(run, engine_chosen=None, acting=None, learning=None, engine=said)
    assert surefoot.resume(run, total_steps=256, progress=False).result["engine_chosen"] == expected


@pytest.mark.parametrize("said", ["mine.py:Counting", "tests.toy_engine:Counting", "nonsense", 5, ["native"], {}])
def test_a_manifest_can_name_no_code(said):
    run = surefoot.train("CartPole-v1", **TINY)
    manifest_of(run, engine_chosen=said)
    assert surefoot.resume(run, total_steps=256, progress=False).result["engine_chosen"] == "native"
    assert not Counting.calls


def test_an_engine_that_is_asked_for_comes_before_the_one_of_the_manifest():
    run = surefoot.train("CartPole-v1", engine="hybrid", **TINY)
    manifest_of(run, engine_chosen="torch")
    resumed = surefoot.resume(run, total_steps=256, progress=False)
    assert (resumed.result["engine_chosen"], resumed.result["engine_reason"]) == ("hybrid", "engine torch (as asked)")


@pytest.mark.parametrize(
    ("engine", "before", "beside"),
    [
        ("auto", (), True),
        ("cuda", (), True),
        ("torch", (), False),
        ("auto", ("torch",), False),  # a resumed run goes on as it began
        ("auto", ("cuda",), True),
        ("tests.toy_engine:Counting", (), False),
        ("tests.toy_engine:Beside", (), True),
    ],
)
def test_it_may_have_its_envs_on_the_gpu(monkeypatch, engine, before, beside):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    config = resolve("CartPole-v1", "ppo", overrides={"engine": engine, "device": "cuda"})
    assert (gpu_for_envs(replace(config, engines_before=before)) is not None) == beside
