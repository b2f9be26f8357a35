"""Models of Stable-Baselines3 from a stranger: nothing in them is executed, and wrong ones are one clear error."""

import base64
import io
import json
import os
import pickle
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from surefoot.api import import_sb3
from surefoot.cli.main import main
from surefoot.deploy.sb3 import archive, importing
from surefoot.errors import CheckpointError, UsageError

MODELS = Path(__file__).parents[1] / "fixtures" / "sb3"
CANARY = "the canary sings"


class Evil:
    """Unpickled, it leaves a file where it was unpickled."""

    def __reduce__(self):
        return Path.touch, (Path(CANARY),)


def members(name="ppo-cartpole"):
    with zipfile.ZipFile(MODELS / f"{name}.zip") as file:
        return {entry.filename: file.read(entry) for entry in file.infolist()}


def write(content, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile("model.zip", "w", compression) as file:
        for name, data in content.items():
            file.writestr(name, data)
    return "model.zip"


def with_data(change, name="ppo-cartpole"):
    """A model whose JSON is changed."""
    content = members(name)
    data = json.loads(content["data"])
    change(data)
    return write({**content, "data": json.dumps(data)})


def saved(value):
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def with_weights(change, name="ppo-cartpole"):
    content = members(name)
    weights = torch.load(io.BytesIO(content["policy.pth"]), weights_only=True)
    changed = change(weights)
    return write({**content, "policy.pth": saved(weights if changed is None else changed)})


def refused(file, *parts, kind=(CheckpointError, UsageError), **given):
    """The import fails with a message that has these parts, and leaves nothing behind."""
    with pytest.raises(kind) as caught:
        import_sb3(file, run_dir="new", **given)
    assert all(part in str(caught.value) for part in parts), caught.value
    assert not Path(CANARY).exists()
    assert not Path("new").exists()


def test_no_pickle_in_a_model_is_ever_loaded():
    evil = base64.b64encode(pickle.dumps(Evil())).decode()

    def everywhere(data):
        for value in data.values():
            if isinstance(value, dict) and ":serialized:" in value:
                value[":serialized:"] = evil

    content = members()
    data = json.loads(content["data"])
    everywhere(data)
    others = dict.fromkeys(("policy.optimizer.pth", "pytorch_variables.pth", "system_info.txt"), saved(Evil()))
    assert import_sb3(write({**content, **others, "data": json.dumps(data)}), run_dir="sound").steps == 512
    assert not Path(CANARY).exists()
    pickle.loads(pickle.dumps(Evil()))  # noqa: S301 -- it would have sung
    assert Path(CANARY).exists()


@pytest.mark.parametrize(
    "evil", [saved(Evil()), saved({"action_net.weight": Evil()}), pickle.dumps(Evil(), protocol=2)]
)
def test_weights_that_are_code_are_refused(evil):
    refused(write({**members(), "policy.pth": evil}), "policy.pth cannot be read as tensors only", kind=CheckpointError)


def test_zips_that_are_none_or_hide_something():
    Path("model.zip").write_bytes(b"PK\x03\x04 no zip")
    refused("model.zip", "is not a model that Stable-Baselines3 saved", kind=CheckpointError)
    refused("missing.zip", "missing.zip cannot be read: No such file", kind=UsageError)
    for name in ("data", "policy.pth"):
        content = members()
        del content[name]
        refused(write(content), f"it has no {name}", kind=CheckpointError)
    write(members())
    with zipfile.ZipFile("model.zip", "a") as file, pytest.warns(UserWarning, match="Duplicate"):
        file.writestr("data", b"{}")
    refused("model.zip", "the same name", kind=CheckpointError)
    with zipfile.ZipFile("model.zip", "w") as file:
        link = zipfile.ZipInfo("data")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(link, "/etc/passwd")
        file.writestr("policy.pth", members()["policy.pth"])
    refused("model.zip", "is a link", kind=CheckpointError)


def test_bombs_are_not_unpacked(monkeypatch):
    monkeypatch.setattr(archive, "LARGEST_DATA", 2**16)
    monkeypatch.setattr(archive, "LARGEST_WEIGHTS", 2**16)
    for name in ("data", "policy.pth"):
        bomb = write({**members(), name: bytes(2**20)}, zipfile.ZIP_DEFLATED)
        refused(bomb, f"its {name} is too large", kind=CheckpointError)
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(2**22))
    refused(write({**members(), "policy.pth": inner.getvalue()}), "is compressed", kind=CheckpointError)
    # a few bytes, repeated by a stride of zero
    vast = with_weights(lambda weights: {**weights, "action_net.weight": torch.zeros(1).expand(2**40)})
    refused(vast, "action_net.weight in its policy.pth claims to be larger", kind=CheckpointError)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: {**w, "action_net.weight": torch.full((2, 8), float("nan"))}, "not finite"),
        (lambda w: {name: part for name, part in w.items() if name != "value_net.bias"}, "value_net"),
        (lambda w: {**w, "action_net.weight": torch.zeros(2, 9)}, "action_net.weight has the shape (2, 9)"),
        (lambda w: {**w, "action_net.weight": torch.zeros(3, 8), "action_net.bias": torch.zeros(3)}, "actor.layers.2"),
        (lambda w: {**w, "mlp_extractor.policy_net.0.weight": torch.zeros(8, 5)}, "policy_net.0.weight has the shape"),
        (lambda w: {**w, "mlp_extractor.policy_net.0.weight": torch.zeros(8)}, "policy_net.0.weight has the shape"),
        (lambda w: {**w, "action_net.bias": torch.zeros(2, dtype=torch.int64)}, "of torch.int64, not floats"),
        (lambda w: {**w, "action_net.bias": [0.0, 1.0]}, "action_net.bias in its policy.pth is not a plain tensor"),
        (lambda w: {**w, "action_net.bias": torch.zeros(2).to_sparse()}, "is not a plain tensor"),
        (lambda w: {**w, "action_net.bias": torch.zeros(2, device="meta")}, "action_net.bias"),
        (lambda w: {**w, "mine.weight": torch.zeros(2)}, "a network that is not known: mine.weight"),
        (lambda w: {**w, 7: torch.zeros(2)}, "whose name is a int"),
        (lambda w: [torch.zeros(2)], "not a table of tensors"),
    ],
)
def test_weights_that_fit_no_policy(change, said):
    refused(with_weights(change), said)


def space(name, **fields):
    return lambda data: data[name].update(fields)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(gamma="much"), "gamma is 'much'"),
        (lambda d: d.update(gamma=float("nan")), "gamma is nan"),
        (lambda d: d.update(gamma=7), "gamma=7"),
        (lambda d: d.update(n_envs=10**9), "n_envs"),
        (lambda d: d.update(n_steps=10**12), "n_steps"),
        (lambda d: d.update(n_steps=10**6 + 3, n_envs=4096), "n_steps times n_envs"),
        (lambda d: d.update(n_steps=0.5), "n_steps is 0.5"),
        (lambda d: d.update(num_timesteps=-5), "num_timesteps"),
        (lambda d: d.update(policy_kwargs=[1]), "policy_kwargs is not a table"),
        (lambda d: d.update(policy_kwargs={"normalize_images": "x"}), "normalize_images is not true or false"),
        (lambda d: d["policy_class"].update(__module__="__main__"), "its policy is a class of __main__"),
        (lambda d: d.pop("policy_class"), "its policy is a class of None"),
        (lambda d: [d.pop(name) for name in ("clip_range", "n_steps")], "not a model of PPO"),
        (
            lambda d: d.update(policy_kwargs={"features_extractor_class": "<class '__main__.Mine'>"}),
            "its features extractor is __main__.Mine",
        ),
        (
            lambda d: d.update(policy_kwargs={"activation_fn": "<class 'torch.nn.modules.activation.GELU'>"}),
            "its activation is torch.nn.modules.activation.GELU",
        ),
        (lambda d: d.pop("observation_space"), "its observation_space is not described"),
        (space("observation_space", _shape=[2**20, 2**20]), "observation_space is a Box of shape"),
        (space("observation_space", _shape=[-4]), "observation_space is a Box of shape"),
        (space("observation_space", _shape="many"), "shape of its observation_space is not described"),
        (space("observation_space", _shape=[5]), "bounds of its observation_space are not written out"),
        (space("observation_space", _shape=[2, 2, 1]), "which is an image here and goes through a CNN"),
        (space("observation_space", dtype="object"), "type object"),
        (space("observation_space", **{":type:": "<class 'gymnasium.spaces.graph.Graph'>"}), "is a Graph"),
        (space("action_space", n=str(10**17)), "choices"),
        (space("action_space", n="two"), "action_space.n is 'two'"),
        (space("action_space", start="1"), "starts at 1"),
    ],
)
def test_settings_that_make_no_run(change, said):
    refused(with_data(change), said)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b"[" * 10**5, b"1" * 10**5])
def test_data_that_is_no_table(text):
    refused(write({**members(), "data": text}), "data", kind=CheckpointError)


ODD = (None, True, -1, 1e308, 10**400, "", "[", [], [[]], {}, {":type:": 7}, "<class 'x'>", "\ud800")


class Arrived(Exception):
    """The model was understood; what follows is an ordinary run."""


def understood(file):
    """Whether a model is taken; anything but our own errors is a fault."""
    try:
        import_sb3(file)
    except (CheckpointError, UsageError):
        return False
    except Arrived:
        return True
    raise AssertionError


@pytest.fixture
def only_read(monkeypatch):
    """A model that is understood makes no run."""

    def arrive(*_, **__):
        raise Arrived

    monkeypatch.setattr(importing, "train_config", arrive)


READ = (
    *("policy_class", "policy_kwargs", "num_timesteps", "n_envs", "n_steps", "batch_size", "gamma", "target_kl"),
    *("learning_rate", "clip_range", "clip_range_vf", "use_sde", "sde_sample_freq", "normalize_advantage"),
    *(("observation_space", key) for key in (":type:", "_shape", "low", "high", "dtype")),
    *(("action_space", key) for key in (":type:", "n", "start")),
    *(("policy_kwargs", key) for key in ("net_arch", "activation_fn", "normalize_images")),
)


@pytest.mark.slow
@pytest.mark.usefixtures("only_read")
@pytest.mark.parametrize("place", READ, ids=str)
def test_any_odd_setting_is_taken_or_refused(place):
    content = members()
    for odd in ODD:
        data = json.loads(content["data"])
        (data if isinstance(place, str) else data[place[0]])[place if isinstance(place, str) else place[1]] = odd
        understood(write({**content, "data": json.dumps(data)}))


@pytest.mark.slow
@pytest.mark.usefixtures("only_read")
@pytest.mark.parametrize(("name", "part"), [("recurrent", ""), ("ppo-gsde", ""), ("dict", "vf_features_extractor")])
def test_any_odd_weight_is_taken_or_refused(name, part):
    content = members(name)
    assert understood(write(content))
    weights = torch.load(io.BytesIO(content["policy.pth"]), weights_only=True)
    for tensor in [tensor for tensor in weights if tensor.startswith(part)]:
        for odd in (torch.zeros(()), torch.zeros(0), torch.zeros(1, 1, 1, 1, 1), torch.zeros(3, 3)):
            understood(write({**content, "policy.pth": saved({**weights, tensor: odd})}))
        rest = {key: value for key, value in weights.items() if key != tensor}
        assert not understood(write({**content, "policy.pth": saved(rest)}))


def statistics(**changes):
    with np.load(MODELS / "ppo-pendulum-normalizer.npz") as file:
        found = {name: file[name] for name in file.files} | changes
    np.savez("stats.npz", **{name: value for name, value in found.items() if value is not None})
    return {"normalizer": "stats.npz"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mean:": np.zeros(4)}, "mean: has the shape (4,)"),
        ({"var:": np.full(3, -1.0)}, "var: holds numbers from -1"),
        ({"var:": np.full(3, np.nan)}, "not finite"),
        ({"count:": None}, "count:"),
        ({"epsilon": None}, "epsilon"),
        ({"clip_obs": 5.0}, "clips observations to ±5"),
        ({"mean:": np.array(["a", "b", "c"])}, "mean:"),
        ({"mean:": np.array([Evil()], object)}, "not an array of numbers"),
        ({"mean:": None}, "normalises nothing"),
        ({"var_of_returns": None}, "var_of_returns"),
        ({"var_of_returns": np.array(-1.0)}, "var_of_returns"),
        ({"clip_reward": np.zeros(2)}, "clip_reward has the shape"),
    ],
)
def test_statistics_that_do_not_fit(changes, said):
    refused(MODELS / "ppo-pendulum.zip", said, **statistics(**changes))


def test_statistics_that_are_no_file_of_arrays():
    Path("stats.npz").write_bytes(pickle.dumps(Evil()))
    said = ("does not hold VecNormalize's statistics", "docs/import.md has the lines")
    refused(MODELS / "ppo-pendulum.zip", *said, normalizer="stats.npz")
    refused(MODELS / "ppo-pendulum.zip", *said, "it has no clip_obs", normalizer=MODELS / "ppo-pendulum.npz")
    refused(MODELS / "ppo-pendulum.zip", "none.npz cannot be read", normalizer="none.npz")
    os.mkfifo("pipe.npz")  # nothing would ever come
    refused(MODELS / "ppo-pendulum.zip", "pipe.npz cannot be read: not a plain file", normalizer="pipe.npz")


def test_a_refusal_is_one_line_on_the_command_line(capsys):
    file = write({**members(), "policy.pth": saved(Evil())})
    assert main(["import-sb3", file]) == 4
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("surefoot: model.zip is not a model that Stable-Baselines3 saved")
    assert len(err.splitlines()) == 1
    assert main(["import-sb3", str(MODELS / "ppo-cartpole.zip"), "--env", "Pendulum-v1"]) == 2
    assert "the model was made for" in capsys.readouterr().err
    assert main(["import-sb3", str(MODELS / "ppo-cartpole.zip"), "--frame-stack", "4"]) == 2
    assert "frame_stack has no effect without --env" in capsys.readouterr().err
