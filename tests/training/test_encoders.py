"""Encoders of the user's own, from the command line, a file of settings and Python."""

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import surefoot
from surefoot.algorithms import ALGORITHMS
from surefoot.api import evaluate_run
from surefoot.cli.main import main
from surefoot.envs.config import EnvConfig
from surefoot.errors import CheckpointError, UsageError
from surefoot.policies.config import PolicyConfig
from surefoot.training.evaluation.evaluate import env_maker, evaluate_agent
from tests.building import make_policy
from tests.combinations import ACTIONS, OBSERVATIONS
from tests.contracts.test_exact_resume import Die
from tests.marks import quick

QUIET = {"preset": "none", "progress": False, "seed": 0, "total_steps": 512, "num_envs": 4, "rollout_length": 32}
QUIET |= {"eval_episodes": 2, "eval_max_steps": 20}
FILE = """
import torch
from torch import nn

class Tiny(nn.Module):
    def __init__(self, layout):
        super().__init__()
        self.size = 5
        self.linear = nn.Linear(layout.numbers, self.size)

    def forward(self, parts):
        return torch.tanh(self.linear(torch.cat([part.flatten(1).float() for part in parts.values()], -1)))
"""


class Tiny(nn.Module):
    """Everything side by side, through one layer."""

    size = 5

    def __init__(self, layout):
        super().__init__()
        self.linear = nn.Linear(layout.numbers, self.size)

    def forward(self, parts):
        return torch.tanh(self.linear(torch.cat([part.reshape(len(part), -1).float() for part in parts.values()], -1)))


class Wide(Tiny):
    size = 6


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE, encoding="utf-8")
    return "mine.py:Tiny"


def words(*more):
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in QUIET.items() if name != "progress"]
    return ["train", "CartPole-v1", *flags, "--run-dir=run", *more]


def test_it_is_trained_saved_evaluated_and_resumed_from_the_command_line(file, capsys):
    assert main(words("--encoder", file)) == 0
    assert "observation: Tiny → 5" in capsys.readouterr().out
    described = [json.loads(path.read_text()) for path in Path("run/checkpoints").glob("*/policy.json")]
    assert {facts["policy"]["encoder"] for facts in described} == {file}
    assert main(["eval", "run", "--episodes=2"]) == 0
    assert main(["resume", "run", "--total-steps=1024"]) == 0
    assert main(["video", "run", "--untrained", "--max-steps=3"]) == 0


def test_it_may_stand_in_a_file_of_settings(file, capsys):
    Path("settings.toml").write_text(f'encoder = "{file}"\n', encoding="utf-8")
    assert main(words("--config=settings.toml")) == 2
    assert "names code" in capsys.readouterr().err
    assert main(words("--config=settings.toml", "--trust")) == 0


@pytest.mark.parametrize("algo", quick(ALGORITHMS, "ppo", "trpo"))
def test_a_killed_run_resumes_exactly(algo, file):
    how = {**QUIET, "encoder": file, "max_episode_steps": 30, "normalize_observations": True, "checkpoint_every": 1}
    if algo == "reinforce":
        how |= {"total_steps": 4000}
        how.pop("rollout_length")
    whole = surefoot.train("CartPole-v1", algo, run_dir="whole", **how)
    with pytest.raises(KeyboardInterrupt):
        surefoot.train("CartPole-v1", algo, run_dir="killed", callbacks=[Die(2)], **how)
    resumed = surefoot.resume("killed", progress=False, trust=True)
    assert resumed.directory.metrics.read_bytes() == whole.directory.metrics.read_bytes()
    assert resumed.result["eval"] == whole.result["eval"]
    assert all(row["ratio_error"] <= 1e-6 for row in whole.metrics)


def test_loading_executes_it_only_if_trusted_or_takes_the_class(file, monkeypatch, tmp_path):
    run = surefoot.train("CartPole-v1", encoder=file, **QUIET)
    surefoot.load(run)  # the user's own
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of somebody else"))
    with pytest.raises(UsageError, match=r"encoder = mine\.py:Tiny"):
        surefoot.load(run)
    agents = surefoot.load(run, trust=True), surefoot.load(run, encoder=Tiny)
    assert [type(agent.policy.encoder.module) is Tiny for agent in agents] == [False, True]
    assert torch.equal(*(agent.policy.action_params(torch.ones(1, 4)) for agent in agents))
    evaluation, _, _ = evaluate_run(run, episodes=2, max_steps=20, trust=True)
    assert evaluation.summary() == run.result["eval"]


def test_a_class_from_python_is_not_written_down_and_that_is_said(tmp_path):
    run = surefoot.train("CartPole-v1", encoder=Tiny, run_dir=tmp_path / "run", **QUIET)
    assert run.config["encoder"] == "<Tiny>"
    agent = surefoot.load(run, encoder=Tiny)
    make = env_maker(EnvConfig(env="CartPole-v1"))
    assert evaluate_agent(agent, make, episodes=2, max_steps=20, seed=0).summary() == run.result["eval"]
    for attempt in (
        lambda: surefoot.load(run),
        lambda: surefoot.load(run, trust=True),
        lambda: surefoot.resume(run, total_steps=1024, trust=True),
        lambda: evaluate_run(run, trust=True),
        lambda: surefoot.train("CartPole-v1", encoder="<Tiny>", **QUIET),
    ):
        with pytest.raises(UsageError, match=r"<Tiny> was passed in Python.*surefoot\.load\(run, encoder="):
            attempt()


@pytest.mark.slow
def test_another_run_may_start_from_it_also_where_the_file_has_moved(file):
    first = surefoot.train("CartPole-v1", encoder=file, run_dir="first", **QUIET)
    Path("mine.py").rename("moved.py")
    with pytest.raises(UsageError, match=r"mine\.py does not exist"):
        surefoot.train("CartPole-v1", init_from=str(first.path), **QUIET)
    surefoot.train("CartPole-v1", init_from=str(first.path), encoder="moved.py:Tiny", **QUIET)
    surefoot.train("CartPole-v1", init_from=str(first.path), encoder=Tiny, **QUIET)
    with pytest.raises(UsageError, match=r"encoder=auto, but init_from=.* was made with mine\.py:Tiny"):
        surefoot.train("CartPole-v1", init_from=str(first.path), encoder="auto", **QUIET)
    with pytest.raises(CheckpointError, match="do not fit"):
        surefoot.train("CartPole-v1", init_from=str(first.path), encoder=Wide, **QUIET)


def test_weights_that_do_not_fit_the_class_are_refused(file):
    run = surefoot.train("CartPole-v1", encoder=file, **QUIET)
    with pytest.raises(CheckpointError, match="do not fit their description"):
        surefoot.load(run, encoder=Wide)
    with pytest.raises(UsageError, match="has no encoder but ours; drop encoder"):
        surefoot.load(surefoot.train("CartPole-v1", **QUIET), encoder=Tiny)


CASES = [
    ("flat", "Box", "none", False, {}),
    ("flat", "Box", "none", False, {"shared_trunk": True}),
    ("flat", "Discrete", "gru", True, {"normalize_observations": True}),
    ("nested", "hybrid", "lstm", True, {"normalize_observations": True}),
    ("nested", "hybrid", "none", True, {"shared_trunk": False}),
    ("image", "MultiDiscrete", "none", False, {}),
    ("image", "Discrete", "none", True, {"shared_trunk": False}),
    ("discrete", "MultiBinary", "gru", False, {}),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("observation", "action", "memory", "masked", "more"), CASES)
@pytest.mark.parametrize("algo", ["ppo", "trpo"])
def test_it_goes_with_every_space_mask_and_memory(algo, observation, action, memory, masked, more):
    if "surefoot/Any-v0" not in gym.registry:
        gym.register("surefoot/Any-v0", entry_point="tests.combinations:make")
    how = {**QUIET, "env_kwargs": {"observation": observation, "action": action, "masked": masked}, **more}
    run = surefoot.train("surefoot/Any-v0", algo, encoder=Tiny, memory=memory, **how)
    assert all(row["ratio_error"] <= 1e-6 for row in run.metrics)
    agent = surefoot.load(run, encoder=Tiny)
    assert ACTIONS[action].contains(agent.predict(OBSERVATIONS[observation].sample())[0])
    agent.predict(gym.vector.utils.batch_space(OBSERVATIONS[observation], 3).sample(), deterministic=False)
    apart = memory == "none" and not agent.policy.shared
    assert (agent.policy.critic_encoder is not None) == apart


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (spaces.Box(-1.0, 1.0, (), np.float32), (2,)),
        (spaces.Box(-1.0, 1.0, (2, 3), np.float32), (2, 2, 3)),
        (spaces.Box(0, 9, (4,), np.int64), (2, 4)),
        (spaces.Box(-1.0, 1.0, (4,), np.float64), (2, 4)),
    ],
    ids=str,
)
@pytest.mark.parametrize("critic", [True, False])
def test_a_box_keeps_its_shape_and_is_float32_from_the_first_try_on(space, shape, critic):
    seen = []

    class Look(Tiny):
        def forward(self, parts):
            seen.append((tuple(parts[""].shape), parts[""].dtype))
            return super().forward(parts)

    own = {"encoder": "<Look>", "encoder_class": Look}
    policy = make_policy(observation_space=space, critic=critic, normalize_observations=True, **own)
    x = policy.normalize(torch.from_numpy(np.stack([space.sample(), space.sample()])))
    assert policy.value(x).shape == (2,)
    assert policy.action_params(x).shape == (2, 3)
    assert policy.evaluate(x, torch.zeros(2, dtype=torch.int64)).log_prob.shape == (2,)
    assert set(seen) == {(shape, torch.float32)}


class NoLayout(nn.Module):
    size = 1

    def __init__(self):
        super().__init__()


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (
            "natur",
            r"encoder='natur' is not one of: by-size, nature, small, tiny, .*did you mean 'nature'\?.*file\.py:Class",
        ),
        ("nowhere.py:Tiny", r"the file nowhere\.py does not exist"),
        ("no_such_module:Tiny", "No module named 'no_such_module'"),
        ("mine.py:Tini", r"there is no 'Tini' in mine\.py; did you mean 'Tiny'"),
        (":", r"not of the form file\.py:Name or module:Name"),
        ("math:pi", "encoder=math:pi is of type float; give the class itself"),
        (5, "encoder=<int> is of type int; give the class itself"),
        (nn.Linear(2, 2), "encoder=<Linear> is a module; give the class itself"),
        (NoLayout, r"the encoder NoLayout could not be made: TypeError.*called with one argument, the Layout"),
        (nn.Identity, r"the encoder Identity must say how many features it gives"),
        ("impala", "encoder=impala is for images, but CartPole-v1 shows Box"),
    ],
)
def test_a_wrong_one_is_told_what_is_wrong(encoder, message, file):
    with pytest.raises(UsageError, match=message):
        surefoot.train("CartPole-v1", encoder=encoder, **QUIET)


def test_a_setting_that_it_makes_inert_is_refused():
    with pytest.raises(UsageError, match="embedding_size has no effect with your own encoder"):
        PolicyConfig(encoder="mine.py:Tiny", embedding_size=8)


def test_a_policy_that_is_built_without_its_class_says_so():
    with pytest.raises(UsageError, match=r"encoder=mine\.py:Tiny, but the class None was passed"):
        make_policy(encoder="mine.py:Tiny")


def test_dropout_is_found_out():
    class Forgetful(Tiny):
        def forward(self, parts):
            return torch.dropout(super().forward(parts), 0.5, True)

    with pytest.raises(surefoot.SurefootError, match="the policy disagrees with itself"):
        surefoot.train("CartPole-v1", encoder=Forgetful, **QUIET)


GRID = """
import gymnasium as gym
import numpy as np

class Grid(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 10, (7, 7, 3), np.uint8), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 20
        return self.np_random.integers(0, 11, (7, 7, 3), np.uint8), {}

    def step(self, action):
        self.left -= 1
        return self.np_random.integers(0, 11, (7, 7, 3), np.uint8), 1.0, self.left == 0, False, {}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("encoder", "architecture", "size"), [("auto", "small", 256), ("by-size", "tiny", 64)])
def test_a_run_keeps_the_network_that_it_began_with(encoder, architecture, size):
    """Runs of 0.1.0 say `auto`, which chose the small one for such images."""
    Path("grid.py").write_text(GRID, encoding="utf-8")
    how = {"preset": "none", "num_envs": 2, "rollout_length": 16, "num_minibatches": 1, "eval_episodes": 1, "seed": 0}
    run = surefoot.train("grid.py:Grid", encoder=encoder, total_steps=64, progress=False, **how)
    surefoot.resume(run, total_steps=128, trust=True, progress=False)
    policy = surefoot.load(run).policy
    assert (policy.encoder.encoders[0].architecture, policy.encoder.size) == (architecture, size)
    assert policy.encoder.encoders[0].scale == 10
    other = surefoot.train("grid.py:Grid", init_from=str(run.path), total_steps=64, progress=False, **how)
    assert other.config["encoder"] == encoder


def test_a_policy_without_images_may_start_from_one_of_any_name_for_them(tmp_path):
    how = {"preset": "none", "num_envs": 2, "rollout_length": 16, "num_minibatches": 1, "eval_episodes": 0, "seed": 0}
    run = surefoot.train("CartPole-v1", encoder="auto", total_steps=64, progress=False, **how)
    surefoot.train("CartPole-v1", init_from=str(run.path), encoder="by-size", total_steps=64, progress=False, **how)
