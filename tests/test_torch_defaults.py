"""Whatever an env or the user's program does to PyTorch's process-wide state, a run is the same, byte for byte."""

import ast
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import surefoot
from tests.tensor_vector_envs import AsTensors

PACKAGE = Path(surefoot.__file__).parent

# What makes a tensor out of nothing, and so where the defaults say, and of which type.
FACTORIES = {
    "arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "ones", "rand",
    "randint", "randn", "randperm", "range", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros",
}  # fmt: skip
WHOLE_NUMBERS = {"randint", "randperm", "tril_indices", "triu_indices"}  # of their own type, whatever the default
MODULES = {"Linear", "Bilinear", "Conv1d", "Conv2d", "Conv3d", "Embedding", "GRU", "LSTM", "RNN", "LayerNorm"}


def calls():
    """(where, the call, `owner` and `name` of what is called, the keywords given) of every `owner.name(...)`."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.is_relative_to(PACKAGE / "course"):  # graders beside a student's own tensors
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                where = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                owner = ast.unparse(node.func.value) if isinstance(node.func.value, (ast.Name, ast.Attribute)) else ""
                yield where, node, owner, node.func.attr, {word.arg for word in node.keywords}


def test_every_tensor_of_ours_says_where_it_is_and_of_which_type():
    for where, node, owner, name, given in calls():
        if (owner == "torch" and name in FACTORIES) or (owner in ("nn", "torch.nn") and name in MODULES):
            assert "device" in given, where
            assert "dtype" in given or name in WHOLE_NUMBERS, where
        if owner == "torch" and name == "Generator":
            assert node.args, where


@pytest.mark.slow
def test_nothing_is_drawn_from_the_global_generator():
    """Where a generator must be taken along, it is. `fork_rng` without `devices` would wake every GPU."""
    for where, node, owner, name, given in calls():
        if owner == "torch" and name in ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial"):
            assert "generator" in given, where
        if owner == "nn.init" and name in ("normal_", "uniform_", "kaiming_uniform_", "orthogonal_"):
            assert "generator" in given or "generator" in ast.unparse(node), where
        if name == "fork_rng":
            assert "devices" in given, where
        own = where.startswith("training/loop/global_generators.py")
        assert name != "manual_seed" or owner != "torch" or own, where


LEFT = []  # inference modes that nobody has left


def inference():
    LEFT.append(torch.inference_mode())
    LEFT[-1].__enter__()


def autocast():
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.set_autocast_enabled("cpu", True)


DISTURBANCES = {
    "meta": lambda: torch.set_default_device("meta"),
    "float64": lambda: torch.set_default_dtype(torch.float64),
    "no gradients": lambda: torch.set_grad_enabled(False),
    "inference": inference,
    "autocast": autocast,
    "threads": lambda: torch.set_num_threads(3),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
}


@pytest.fixture(autouse=True)
def _calm():
    """PyTorch is as it was, after a test that has disturbed it."""
    threads = torch.get_num_threads()
    yield
    while LEFT:
        LEFT.pop().__exit__(None, None, None)
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.set_autocast_enabled("cpu", False)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def nothing():
    pass


class Simulator(gym.Env):
    """Calls `disturb` at one `moment`: when it is made, at a reset or in the middle of a rollout."""

    def __init__(self, disturb=nothing, moment="", obs=None, action=None):
        self.observation_space = obs or spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = action or spaces.Discrete(2)
        self.disturb, self.moment, self.time, self.steps = disturb, moment, 0, 0
        self.at("made")

    def at(self, moment):
        if moment == self.moment:
            self.disturb()

    def observe(self):
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at("reset")
        self.time = 0
        return self.observe(), {}

    def step(self, action):
        self.time, self.steps = self.time + 1, self.steps + 1
        if self.steps == 5:
            self.at("step")
        paid = float(np.sum(action["turn"] if isinstance(action, dict) else action))
        return self.observe(), paid, self.time == 7, self.time == 6 and self.steps % 2 == 0, {}


class Own(torch.nn.Module):
    """An encoder as people write them: it says neither device nor dtype, here and when it is asked."""

    size = 5

    def __init__(self, layout):
        super().__init__()
        self.linear = torch.nn.Linear(3, self.size)

    def forward(self, parts):
        return self.linear(parts[""]) + torch.ones(self.size)


THINGS = spaces.Dict({
    "choice": spaces.Discrete(100),
    "few": spaces.MultiDiscrete([2, 3]),
    "picture": spaces.Box(0, 255, (8, 8), np.uint8),
})  # fmt: skip
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
BOTH = spaces.Dict({"go": spaces.Discrete(3), "turn": BOX})
SETTINGS = {
    "native": ("ppo", {}, {}),
    "native-trpo": ("trpo", {"action": BOX}, {"fisher_fraction": 0.7}),
    "native-gru": ("ppo", {}, {"memory": "gru", "memory_size": 4, "normalize_observations": True}),
    "torch": ("ppo", {"action": BOX}, {"engine": "torch", "normalize_observations": True, "recompute_advantage": True}),
    "torch-npg": ("npg", {"action": BOTH}, {"engine": "torch", "std": "state"}),
    "torch-lstm": ("ppo-penalty", {}, {"engine": "torch", "memory": "lstm", "memory_size": 4}),
    "things": ("ppo", {"obs": THINGS}, {"embedding_size": 4}),
    "beta": ("a2c", {"action": BOX}, {"action_bounds": "beta"}),
    "tanh": ("ppo", {"action": BOX}, {"action_bounds": "tanh", "tanh_mean": False}),
    "gsde": ("ppo", {"action": BOX}, {"std": "gsde"}),
    "own": ("ppo", {}, {"encoder": Own}),
}
QUIET = {"preset": "none", "progress": False, "seed": 3, "num_envs": 2, "threads": 1, "hidden_sizes": (4,)}
QUIET |= {"eval_episodes": 2, "log_every": 1, "max_episode_steps": 7}


def written(run):
    last = run.path / "checkpoints" / (run.path / "checkpoints" / "LATEST").read_text().strip()
    return [(run.path / "metrics.jsonl").read_bytes(), (last / "policy.safetensors").read_bytes(), run.result["eval"]]


def train(name, disturb=nothing, moment=""):
    algo, env, own = SETTINGS[name]
    length = {"rollout_length": 8, "total_steps": 48}
    kind = "value" if algo in ("npg", "trpo") else "num"
    how = {**QUIET, **length, **own} | ({} if algo == "a2c" else {f"{kind}_minibatches": 2, f"{kind}_epochs": 2})
    return written(surefoot.train(lambda: Simulator(disturb, moment, **env), algo, **how))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What each of the settings gives, by name; each is made once."""
    made = {}

    def of(name, make=train):
        if name not in made:
            made[name] = make(name)
        return made[name]

    return of


@pytest.mark.sampled(15)
@pytest.mark.parametrize("kind", DISTURBANCES)
@pytest.mark.parametrize("name", SETTINGS)
def test_an_env_that_does_it_in_a_step_changes_nothing(name, kind, undisturbed):
    expected = undisturbed(name)
    assert train(name, DISTURBANCES[kind], "step") == expected


@pytest.mark.sampled(7)
@pytest.mark.parametrize("kind", DISTURBANCES)
@pytest.mark.parametrize(
    ("name", "moment"), [("torch", "made"), ("own", "made"), ("own", "before"), ("torch", "reset")]
)
def test_nor_at_any_other_moment(name, moment, kind, undisturbed):
    expected = undisturbed(name)
    if moment == "before":
        DISTURBANCES[kind]()
    assert train(name, DISTURBANCES[kind], moment) == expected


def kept():
    return (
        str(torch.get_default_device()),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_num_threads(),
    )


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", DISTURBANCES)
@pytest.mark.parametrize("name", ["native", "torch", "own"])
def test_what_an_env_has_set_holds_for_its_own_steps(name, kind):
    """A simulator that has switched gradients off would leak memory if they were on in its next step."""
    seen = []

    class Watching(Simulator):
        def step(self, action):
            if self.steps >= 5:
                seen.append(kept())
            return super().step(action)

    def disturb():
        DISTURBANCES[kind]()
        seen.append(kept())

    algo, _, own = SETTINGS[name]
    how = {**QUIET, "num_envs": 1, "rollout_length": 8, "total_steps": 32, "num_minibatches": 2, "eval_episodes": 0}
    surefoot.train(lambda: Watching(disturb, "step"), algo, **how, **own)
    assert len(seen) == 1 + 32 - 5
    assert len(set(seen)) == 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", DISTURBANCES)
@pytest.mark.parametrize("engine", ["native", "torch"])
def test_a_registered_env_trains_evaluates_and_resumes_the_same(engine, kind, tmp_path):
    how = {
        **QUIET,
        "max_episode_steps": 20,
        "rollout_length": 8,
        "total_steps": 64,
        "num_minibatches": 2,
        "num_epochs": 2,
    }
    expected = written(surefoot.train("CartPole-v1", engine=engine, run_dir=tmp_path / "whole", **how))
    DISTURBANCES[kind]()

    class Suspend(surefoot.Callback):
        def on_update(self, trainer, metrics):
            if trainer.step == 32:
                trainer.suspend("half of the way")

    run = surefoot.train("CartPole-v1", engine=engine, run_dir=tmp_path / "half", callbacks=[Suspend()], **how)
    assert run.result["total_steps"] == 32
    assert written(surefoot.resume(run, progress=False)) == expected
    agent = surefoot.load(run)
    assert surefoot.evaluate(agent, "CartPole-v1", episodes=3).episodes == 3
    assert agent.predict(np.zeros(4, np.float32))[0] in (0, 1)
    assert agent.predict(np.zeros(4, np.float32), deterministic=False)[0] in (0, 1)


def train_tensors(disturb=nothing):
    envs = SyncVectorEnv([lambda: Simulator(disturb, "step") for _ in range(2)])
    how = {name: value for name, value in QUIET.items() if name not in ("num_envs", "max_episode_steps")}
    how |= {"rollout_length": 8, "total_steps": 48, "num_minibatches": 2, "num_epochs": 2}
    how |= {"memory": "gru", "memory_size": 4}
    return written(surefoot.train(AsTensors(envs), "ppo", **how))


@pytest.mark.parametrize("kind", DISTURBANCES)
def test_envs_of_tensors(kind, undisturbed):
    expected = undisturbed("tensors", lambda _: train_tensors())
    assert train_tensors(DISTURBANCES[kind]) == expected


def test_observations_with_a_history_of_gradients_are_stored_without_it():
    class Differentiable(AsTensors):
        def step(self, action):
            obs, reward, *rest = super().step(action)
            return obs.requires_grad_(), reward, *rest

    envs = Differentiable(SyncVectorEnv([Simulator, Simulator]))
    how = {name: value for name, value in QUIET.items() if name not in ("num_envs", "max_episode_steps")}
    surefoot.train(envs, "ppo", **how, rollout_length=8, total_steps=48, num_minibatches=2)
