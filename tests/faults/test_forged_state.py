"""A checkpoint with the right hashes and the wrong content: refused by the name of what is wrong, before it is used."""

import json
import math
from pathlib import Path

import pytest
import safetensors.torch
import torch

import surefoot
from surefoot.cli.main import main
from surefoot.errors import CheckpointError
from surefoot.schema import Items, MapOf, Optional, Record, Row
from surefoot.training.life.launch import resume_directory
from surefoot.training.trainer import Trainer
from tests.faults.runs import command, copy, newest, sign
from tests.fixtures.make_runs import RUNS

SHORT = ["--total-steps=32", "--eval-episodes=0", "--checkpoint-every=32"]
FIXTURES = Path(__file__).parent.parent / "fixtures"


def forge(run, file, change):
    """Change what a file of every checkpoint holds (arrays by name, or JSON), and hash it anew."""
    for folder in run.path.glob("checkpoints/*/"):
        path = folder / file
        if file.endswith("json"):
            content = json.loads(path.read_text())
            content = change(content) or content
            path.write_text(json.dumps(content))
        else:
            tensors = safetensors.torch.load(path.read_bytes())
            change(tensors)
            path.write_bytes(safetensors.torch.save(tensors))
        sign(folder)
    return run


WAYS = {  # every way to use the weights of a run
    "load": lambda run: surefoot.load(run) and 0,
    "light": lambda run: surefoot.load(run, backend="numpy") and 0,
    "eval": lambda run: main(["eval", str(run.path), "--episodes=1"]),
    "video": lambda run: main(["video", str(run.path), "--max-steps=2"]),
    "untrained": lambda run: main(["video", str(run.path), "--max-steps=2", "--untrained"]),
    "resume": lambda run: main(["resume", str(run.path), "--total-steps=1632"]),
    "init-from": lambda run: main(
        ["train", *command(eval_every=None)[1:], "--init-from", str(run.path), *SHORT, "--run-dir=new"]
    ),
}


def refused(way, run, capsys):
    """What the command says when it exits with code 4."""
    try:
        assert WAYS[way](run) == 4
        return capsys.readouterr().err
    except CheckpointError as error:
        return str(error)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_weights_that_are_not_finite_are_refused(whole, tmp_path, capsys, way, value):
    def change(weights):
        weights["actor.layers.1.weight"][0, 0] = value

    run = forge(copy(whole, tmp_path / "run"), "policy.safetensors", change)
    said = refused(way, run, capsys)
    assert "policy.safetensors" in said
    assert "actor.layers.1.weight holds numbers that are not finite" in said


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("mean", math.nan, "not finite"),
        ("var", math.inf, "not finite"),
        ("var", -1.0, "not from 0"),
        ("count", -1.0, "not from 0"),
    ],
)
@pytest.mark.parametrize("way", ["load", "resume", "init-from"])
def test_statistics_that_are_none_are_refused(whole, tmp_path, capsys, way, name, value, message):
    def change(weights):
        weights[f"normalizer.{name}"].fill_(value)

    said = refused(way, forge(copy(whole, tmp_path / "run"), "policy.safetensors", change), capsys)
    assert f"normalizer.{name} holds numbers" in said
    assert message in said


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.int8, torch.bool], ids=str)
def test_weights_of_another_type_are_refused(whole, tmp_path, capsys, dtype):
    def change(weights):
        weights["actor.layers.1.weight"] = weights["actor.layers.1.weight"].to(dtype)

    said = refused("load", forge(copy(whole, tmp_path / "run"), "policy.safetensors", change), capsys)
    assert "actor.layers.1.weight is of " in said


def test_a_policy_whose_outputs_overflow_is_not_evaluated(whole, tmp_path, capsys):
    """All of its weights are finite; what they give is not, and its likeliest action would be the first."""

    def change(weights):
        for name in ("actor.layers.0.weight", "actor.layers.1.weight"):
            weights[name].fill_(3e38)

    run = forge(copy(whole, tmp_path / "run"), "policy.safetensors", change)
    for manner in ([], ["--stochastic"]):
        assert main(["eval", str(run.path), "--episodes=1", *manner]) == 1
        assert "outputs are not finite" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_sizes": [10**5, 10**5]},
        {"hidden_sizes": [1] * 10**5},
        {"memory": "gru", "memory_size": 10**5},
        {"critic_hidden_sizes": [10**6]},
        {"hidden_sizes": [2**60]},
    ],
    ids=str,
)
def test_a_description_of_a_network_that_is_not_there_is_not_built(whole, tmp_path, changes):
    def change(facts):
        facts["policy"] |= changes

    run = forge(copy(whole, tmp_path / "run"), "policy.json", change)
    with pytest.raises(CheckpointError, match="cannot build"):
        surefoot.load(run)


@pytest.mark.parametrize(
    "space",
    [
        {"type": "Box", "shape": [10**6, 10**6], "dtype": "float32", "low": ["0.0"], "high": ["1.0"]},
        {"type": "Box", "shape": [-1, 4], "dtype": "float32", "low": ["0.0"], "high": ["1.0"]},
        {"type": "Box", "shape": [4], "dtype": "O", "low": ["0.0"], "high": ["1.0"]},
        {"type": "Box", "shape": [4], "dtype": "float32", "low": [], "high": []},
        {"type": "Discrete", "n": 2**24, "start": 0, "dtype": "int64"},
        {"type": "Discrete", "n": 10**30, "start": 0, "dtype": "int64"},
        {"type": "MultiBinary", "shape": [2**40]},
        {"type": "MultiDiscrete", "nvec": [2**40], "start": [0], "dtype": "int64"},
        {"type": "Dict", "spaces": [["a", {"type": "Box"}], 5]},
        {"type": "Tuple", "spaces": {}},
        {"type": ["Box"]},
        {},
    ],
    ids=lambda space: str(space)[:50],
)
@pytest.mark.parametrize("which", ["observation_space", "action_space"])
def test_a_space_that_is_none_is_refused(whole, tmp_path, space, which):
    def change(facts):
        facts[which] = space

    with pytest.raises(CheckpointError):
        surefoot.load(forge(copy(whole, tmp_path / "run"), "policy.json", change))


def put(path, value):
    """A change of a tree of plain values."""
    *way, last = path.split(".")

    def change(tree):
        for name in way:
            tree = tree[int(name) if isinstance(tree, list) else name]
        tree[int(last) if isinstance(tree, list) else last] = value

    return change


WRONG = {  # field of state.json: values that it cannot have
    "step": (-1, 1599, "x", None, True, 10**30),
    "seconds": (-1.0, math.nan, "x"),
    "logs": (None, [], {"sizes": {}}),
    "logs.sizes": ({}, None),
    "logs.sizes.metrics.jsonl": (),
    "logs.unwritten": ([], {"metrics.jsonl": "x"}, {"metrics.jsonl": ["\ud800"]}),
    "algorithm": (None, 5),
    "learner.optimizer.steps": (-1, 2**70, 1.5),
    "learner.optimizer.first": (None, 0.0, {"$tensor": "collector.noise"}, {"$tensor": "nowhere"}),
    "learner.rate_scale": (math.inf, None, -1.0),
    "learner.shuffle": ({"$tensor": "learner.optimizer.first"},),
    "collector.tracker.length": ({"$tensor": "collector.tracker.ret"},),
    "collector.reward_normalizer": (None, {}, []),
    "collector.reward_normalizer.var": (-1.0, math.nan, "x"),
    "collector.last_obs": ({"$tensor": "collector.tracker.ret"},),
    "collector.envs.episode": ([1], [-1, -1], "xx", [0.5, 0.5], [2**63, 2**63]),
    "collector.envs.steps.0": (-1, 10**40, "x"),
    "collector.envs.actions": ([None], [None, 5], {}),
    "journal.next_row": (None, -5, math.inf),
    "journal.updates": ("x",),
    "journal.recent": (None, ["x"], [math.nan]),
    "journal.metrics": ([5], [{"kl": "x"}], {}),
    "journal.finished": ([{}], [{"env": 0, "ret": 0.0, "length": 0, "info": 5}]),
    "selection.next_step": ("x",),
    "selection.waited": (-1, "x", 0.5),
    "selection.best": ([], [1], "ab", [1.5, 0.0], [0, math.nan]),
    "target.first": ("x", []),
    "target.found": ([[], [], 0], [[1.0], [1]], 5),
    "target.passed": (0, None),
    "globals": (5, []),
    "globals.python.version": (2,),
    "globals.numpy.pos": (-1, 625, 2**31),
    "globals.numpy.has_gauss": (2,),
}
CASES = [(field, value) for field, values in WRONG.items() for value in values]


@pytest.fixture(scope="module")
def own_process(tmp_path_factory):
    """A run of a process of its own, which keeps the global generators, too."""
    path = tmp_path_factory.mktemp("own") / "run"
    assert main([*command(), f"--run-dir={path}"]) == 0
    from tests.faults.runs import opened

    return opened(path)


@pytest.mark.sampled(25)
@pytest.mark.parametrize(("field", "value"), CASES, ids=lambda x: str(x)[:40])
def test_a_field_of_another_shape_is_refused_by_name(own_process, tmp_path, field, value):
    run = forge(copy(own_process, tmp_path / "run"), "state.json", put(field, value))
    with pytest.raises(CheckpointError) as found:
        resume_directory(run.directory, total_steps=1632, progress=False)
    assert str(newest(run)) in str(found.value)
    assert field in str(found.value) or "nowhere" in str(found.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learner.optimizer.first", math.nan),
        ("learner.optimizer.second", math.inf),
        ("learner.optimizer.second", -1.0),
        ("collector.tracker.ret", math.nan),
        ("collector.tracker.length", -1),
        ("collector.last_obs", math.nan),
        ("collector.reward_normalizer.running", math.nan),
        ("globals.python.words", 2**40),
        ("globals.numpy.key", -1),
    ],
)
def test_arrays_out_of_range_are_refused_by_name(own_process, tmp_path, name, value):
    def change(tensors):
        tensors[name].fill_(value)

    run = forge(copy(own_process, tmp_path / "run"), "state.safetensors", change)
    with pytest.raises(CheckpointError, match=name):
        resume_directory(run.directory, total_steps=1632, progress=False)


@pytest.mark.parametrize("actions", [torch.full((5,), 7), torch.full((5,), 0.5), torch.zeros(5000, dtype=torch.int64)])
@pytest.mark.parametrize("engine", ["native", "torch"])
def test_open_episodes_that_never_were_start_afresh_or_are_refused(tmp_path, actions, engine, capsys):
    """Illegal actions, or more of them than the episode has steps."""
    path = tmp_path / "run"
    assert main([*command(engine=engine), f"--run-dir={path}"]) == 0
    from tests.faults.runs import opened

    def steps(state):
        state["collector"]["envs"]["steps"][0] = len(actions)

    def change(tensors):
        tensors["collector.envs.actions.0"] = actions

    run = forge(forge(opened(path), "state.json", steps), "state.safetensors", change)
    assert main(["resume", str(run.path), "--total-steps=1632"]) in (0, 1, 4)
    said = capsys.readouterr()
    assert "could not be restored" in said.out or "replay of CartPole" in said.err


def undescribed(state, shape, where=""):
    """Fields of a state that its shape does not name, so that nobody checks them."""
    if isinstance(shape, Optional):
        return [] if state is None else undescribed(state, shape.shape, where)
    if isinstance(shape, Record):
        missing = [f"{where}{name}" for name in state.keys() - shape.fields.keys()]
        known = [(name, state[name], inner) for name, inner in shape.fields.items() if name in state]
    elif isinstance(shape, MapOf):
        missing, known = [], [(name, value, shape.shape) for name, value in state.items()]
    elif isinstance(shape, Items):
        missing, known = [], [(index, value, shape.shape) for index, value in enumerate(state)]
    elif isinstance(shape, Row):
        pairs = zip(state, shape.shapes, strict=True)
        missing, known = [], [(index, value, inner) for index, (value, inner) in enumerate(pairs)]
    else:
        return []
    return missing + [found for name, value, inner in known for found in undescribed(value, inner, f"{where}{name}.")]


@pytest.mark.parametrize("name", RUNS)
def test_every_field_that_is_saved_is_described(name, tmp_path, monkeypatch):
    """A new field of a state without its shape would be read unchecked."""
    run = sorted(FIXTURES.glob("runs-*"))[-1] / name
    found = []

    def look(trainer, *what, **how):
        attach(trainer, *what, **how)
        found.append(undescribed(trainer.state_dict(), trainer.state_shape()))
        trainer.state_shape().check(trainer.state_dict())

    attach = Trainer.attach
    monkeypatch.setattr(Trainer, "attach", look)
    copied = copy(surefoot.Run(surefoot.runs.RunDirectory(run)), tmp_path / "run")
    resume_directory(copied.directory, max_time=1e-3, progress=False)
    assert found == [[]]
