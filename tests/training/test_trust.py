"""Code that only a file names needs a word from the user, except in runs that this very user has made."""

import hashlib
import hmac
import json
import shutil
import stat
from pathlib import Path

import gymnasium as gym
import pytest

import surefoot
from surefoot.cli.main import main
from surefoot.errors import UsageError
from surefoot.runs.files import write_json
from surefoot.training.config.resolve import resolve
from surefoot.training.life import signature
from surefoot.training.life.trust import HARMLESS, foreign_code

CODE = """
from pathlib import Path
import gymnasium as gym
import surefoot
import torch
from surefoot.algorithms.ppo_clip import PPOClip
from surefoot.engine.torch.engine import TorchEngine
Path({canary!r}).touch()
class Env(gym.Wrapper):
    def __init__(self, **kwargs):
        super().__init__(gym.make("CartPole-v1", **{{"render_mode": kwargs.get("render_mode")}}))
class Wrap(gym.Wrapper):
    def __init__(self, env, number=0):
        super().__init__(env)
class Call(surefoot.Callback):
    pass
class Algo(PPOClip):
    preset_of = "ppo"
class Engine(TorchEngine):
    name = "mine"
class Encoder(torch.nn.Module):
    size = 4
    def __init__(self, layout):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, parts):
        return self.linear(parts[""])
"""
TINY = [
    "--preset=none", "--total-steps=64", "--num-envs=2", "--rollout-length=16", "--num-minibatches=1",
    "--eval-episodes=1", "--eval-max-steps=5", "--hidden-sizes=8", "--threads=1", "--num-epochs=1", "--seed=0",
]  # fmt: skip
WAYS = {
    "resume": ["resume", "run", "--total-steps=96"],
    "eval": ["eval", "run", "--episodes=1"],
    "video": ["video", "run", "--max-steps=3"],
    "like": ["train", "--like", "run", "--run-dir=like"],
    "config": ["train", "--config", "run/config.toml", "--run-dir=config"],
}
NAMED = {
    "env": ["mine.py:Env"],
    "env of a module": ["mine_module:Mine-v0"],
    "wrappers": ["CartPole-v1", "--wrappers", 'mine.py:Wrap{"number": 5}'],
    "callbacks": ["CartPole-v1", "--callbacks", "mine.py:Call"],
    "eval_env": ["CartPole-v1", "--eval-env", "mine.py:Env"],
    "encoder": ["CartPole-v1", "--encoder", "mine.py:Encoder"],
    "algo": ["CartPole-v1", "--algo", "mine.py:Algo"],
    "algo of a module": ["CartPole-v1", "--algo", "mine_module:Algo"],
    "engine": ["CartPole-v1", "--engine", "mine.py:Engine"],
    "a wrapper that writes": ["CartPole-v1", "--wrappers", 'TimeLimit{"max_episode_steps": 9}', "mine.py:Wrap"],
}


@pytest.fixture(autouse=True)
def code(tmp_path, monkeypatch):
    """Code of the user's, which leaves a file where it was executed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.syspath_prepend(tmp_path)
    text = CODE.format(canary=str(tmp_path / "canary"))
    Path("mine.py").write_text(text, encoding="utf-8")
    Path("mine_module.py").write_text(
        text + "\nif 'Mine-v0' not in gym.registry: gym.register('Mine-v0', entry_point=Env, max_episode_steps=500)\n",
        encoding="utf-8",
    )
    return text


def train(*words, code=0):
    assert main(["train", *words, *TINY, "--run-dir=run"]) == code


def asked(words, capsys):
    """Whether the command wants to know whom the user trusts."""
    Path("canary").unlink(missing_ok=True)
    code = main(words)
    said = capsys.readouterr().err
    assert code == (2 if "--trust" in said else 0), said
    if code:
        assert not Path("canary").exists()
    return bool(code)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("named", NAMED)
@pytest.mark.parametrize("way", WAYS)
def test_what_the_user_typed_once_needs_no_word_in_that_run(named, way, capsys):
    train(*NAMED[named])
    assert not asked(WAYS[way], capsys)


def test_also_from_python_and_for_the_encoder_alone():
    run = surefoot.train(
        "CartPole-v1", preset="none", encoder="mine.py:Encoder", total_steps=64, num_envs=2, rollout_length=16,
        num_minibatches=1, eval_episodes=0, progress=False, threads=1, run_dir="run",
    )  # fmt: skip
    surefoot.load(run)
    surefoot.load("run/checkpoints/64")
    surefoot.resume(run, total_steps=96, progress=False)
    words = ["CartPole-v1", "--init-from", "run", *TINY[:4], "--rollout-length=16", "--num-minibatches=1"]
    assert main(["train", *words, "--eval-episodes=0"]) == 0


def test_the_users_file_may_change(code, capsys):
    train("mine.py:Env")
    Path("mine.py").write_text(code + "# another line\n", encoding="utf-8")
    assert not asked(WAYS["eval"], capsys)
    assert Path("canary").exists()


def test_a_copy_of_the_run_is_as_good(capsys):
    train("mine.py:Env")
    Path("run").rename("elsewhere")
    assert not asked(["eval", "elsewhere", "--episodes=1"], capsys)


def test_what_is_printed_to_be_typed_next_can_be_typed(capsys, monkeypatch):
    assert main(["train", "mine.py:Env", *TINY, "--run-dir=run", "--max-time=0.000001"]) == 0
    assert "surefoot resume run\n" in capsys.readouterr().out
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/nowhere")
    assert main(["train", "mine.py:Env", *TINY, "--run-dir=other", "--max-time=0.000001"]) == 0
    assert "surefoot resume other --trust\n" in capsys.readouterr().out


@pytest.mark.sampled(5)
@pytest.mark.parametrize("named", ["env", "algo", "algo of a module", "engine"])
@pytest.mark.parametrize("way", WAYS)
def test_a_run_of_another_user_asks(way, named, capsys, monkeypatch, tmp_path):
    train(*NAMED[named])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of somebody else"))
    assert asked(WAYS[way], capsys)
    assert main([*WAYS[way], "--trust"]) == 0
    assert asked(WAYS[way] if way in ("eval", "video", "resume") else [*WAYS[way][:3], "--run-dir=again"], capsys)


def edit(**changes):
    lines = [
        line
        for line in Path("run/config.toml").read_text(encoding="utf-8").splitlines()
        if line.split(" =")[0] not in changes
    ]
    Path("run/config.toml").write_text(
        "\n".join([*(f"{name} = {value}" for name, value in changes.items()), *lines]), encoding="utf-8"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"env": '"mine.py:Wrap"'},
        {"env": '"mine_module:Mine-v0"'},
        {"env_kwargs": """'{"x": 1}'"""},
        {"wrappers": '["mine.py:Wrap"]'},
        {"callbacks": '["mine.py:Call"]'},
        {"eval_env": '"mine.py:Env"'},
        {"encoder": '"mine.py:Encoder"'},
        {"algo": '"mine.py:Algo"'},
        {"engine": '"mine.py:Engine"'},
    ],
    ids=str,
)
def test_settings_that_were_changed_since_ask(changes, capsys):
    train("mine.py:Env")
    edit(**changes)
    assert asked(WAYS["eval"], capsys)


def test_other_settings_may_change(capsys):
    train("mine.py:Env")
    edit(eval_episodes=2, total_steps=128)
    assert not asked(WAYS["eval"], capsys)


def test_another_file_of_the_same_name_asks(code, tmp_path, capsys, monkeypatch):
    """A run that the user has given away comes back with a file beside it."""
    train("mine.py:Env")
    (tmp_path / "download").mkdir()
    shutil.copytree("run", "download/run")
    shutil.copy("mine.py", "download/mine.py")
    monkeypatch.chdir("download")
    assert asked(WAYS["eval"], capsys)


@pytest.mark.parametrize("said", [None, 5, [], {}, "", "0" * 64, "ü", "\ud800"], ids=repr)
def test_a_signature_that_is_none_asks(said, capsys):
    train("mine.py:Env")
    manifest = json.loads(Path("run/manifest.json").read_text(encoding="utf-8"))
    write_json(Path("run/manifest.json"), {**manifest, "signature": said})
    assert asked(WAYS["eval"], capsys)


def test_a_run_without_code_has_no_signature_and_makes_no_key(tmp_path):
    train("CartPole-v1")
    assert json.loads(Path("run/manifest.json").read_text(encoding="utf-8"))["signature"] is None
    assert not (tmp_path / "state").exists()


def test_nobody_else_can_read_the_key(tmp_path):
    train("mine.py:Env")
    (key,) = (tmp_path / "state" / "surefoot").iterdir()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert len(key.read_bytes()) == 32
    before = key.read_bytes()
    assert main(["train", "mine.py:Env", *TINY, "--run-dir=second"]) == 0
    assert key.read_bytes() == before


@pytest.mark.parametrize("harm", ["others may read it", "of another size", "a folder"])
def test_a_key_that_somebody_else_may_know_is_not_used(tmp_path, harm, capsys):
    train("mine.py:Env")
    key = tmp_path / "state" / "surefoot" / "key"
    if harm == "others may read it":
        key.chmod(0o644)
    elif harm == "of another size":
        key.write_bytes(b"short")
    else:
        key.unlink()
        key.mkdir()
    assert asked(WAYS["eval"], capsys)
    assert main(["train", "mine.py:Env", *TINY, "--run-dir=second"]) == 0
    assert json.loads(Path("second/manifest.json").read_text(encoding="utf-8"))["signature"] is None


@pytest.mark.parametrize("base", ["/dev/null/nowhere", "relative"])
def test_without_a_place_for_the_key_everything_works_and_asks(base, capsys, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", base)
    train("mine.py:Env")
    assert asked(WAYS["eval"], capsys)
    assert not Path("relative").exists()


def test_where_the_key_lies(monkeypatch, tmp_path):
    assert signature._key_file() == tmp_path / "state" / "surefoot" / "key"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert signature._key_file() == tmp_path / ".local" / "state" / "surefoot" / "key"
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr("sys.platform", "win32")
        found = signature._key_file()
    assert found == tmp_path / "surefoot" / "key"


# Wrappers of Gymnasium's


def test_every_wrapper_of_gymnasiums_was_looked_at():
    """A new one is not harmless before somebody has said so."""
    assert set(gym.wrappers.__all__) - {"vector", "RecordVideo"} == HARMLESS


@pytest.mark.parametrize("way", WAYS)
def test_a_wrapper_that_writes_files_needs_a_word(way, capsys, monkeypatch, tmp_path):
    train("CartPole-v1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of somebody else"))
    edit(wrappers="""['RecordVideo{"video_folder": "anywhere"}']""")
    assert main(WAYS[way]) == 2
    assert "wrappers = RecordVideo" in capsys.readouterr().err
    assert not Path("anywhere").exists()


def test_a_shim_that_makes_any_env_needs_a_word():
    Path("config.toml").write_text("env = 'GymV26Environment-v0'\n", encoding="utf-8")
    assert foreign_code(resolve(config_file="config.toml")) == ["env = GymV26Environment-v0"]


def test_names_are_shown_in_one_line_each():
    Path("config.toml").write_text('env = "a.py:E\\u001b[8m\\nsurefoot: all is well"\n', encoding="utf-8")
    assert foreign_code(resolve(config_file="config.toml")) == [r"env = a.py:E\x1b[8m\nsurefoot: all is well"]


def test_signatures_of_earlier_versions_hold(tmp_path):
    """They did not cover algorithm and engine, which named no code."""
    train("mine.py:Env")
    key = (tmp_path / "state" / "surefoot" / "key").read_bytes()
    config = surefoot.Run(surefoot.runs.RunDirectory(Path("run"))).config
    settings = ["mine.py:Env", {}, [], [], None, {}, config["encoder"]]
    facts = {"settings": settings, "places": [str(Path("mine.py").resolve())]}
    expected = hmac.new(key, json.dumps(facts, sort_keys=True).encode(), hashlib.sha256).hexdigest()
    assert json.loads(Path("run/manifest.json").read_text(encoding="utf-8"))["signature"] == expected


def test_the_algorithm_of_a_config_file_needs_a_word_in_python_too(monkeypatch, tmp_path):
    train("CartPole-v1", "--algo", "mine.py:Algo")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of somebody else"))
    Path("canary").unlink()
    for how in ({"config": "run/config.toml"}, {"config": "run/config.toml", "total_steps": 128}):
        with pytest.raises(UsageError, match=r"algo = mine\.py:Algo\n.*--trust"):
            surefoot.train(progress=False, run_dir="again", **how)
    with pytest.raises(UsageError, match=r"algo = mine\.py:Algo"):
        resolve(preset=None, config_file="run/config.toml")
    assert not Path("canary").exists()
    assert surefoot.train(config="run/config.toml", trust=True, progress=False, run_dir="again").config["seed"] == 0
    typed = surefoot.train(config="run/config.toml", algo="mine.py:Algo", progress=False, run_dir="typed")
    assert typed.config["algo"] == "mine.py:Algo"


@pytest.mark.parametrize("way", ["resume", "eval", "like", "config"])
def test_at_a_terminal_the_question_is_put_once(way, monkeypatch, tmp_path):
    train("CartPole-v1", "--algo", "mine.py:Algo")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of somebody else"))
    questions = []
    for command in ("train", "resume", "eval"):
        monkeypatch.setattr(f"surefoot.cli.{command}.trusting", lambda flag: lambda text: not questions.append(text))
    assert main(WAYS[way]) == 0
    (question,) = questions
    assert "algo = mine.py:Algo" in question
