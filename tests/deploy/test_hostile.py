"""Checkpoints from strangers, read without PyTorch: one clear error, no traceback, nothing executed."""

import hashlib
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

import surefoot
from surefoot.errors import CheckpointError, UsageError
from surefoot.runs import RunDirectory
from surefoot.runs.checkpoints import MANIFEST, seal
from tests.faults.runs import newest

RUNS = Path(__file__).parent.parent / "fixtures" / "runs-0.1.0"
BOX = {"type": "Box", "shape": [4], "dtype": "float32", "low": ["-inf"], "high": ["inf"]}


def forge(name, change, run="ppo-cartpole"):
    """A run whose newest checkpoint has a changed file, with hashes that fit."""
    shutil.rmtree("forged", ignore_errors=True)
    shutil.copytree(RUNS / run, "forged")
    folder = newest(RunDirectory(Path("forged")))
    for other in folder.parent.iterdir():
        if other.is_dir() and other != folder:
            shutil.rmtree(other)
    file = folder / name
    if name.endswith(".json"):
        facts = json.loads(file.read_text(encoding="utf-8"))
        changed = change(facts)
        file.write_text(json.dumps(facts if changed is None else changed), encoding="utf-8")
    else:
        file.write_bytes(change(file.read_bytes()))
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    data = file.read_bytes()
    manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest["seal"] = seal(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    return Path("forged")


def refused(run):
    with pytest.raises((CheckpointError, UsageError)) as caught:
        surefoot.load(run, backend="numpy")
    return str(caught.value)


def test_spaces_and_settings_of_wrong_content():
    deep = {"type": "Tuple", "spaces": []}
    for _ in range(400):
        deep = {"type": "Tuple", "spaces": [deep]}
    spaces = [
        {},
        {"type": "Text"},
        deep,
        {**BOX, "shape": [5]},
        {**BOX, "shape": [2**27]},
        {**BOX, "shape": [1, 1, 1, 1, 4]},
        {**BOX, "dtype": "object"},
        {**BOX, "low": ["nan"]},
        {"type": "Dict", "spaces": []},
        {"type": "Dict", "spaces": [["a/b", BOX]]},
        {"type": "Discrete", "n": 2**30, "start": 0, "dtype": "int64"},
        {"type": "MultiDiscrete", "nvec": [], "start": [], "dtype": "int64"},
        {"type": "MultiBinary", "shape": [0]},
        {"type": "MultiBinary", "shape": [2**20]},
    ]
    for space in spaces:
        for which in ("observation_space", "action_space"):
            assert "forged" in refused(forge("policy.json", lambda facts, w=which, s=space: facts.update({w: s})))
    policies = [
        {"hidden_sizes": [2**60]},
        {"hidden_sizes": [1] * 10**5},
        {"hidden_sizes": "x"},
        {"hidden_sizes": [0]},
        {"memory": "gru", "memory_size": 2**40},
        {"memory": "none", "memory_size": 3},
        {"activation": "evil"},
        {"encoder": "os:system"},
        {"encoder": "evil.py:Class"},
        {"tanh_mean": True},
        {"normalize_observations": True},
        {"std": None},
        {"unknown": 1},
    ]
    for change in policies:
        assert "forged" in refused(forge("policy.json", lambda facts, c=change: facts["policy"].update(c)))
    for whole in ([], 5, None, {}, "x"):
        assert "policy.json describes no policy" in refused(forge("policy.json", lambda _, w=whole: w if w else []))


def test_weights_of_wrong_content():
    def changed(change):
        def rewrite(data):
            arrays = load(data)
            change(arrays)
            return save(arrays)

        return rewrite

    first = "actor.layers.0.weight"
    attacks = {
        "is missing": lambda a: a.pop(first),
        "has the shape": lambda a: a.update({first: np.zeros((1, 1), np.float32)}),
        "is of float64": lambda a: a.update({first: a[first].astype(np.float64)}),
        "holds numbers that are not finite": lambda a: a.update({first: np.full_like(a[first], np.nan)}),
        "is not a part of the policy": lambda a: a.update({"actor.layers.9.weight": np.zeros(1, np.float32)}),
    }
    for message, change in attacks.items():
        said = refused(forge("policy.safetensors", changed(change)))
        assert f"{first if 'part' not in message else 'actor.layers.9.weight'} {message}" in said
        assert "do not fit their description" in said


def test_damaged_and_evil_weight_files():
    class Evil:
        def __reduce__(self):
            return Path.touch, (Path("canary"),)

    evil = pickle.dumps(Evil())
    attacks = [
        lambda data: b"",
        lambda data: data[:7],
        lambda data: data[: len(data) // 2],
        lambda data: evil,
        lambda data: b"PK\x03\x04" + evil,
        lambda data: (2**63).to_bytes(8, "little") + data[8:],
        lambda data: (2**40).to_bytes(8, "little") + data[8:],
        lambda data: (20).to_bytes(8, "little") + b'{"a": ' + b"[" * 14,
        lambda data: (
            (100).to_bytes(8, "little")
            + b'{"actor.layers.0.weight":{"dtype":"F32","shape":[99999999999,9],"data_offsets":[0,4]}}'.ljust(100)
            + b"0000"
        ),
    ]
    for attack in attacks:
        assert "policy.safetensors cannot be read" in refused(forge("policy.safetensors", attack))
    assert not Path("canary").exists()
