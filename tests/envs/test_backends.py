"""An env backend is one file, registered once: whatever asks for the kind of an env asks the registry."""

import ast
import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import surefoot
from surefoot.cli.candidates import propose, typed_words
from surefoot.cli.main import main
from surefoot.envs.backends import GROUP, Backend, backend_of, known_names, register, unregister
from surefoot.envs.config import EnvConfig
from surefoot.envs.make import make_env
from surefoot.envs.vector_envs import VectorEnvs
from surefoot.errors import EnvError, UsageError
from surefoot.training.config.presets import automatic_preset
from tests.installing import install
from tests.toy_backend import Toy, Walk

PACKAGE = Path(surefoot.__file__).parent
TINY = {
    "preset": "none", "num_envs": 4, "rollout_length": 32, "num_minibatches": 1, "num_epochs": 2, "hidden_sizes": (8,),
    "eval_episodes": 4, "threads": 1, "seed": 0, "progress": False,
}  # fmt: skip
FLAGS = [
    "--preset=none", "--num-envs=4", "--rollout-length=32", "--num-minibatches=1", "--num-epochs=2",
    "--hidden-sizes=8", "--eval-episodes=4", "--threads=1", "--seed=0", "--run-dir=run",
]  # fmt: skip


@pytest.fixture
def toy(tmp_path, monkeypatch):
    install(tmp_path / "site", monkeypatch, GROUP, toy="tests.toy_backend:Toy")


@pytest.fixture
def here():
    """Register for one test."""
    names = []

    def add(backend):
        register(backend)
        names.append(backend.name)

    yield add
    for name in names:
        unregister(name)


# What is asked of a toy backend, from the command line.


def test_a_backend_of_one_file_trains_evaluates_and_is_filmed(toy, capsys):
    assert main(["train", "toy:Walk", *FLAGS, "--total-steps=4096", "--learning-rate=0.01", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["env"] == "toy:Walk"
    assert result["eval"]["mean_return"] == 1.0
    assert "surefoot video run" in result["next"]
    assert main(["eval", "run", "--episodes=5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["mean_return"] == 1.0
    assert main(["video", "run", "--out=walk.mp4", "--max-steps=4"]) == 0
    assert Path("walk.mp4").stat().st_size


def test_it_is_listed_and_offered_in_the_shell(toy, capsys):
    assert main(["list", "envs", "--json"]) == 0
    listed = [row["env"] for row in json.loads(capsys.readouterr().out)]
    assert listed[-2:] == ["toy:Walk", "toy:Jump"]
    assert "CartPole-v1" in listed
    assert list(propose(*typed_words("train to")).words) == ["toy:"]
    assert list(propose(*typed_words("train toy:J")).words) == ["toy:Jump"]
    assert list(propose(*typed_words("train CartPole-v1 --eval-env toy:")).words) == ["toy:Walk", "toy:Jump"]


@pytest.mark.slow
def test_the_doctor_examines_it(toy, capsys):
    assert main(["doctor", "toy:Jump", "--episodes=3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["ok"]
    assert report["numbers"]["exact_resume"]
    assert report["recommended"].startswith("surefoot train toy:Jump")
    assert main(["doctor", "toy:Nothing"]) == 2
    assert "toy: has Walk, Jump, but no 'Nothing'" in capsys.readouterr().err


def test_it_is_measured(toy, capsys):
    words = ["bench", "toy:Walk", "--engines=torch", "--rounds=1", "--total-steps=256", *FLAGS[:5]]
    assert main(words) == 0
    assert "torch" in capsys.readouterr().out


def test_it_is_resumed_to_the_same_bytes(toy):
    whole = surefoot.train("toy:Walk", total_steps=512, run_dir="whole", **TINY)
    half = surefoot.train("toy:Walk", total_steps=256, run_dir="half", **TINY)
    surefoot.resume(half, total_steps=512, progress=False)
    assert policies(half) == policies(whole)
    assert half.metrics[-1]["step"] == 512


def test_workers_step_it_too(toy):
    alone = surefoot.train("toy:Walk", total_steps=256, run_dir="alone", **TINY)
    apart = surefoot.train("toy:Walk", total_steps=256, run_dir="apart", workers=2, **TINY)
    assert policies(alone) == policies(apart)


def policies(run):
    return (run.path / "checkpoints" / run_step(run) / "policy.safetensors").read_bytes()


def run_step(run):
    return max(folder.name for folder in (run.path / "checkpoints").iterdir() if folder.name.isdigit())


def test_settings_of_envs_apply(toy):
    config = EnvConfig(env="toy:Walk", frame_stack=3, max_episode_steps=2, wrappers=("FlattenObservation",))
    env = make_env(config)
    assert env.observation_space.shape == (3,)
    env.reset(seed=0)
    assert not env.step(0)[3]
    assert env.step(1)[3]
    with pytest.raises(UsageError, match=r"env_kwargs=\{'size': 3\} do not fit toy:Walk"):
        make_env(EnvConfig(env="toy:Walk", env_kwargs={"size": 3}))
    run = surefoot.train("CartPole-v1", eval_env="CartPole-v1", total_steps=128, run_dir="one", **TINY)
    assert run.result["eval"]["episodes"] == 4
    with pytest.raises(UsageError, match="eval_env=toy:Walk has Box"):
        surefoot.train("CartPole-v1", eval_env="toy:Walk", total_steps=128, run_dir="two", **TINY)


def test_an_id_that_only_chooses_needs_no_trust_and_another_does(toy, monkeypatch, tmp_path):
    surefoot.train("toy:Walk", total_steps=256, run_dir="run", **TINY)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    surefoot.resume("run", total_steps=384, progress=False)
    monkeypatch.setattr(Toy, "code", Backend.code)
    with pytest.raises(UsageError, match="env = toy:Walk"):
        surefoot.resume("run", total_steps=512, progress=False)
    surefoot.resume("run", total_steps=512, progress=False, trust=True)


def test_a_run_whose_backend_is_gone_says_so(toy, monkeypatch, tmp_path, capsys):
    surefoot.train("toy:Walk", total_steps=256, run_dir="run", **TINY)
    shutil.rmtree(tmp_path / "site")
    assert main(["eval", "run", "--trust"]) == 2
    assert "toy:Walk could not be made: No module named 'toy'" in capsys.readouterr().err


# The registry.


class Vectors(Backend):
    """All of its envs at once."""

    name = "vectors"
    no_film = "is of numbers only"
    fresh_episodes = "its episodes are drawn from one generator"
    no_workers = "they are stepped together"

    def make_one(self, config, render_mode=None):
        return Walk()

    def make_many(self, config, num_envs, seed, *, native):
        return VectorEnvs(SyncVectorEnv([Walk] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP), seed)


@pytest.mark.slow
def test_a_backend_may_step_its_envs_together(here, capsys):
    here(Vectors())
    assert main(["train", "vectors:Walk", *FLAGS, "--total-steps=256"]) == 0
    assert "one seed for all its episodes" in capsys.readouterr().out
    assert main(["video", "run"]) == 2
    assert "vectors:Walk is of numbers only" in capsys.readouterr().err
    assert main(["doctor", "vectors:Walk", "--episodes=2"]) == 0
    assert "exact resume: no (its episodes are drawn from one generator)" in capsys.readouterr().out
    assert main(["train", "vectors:Walk", "--env-timeout=5"]) == 2
    assert "drop it, as no worker can step this env" in capsys.readouterr().err


def test_a_backend_that_makes_another_number_of_envs_is_told(here):
    class More(Vectors):
        name = "more"

        def make_many(self, config, num_envs, seed, *, native):
            return super().make_many(config, num_envs + 1, seed, native=native)

    here(More())
    with pytest.raises(EnvError, match=r"make_many of the backend 'more' made \d+ envs; \d+ were asked for"):
        surefoot.train("more:Walk", total_steps=256, **TINY)


def test_workers_are_refused_where_they_could_not_step_it(here):
    class Alone(Toy):
        name = "alone"
        no_workers = "its envs share one window"

        def make_one(self, config, render_mode=None):
            return Walk()

    here(Alone())
    with pytest.raises(UsageError, match=r"workers cannot step alone:x: its envs share one window; drop --workers"):
        surefoot.train("alone:x", workers=2, total_steps=256, **TINY)
    run = surefoot.train("alone:x", workers="auto", total_steps=256, run_dir="run", **TINY)
    assert run.config["workers"] == 0
    here(Toy())
    with pytest.raises(UsageError, match="the backend toy was registered in this process only"):
        surefoot.train("toy:Walk", workers=2, total_steps=256, **TINY)


def test_every_backend_keeps_the_contract(toy):
    assert {*known_names()} >= {"envpool", "pettingzoo", "toy"}
    for name in ("", *known_names()):
        env_id = f"{name}:x" if name else "x"
        backend = backend_of(env_id)
        assert backend.name == name
        assert backend_of(env_id) is backend
        assert all(backend_of(name) is backend for name in backend.ids())
        assert isinstance(backend.preset_ids(env_id), tuple)
        assert isinstance(backend.code(env_id), str)


@pytest.mark.parametrize("name", ["envpool", "pettingzoo", "a:b", "a/b", "", "1a"])
def test_names_that_cannot_be_registered(name):
    backend = Toy()
    backend.name = name
    with pytest.raises(UsageError, match=r"there is an env backend|cannot name an env backend"):
        register(backend)


def test_a_package_that_offers_no_backend(tmp_path, monkeypatch, capsys):
    install(
        tmp_path / "site",
        monkeypatch,
        GROUP,
        one="tests.toy_backend:Walk",
        two="no_such_module:X",
        other="tests.toy_backend:Toy",
    )
    with pytest.raises(UsageError, match=r"one = tests.toy_backend:Walk is not a .*Backend of that name"):
        backend_of("one:x")
    with pytest.raises(UsageError, match=r"the env backend two \(no_such_module:X\) could not be loaded"):
        surefoot.train("two:x")
    with pytest.raises(UsageError, match="the entry point other"):
        backend_of("other:x")
    assert main(["list", "envs"]) == 0
    said = capsys.readouterr()
    assert "CartPole-v1" in said.out
    assert "two: cannot be listed: the env backend two" in said.err
    assert not propose(*typed_words("train two:")).words


def test_what_a_backend_makes_is_looked_at(here, monkeypatch):
    here(Toy())
    monkeypatch.setattr(Toy, "make_one", lambda *_: 7)
    with pytest.raises(UsageError, match=r"the backend of toy:Walk made a int; it must make a gymnasium\.Env"):
        make_env(EnvConfig(env="toy:Walk"))
    monkeypatch.setattr(Toy, "make_one", lambda *_: 1 / 0)
    with pytest.raises(EnvError, match="toy:Walk raised ZeroDivisionError while it was made"):
        make_env(EnvConfig(env="toy:Walk"))
    monkeypatch.setattr(Toy, "make_many", lambda *_, **__: 1 / 0)
    with pytest.raises(EnvError, match="toy:Walk raised ZeroDivisionError while it was made"):
        surefoot.train("toy:Walk", total_steps=256, **TINY)


def test_an_id_without_the_name_of_a_backend_is_gymnasiums():
    gymnasium = backend_of("CartPole-v1")
    for env_id in ("", "module:Id-v0", "file.py:Factory", "a/b.py:C", "C:/d.py:E", "ALE/Pong-v5", "x:"):
        assert backend_of(env_id) is gymnasium
    assert not gymnasium.code("CartPole-v1")
    assert gymnasium.code("GymV21Environment-v0")
    assert gymnasium.code("module:Id-v0")


def test_an_encoder_of_a_module_is_code_whatever_the_module_is_called(tmp_path):
    """Only the id of an env can be a backend's."""
    from surefoot.training.config.resolve import resolve
    from surefoot.training.life.trust import foreign_code

    file = tmp_path / "config.toml"
    file.write_text('env = "envpool:CartPole-v1"\nencoder = "envpool:Anything"\n')
    assert foreign_code(resolve(config_file=file)) == ["encoder = envpool:Anything"]


@pytest.mark.parametrize(
    ("env", "preset"),
    [
        ("CartPole-v1", "CartPole-v1/ppo"),
        ("envpool:CartPole-v1", "CartPole-v1/ppo"),
        ("envpool:Pong-v5", "family/atari-ppo"),
        ("ALE/Pong-v5", "family/atari-ppo"),
        ("envpool:Ant-v5", "family/mujoco-ppo"),
        ("Ant-v5", "family/mujoco-ppo"),
        ("toy:Ant-v5", None),
        ("pettingzoo:CartPole-v1", None),
    ],
)
def test_presets_follow_the_task_and_not_the_backend(env, preset):
    assert automatic_preset(env, "ppo") == preset


# The source.

SOURCES = {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
ALLOWED = {  # who may say how an id of a backend begins
    "envpool:": {"envs/backends.py", "envs/envpool_envs.py"},
    "pettingzoo:": {"envs/backends.py", "envs/pettingzoo_envs.py", "envs/pettingzoo_copy.py"},
    "ALE/": {"envs/ids.py", "training/config/presets/__init__.py"},
    "GymV": {"envs/ids.py"},
    r"\.py:": {"envs/gym_backend.py"},
}


@cache
def strings(source):
    """Those that a program can act upon: all but docstrings."""
    tree = ast.parse(source)
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in said]
    return [node.value for node in found if isinstance(node.value, str)]


@pytest.mark.parametrize("prefix", ALLOWED)
def test_only_a_backend_says_how_its_ids_begin(prefix):
    found = {name for name, source in SOURCES.items() if any(prefix in text for text in strings(source))}
    assert found <= ALLOWED[prefix]


def test_no_other_file_asks_what_kind_of_env_an_id_names():
    for name, source in SOURCES.items():
        if not name.startswith("envs/"):
            assert not re.search(r"env(_id)?\.(startswith|removeprefix)\(", source), name
        if name != "envs/envpool_envs.py":
            assert "import" not in "".join(re.findall(r".*\benvpool_envs\b.*", source)), name


def test_only_one_file_reads_masks():
    for name, source in SOURCES.items():
        if name not in (
            "envs/masks.py",
            "deploy/serve/questions.py",
        ):  # the second one's come from a client, not an env
            assert not re.search(r"\[MASK\]|get\(MASK|_attr\(.action_masks", source), name


def test_asking_what_an_id_is_imports_nothing_heavy():
    code = (
        "import sys\nfrom surefoot.envs.backends import backend_of\n"
        "for name in ('CartPole-v1', 'file.py:Env', 'module:Id-v0'):\n"
        "    found = backend_of(name)\n"
        "    found.code(name), found.preset_ids(name), found.no_workers, list(found.candidates('Cart'))\n"
        "assert not {'torch', 'gymnasium', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
