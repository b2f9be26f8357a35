"""An algorithm of one's own, without packaging: by file, module, package or class."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

import surefoot
from surefoot.algorithms import ppo_clip
from surefoot.algorithms.own import GROUP
from surefoot.cli.candidates import propose, typed_words
from surefoot.cli.main import main
from surefoot.errors import CodeError, UsageError
from surefoot.training.config.resolve import resolve
from tests.installing import install

EXAMPLE = Path(__file__).parents[2] / "examples" / "spo.py"
TINY = {
    "preset": "none", "num_envs": 2, "rollout_length": 16, "num_minibatches": 2, "num_epochs": 2, "total_steps": 128,
    "hidden_sizes": (8,), "eval_episodes": 1, "eval_max_steps": 9, "threads": 1, "seed": 0, "progress": False,
}  # fmt: skip
HEAD = """
from __future__ import annotations
from abc import abstractmethod
from dataclasses import dataclass
from surefoot.algorithms.parts import Base
from surefoot.algorithms.ppo_clip import Config as PPOConfig, PPOClip
from surefoot.engine.config import CollectConfig, GradientConfig
from surefoot.settings import setting
"""


@pytest.fixture(autouse=True)
def spo(tmp_path, monkeypatch):
    shutil.copy(EXAMPLE, tmp_path / "spo.py")
    (tmp_path / "here").mkdir()
    shutil.copy(EXAMPLE, tmp_path / "here" / "spo_module.py")
    monkeypatch.syspath_prepend(str(tmp_path / "here"))
    yield
    sys.modules.pop("spo_module", None)


def write(text, name="mine.py"):
    Path(name).write_text(HEAD + text, encoding="utf-8")


# The ways to name it


@pytest.mark.parametrize("how", ["file", "module", "package", "class"])
def test_it_trains_resumes_evaluates_and_is_repeated(how, tmp_path, monkeypatch, capsys):
    install(tmp_path / "site", monkeypatch, GROUP, simple_policy="spo_module:SPO")
    names = {"file": "spo.py:SPO", "module": "spo_module:SPO", "package": "simple-policy"}
    names["class"] = str(Path("here") / "spo_module.py:SPO")  # found again where `here` is not on the path
    algo = names[how]
    if how == "class":
        from spo_module import SPO as algo  # type: ignore[import-not-found]
    run = surefoot.train("CartPole-v1", algo, clip_ratio=0.3, **TINY)
    assert run.config["algo"] == names[how]
    assert run.config["clip_ratio"] == 0.3
    assert run.path.parent.name == ("simple-policy" if how == "package" else "SPO")
    assert run.result["engine"] == "native"
    assert surefoot.resume(run, total_steps=192, progress=False).result["total_steps"] == 192
    assert main(["eval", str(run.path), "--episodes=1"]) == 0
    again = ["train", "--like", str(run.path), "--run-dir=again", "--total-steps=128"]
    assert main(again) == 0
    assert Path("again/metrics.jsonl").read_bytes() == metrics(run, 128)
    assert main(["list", "runs"]) == 0


def metrics(run, step):
    lines = (run.path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    return b"".join(line for line in lines if json.loads(line)["step"] <= step)


def test_its_settings_are_flags_and_help_shows_them(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--algo=spo.py:SPO", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "how far from 1 the ratio of each sample is pulled. [0.2]" in said
    assert main(["train", "CartPole-v1", "--algo=spo.py:SPO", "--clip-ratio=0.3", "--dry-run"]) == 0
    assert "clip_ratio" in capsys.readouterr().out
    assert main(["train", "CartPole-v1", "--algo=spo.py:SPO", "--max-kl=0.3"]) == 2
    assert "--max-kl is not a setting of spo.py:SPO; it belongs to npg, trpo" in capsys.readouterr().err


def test_it_is_explained(capsys):
    assert main(["explain", "spo.py:SPO"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("spo.py:SPO (uses the presets of ppo)\n\nSPO, simple policy optimization")
    assert "try it: surefoot train CartPole-v1 --algo spo.py:SPO" in said
    write('class Mine(PPOClip):\n    """My own words."""\n')
    assert main(["explain", "mine.py:Mine"]) == 0
    assert "\nMy own words.\n" in capsys.readouterr().out


def test_packages_are_listed_and_explained(tmp_path, monkeypatch, capsys):
    install(tmp_path / "site", monkeypatch, GROUP, simple="spo_module:SPO", broken="no_such_module:X")
    assert main(["list", "algos", "--json"]) == 0
    said = capsys.readouterr()
    rows = json.loads(said.out)
    assert rows[-1]["algo"] == "simple"
    assert rows[-1]["what"].startswith("SPO, simple policy optimization")
    assert "broken cannot be listed: the algorithm broken (no_such_module:X) could not be loaded" in said.err
    assert main(["explain", "simple"]) == 0
    assert main(["train", "CartPole-v1", "--algo=simpel", "--dry-run"]) == 2
    assert "did you mean 'simple'" in capsys.readouterr().err


def offered(line):
    words, current = typed_words(line)
    return list(propose(words, current).words)


def test_completion_reads_its_file_and_executes_nothing():
    write("class Mine(PPOClip):\n    own_number: float = 0.5\n    preset_of = 'trpo'\n1 / 0\n")
    assert offered("train --algo mine.py:") == ["mine.py:Mine"]
    assert offered("explain mine.py:") == ["mine.py:Mine"]
    assert offered("train --algo mine.py:Mine --own") == ["--own-number"]
    assert "--max-kl" in offered("train --algo mine.py:Mine --")
    assert "--clip-ratio" in offered("train --algo spo.py:SPO --")
    assert offered("train --engine hy") == ["hybrid"]


def test_a_class_of_ours_has_its_name():
    assert resolve("CartPole-v1", ppo_clip.PPOClip).run.algo == "ppo"
    assert resolve("CartPole-v1", ppo_clip.PPOClip).preset == "CartPole-v1/ppo"


def test_a_class_that_cannot_be_found_again_is_said(capsys):
    class Local(ppo_clip.PPOClip):
        pass

    run = surefoot.train("CartPole-v1", Local, **TINY)
    assert run.config["algo"] == "<Local>"
    assert run.path.parent.name == "Local"
    assert run.result["next"] is None
    assert "note: the algorithm <Local> was passed in Python" in (run.path / "log.txt").read_text()
    with pytest.raises(UsageError, match="the algorithm <Local> was passed in Python and is not recorded"):
        surefoot.resume(run, total_steps=256)
    surefoot.load(run)
    assert main(["eval", str(run.path), "--episodes=1"]) == 0
    assert main(["train", "--like", str(run.path)]) == 2


def test_two_classes_of_one_name_stay_apart():
    def make(factor):
        class Twin(ppo_clip.PPOClip):
            def loss(self, outputs, batch):
                loss, metrics = super().loss(outputs, batch)
                return loss, metrics | {"factor": loss.detach() * 0.0 + factor}

        return Twin

    configs = [resolve("CartPole-v1", make(factor), overrides=TINY_SETTINGS) for factor in (1.0, 2.0)]
    assert configs[0].algorithm_class is not configs[1].algorithm_class
    for factor in (1.0, 2.0):
        run = surefoot.train("CartPole-v1", make(factor), **TINY)
        assert run.metrics[-1]["factor"] == factor


TINY_SETTINGS = {name: value for name, value in TINY.items() if name not in ("preset", "progress")}


# Presets of another algorithm


def test_the_presets_of_another_algorithm_are_used_as_far_as_they_are_known(capsys):
    config, ours = resolve("CartPole-v1", "spo.py:SPO"), resolve("CartPole-v1", "ppo")
    assert config.preset == ours.preset == "CartPole-v1/ppo"
    assert config.preset_left_out == ("clip_ratio_schedule",)
    for name in ("total_steps", "num_envs", "learning_rate", "gamma"):
        assert config.flat()[name] == ours.flat()[name]
    assert resolve("CartPole-v1", "spo.py:SPO", preset="CartPole-v1/ppo").flat() == config.flat()
    run = surefoot.train("CartPole-v1", "spo.py:SPO", total_steps=2048, eval_episodes=0, progress=False)
    said = (run.path / "log.txt").read_text()
    assert "the preset CartPole-v1/ppo was made for ppo and is used for SPO, which has no clip_ratio_schedule" in said


def test_without_a_word_there_is_no_preset():
    write("class Mine(PPOClip): pass\n")
    assert resolve("CartPole-v1", "mine.py:Mine").preset is None
    with pytest.raises(UsageError, match=r"preset CartPole-v1/ppo is for ppo, not mine\.py:Mine"):
        resolve("CartPole-v1", "mine.py:Mine", preset="CartPole-v1/ppo")
    with pytest.raises(UsageError, match=r"preset CartPole-v1/trpo is for trpo, not spo\.py:SPO"):
        resolve("CartPole-v1", "spo.py:SPO", preset="CartPole-v1/trpo")


# What is wrong is said before anything is built

MINE = "class Mine(PPOClip):\n    config_type = Config\n"
DATACLASS = "@dataclass(frozen=True, kw_only=True)\n"
CONFIG = DATACLASS + "class Config(PPOConfig):\n    {}\n" + MINE
WRONG = {
    "a function": ("def Mine(): ...\n", r"algo=mine\.py:Mine is a function; give the class itself"),
    "nothing of ours": ("class Mine: ...\n", "has no config_type, .*update; derive it from .*parts.Base"),
    "no config": ("class Mine(Base):\n    def update(self, learner, rollout): ...\n", "has no config_type; docs/algor"),
    "no update": ("class Mine(Base):\n    config_type = PPOConfig\n", "has no update; docs/algorithms.md"),
    "abstract": (
        "class Mine(PPOClip):\n    @abstractmethod\n    def gain(self): ...\n", "is not complete; it lacks gain",
    ),
    "no settings": ("class Mine(PPOClip):\n    config_type = dict\n", "must be a class of settings that derives"),
    "no learning rate": ("class Mine(PPOClip):\n    config_type = CollectConfig\n", "CollectConfig and GradientConfig"),
    "no dataclass": (CONFIG.split("\n", 1)[1].format("mine: float = 1.0"), r"write @dataclass.* above class Config"),
    "no default": (CONFIG.format("mine: float"), "the setting mine of algo=.* has no default; give it one"),
    "no such type": (CONFIG.format("mine: Nothing = 1"), "name 'Nothing' is not defined"),
    "a setting of the run": (CONFIG.format("seed: int = 1"), r"seed of Mine is also one .*\(the run\); rename it"),
    "a setting of the env": (CONFIG.format("workers: int = 1"), "setting workers of Mine is also one of another part"),
    "a setting of the policy": (CONFIG.format("memory: str = 'x'"), "memory of Mine is also one of another part"),
    "half of a pair": (
        DATACLASS + "class Config(CollectConfig, GradientConfig):\n    num_minibatches: int = 2\n" + MINE,
        "num_minibatches without num_epochs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_algorithm(case, capsys):
    text, words = WRONG[case]
    write(text)
    for command in (["train", "CartPole-v1", "--algo=mine.py:Mine"], ["explain", "mine.py:Mine"]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert said.startswith("surefoot: ")
        assert re.search(words, said), said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none.py:SPO", r"algo: the file none\.py does not exist \(looked in"),
        ("spo.py:SPP", "there is no 'SPP' in spo.py; did you mean 'SPO'"),
        ("spo.py", r"algo='spo\.py' names a file; name its class as well: spo\.py:Class"),
        ("no_such_module:SPO", "No module named 'no_such_module'"),
        (5, "algo=5 is of type int; give a name or the class itself"),
    ],
)
def test_what_is_not_there(name, words):
    with pytest.raises(UsageError, match=words):
        surefoot.train("CartPole-v1", name, **TINY)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 / 0\n", r"mine\.py raised ZeroDivisionError when it was loaded \(.*mine\.py, line 9\): division by zero"),
        ("class Mine(:\n", r"mine\.py raised SyntaxError when it was loaded \(.*mine\.py, line 9\)"),
        ("import sys; sys.exit(3)\n", r"mine\.py raised SystemExit when it was loaded"),
        (
            "class Mine(PPOClip):\n    def __init__(self, config): 1 / 0\n",
            r"mine\.py:Mine raised ZeroDivisionError when it",
        ),
    ],
)
def test_code_that_raises_is_named_with_its_line(text, words, capsys):
    write(text)
    with pytest.raises(CodeError, match=words):
        surefoot.train("CartPole-v1", "mine.py:Mine", **TINY)
    assert main(["train", "CartPole-v1", "--algo=mine.py:Mine"]) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "mine.py" in said


def test_rewards_are_normalised_with_a_discount():
    own = "class Mine(Base):\n    config_type = Config\n    def update(self, learner, rollout): ...\n"
    write(f"{DATACLASS}class Config(CollectConfig, GradientConfig):\n    pass\n{own}")
    with pytest.raises(UsageError, match="normalize_rewards needs a discount, but Mine has no setting gamma"):
        resolve("CartPole-v1", "mine.py:Mine", overrides={"normalize_rewards": True})


def test_settings_without_a_docstring_have_a_title(capsys):
    write(CONFIG.format("mine: float = 1.0"))
    with pytest.raises(SystemExit):
        main(["train", "--algo=mine.py:Mine", "--help"])
    assert "\nown settings:\n  --mine X" in capsys.readouterr().out
