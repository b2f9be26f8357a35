"""Envs that return tensors, from the door of `surefoot.train` inwards."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import surefoot
from surefoot.algorithms import ALGORITHMS
from surefoot.envs.tensor_envs import TensorEnvs, holds_tensors
from surefoot.envs.vector_envs import VectorEnvs
from surefoot.errors import EnvError, UsageError
from surefoot.training.build.envs import ready_envs
from surefoot.training.build.parts import choose_device
from tests.helpers import ScriptedEnv
from tests.tensor_vector_envs import AsTensors, Drift


def test_the_first_reset_tells_which_adapter_it_is():
    plain = SyncVectorEnv([ScriptedEnv] * 2)
    assert isinstance(ready_envs(plain, 0), VectorEnvs)
    assert isinstance(ready_envs(AsTensors(SyncVectorEnv([ScriptedEnv] * 2)), 0), TensorEnvs)
    assert holds_tensors({"a": (np.zeros(1), torch.zeros(1))})
    assert not holds_tensors({"a": np.zeros(1)})


@pytest.mark.parametrize("tensors", [False, True])
def test_a_ready_vector_env_is_reset_once_with_the_seed_of_the_run(tensors):
    plain = SyncVectorEnv([ScriptedEnv] * 2)
    envs = ready_envs(AsTensors(plain) if tensors else plain, 4)
    envs.reset()
    assert [len(env.seeds) for env in plain.envs] == [1, 1]
    assert None not in plain.envs[0].seeds


@pytest.mark.sampled(7)
@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_trains_on_tensors(algo, mode):
    envs = Drift(mode, num_envs=4, length=5)
    whole = {"max_episode_steps": 5} if algo == "reinforce" else {"rollout_length": 16}
    settings = {"total_steps": 256, "seed": 0, "progress": False, "log_info": ["height"], "preset": None}
    run = surefoot.train(envs, algo, **whole, **settings)
    assert run.result["total_steps"] > 100
    assert "info/height" in run.metrics[-1]
    assert "tensors stay on cpu" in (run.path / "log.txt").read_text()
    assert "where the envs' tensors are" in (run.path / "log.txt").read_text()
    assert np.isfinite(surefoot.load(run).predict(np.zeros(2, np.float32))[0]).all()


def test_two_runs_have_the_same_bytes():
    settings = {"total_steps": 512, "seed": 3, "progress": False, "rollout_length": 16}
    one, other = (surefoot.train(Drift(num_envs=4), **settings) for _ in range(2))
    assert one.metrics == other.metrics


def test_a_structured_observation_is_packed_as_arrays_are():
    space = spaces.Dict(
        choice=spaces.Discrete(5, start=2), bits=spaces.MultiBinary(2), arm=spaces.Tuple([spaces.Box(-1, 1, (2, 1))])
    )

    class Rich(ScriptedEnv):
        def __init__(self):
            super().__init__()
            self.observation_space = space
            space.seed(0)

        def observation(self):
            return space.sample()

    envs = SyncVectorEnv([Rich] * 2)
    obs, _ = envs.reset(seed=0)
    tensor = AsTensors(envs)
    made = TensorEnvs(tensor, (_tensors(obs), {}))
    expected = made.layout.pack_batch(obs, 2)
    np.testing.assert_array_equal(made.reset().numpy(), expected)


def _tensors(value):
    if isinstance(value, dict):
        return {key: _tensors(part) for key, part in value.items()}
    return tuple(map(_tensors, value)) if isinstance(value, tuple) else torch.from_numpy(np.array(value))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("obs", torch.zeros(4, 1)), ("reward", torch.zeros(4, 1)), ("terminated", torch.zeros(1)), ("truncated", [False])],
)
def test_a_wrong_shape_is_an_error_and_does_not_broadcast(name, wrong):
    class Wrong(Drift):
        def step(self, action):
            *found, info = super().step(action)
            found[["obs", "reward", "terminated", "truncated"].index(name)] = wrong
            return *found, info

    envs = Wrong()
    made = TensorEnvs(envs, envs.reset())
    with pytest.raises(EnvError, match=r"must be a tensor of \(4"):
        made.step(torch.zeros(4, 1))


@pytest.mark.parametrize("method", ["reset", "step"])
def test_an_error_of_the_simulator_says_what_was_going_on(method):
    mine = RuntimeError("mine")

    class Raising(Drift):
        count = 0

        def reset(self, **kwargs):
            return self.third(method == "reset", super().reset, **kwargs)

        def step(self, action):
            return self.third(method == "step", super().step, action)

        def third(self, counts, call, *args, **kwargs):
            self.count += counts
            if self.count == 3:
                raise mine
            return call(*args, **kwargs)

    envs = Raising(AutoresetMode.DISABLED)
    made = ready_envs(envs, 0)
    made.reset()
    made.step(torch.zeros(4, 1))
    if method == "step":  # of resets there was one before the first step, and there is one after each
        made.step(torch.zeros(4, 1))
    step = 2 if method == "reset" else 3
    with pytest.raises(EnvError, match=rf"{method} of Raising.* \(step {step}\) raised RuntimeError: mine") as caught:
        made.step(torch.zeros(4, 1))
    assert caught.value.__cause__ is mine


def test_an_error_of_the_very_first_reset():
    class Raising(Drift):
        def reset(self, **kwargs):
            raise KeyError("mine")

    with pytest.raises(EnvError, match=r"reset of Raising.* raised KeyError: 'mine'"):
        ready_envs(Raising(), 0)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_masks_of_a_method_are_taken(mode):
    class Masked(AsTensors):
        def action_masks(self):
            return torch.tensor([[True, False], [False, True]])

    inner = SyncVectorEnv([lambda: ScriptedEnv(rewards=(1.0, 1.0))] * 2, autoreset_mode=mode)
    envs = Masked(inner)
    made = TensorEnvs(envs, envs.reset())
    np.testing.assert_array_equal(made.reset()[:, -2:], [[1, 0], [0, 1]])
    np.testing.assert_array_equal(made.step(torch.tensor([0, 1])).obs[:, -2:], [[1, 0], [0, 1]])


def test_final_infos_must_be_tensors():
    class Dicts(AsTensors):
        def step(self, action):
            *rest, info = super().step(action)
            return *rest, {**info, "final_info": [{"height": 1.0}, None]}

    inner = SyncVectorEnv([lambda: ScriptedEnv(rewards=(1.0,))] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    envs = Dicts(inner)
    made = TensorEnvs(envs, envs.reset())
    made.reset()
    with pytest.raises(EnvError, match=r"info\['final_info'\] of .* is of type list; it must be a dict of tensors"):
        made.step(torch.tensor([0, 1]))


def test_a_simulator_that_fails_while_it_is_closed_takes_nothing_back(tmp_path):
    class Fails(Drift):
        def close_extras(self, **kwargs):
            raise RuntimeError("the renderer is gone")

    class Said(surefoot.Callback):
        messages: list[str] = []

        def on_warning(self, trainer, message):
            self.messages.append(message)

    settings = {"preset": "none", "total_steps": 64, "rollout_length": 8, "num_minibatches": 1, "progress": False}
    run = surefoot.train(Fails(), run_dir=tmp_path / "run", callbacks=[Said()], **settings)
    assert run.status["state"] == "done"
    assert run.result["total_steps"] == 64
    assert "close of" in Said.messages[-1]
    assert "the renderer is gone" in (tmp_path / "run" / "log.txt").read_text()


def test_tensors_and_arrays_in_one_observation_are_refused():
    envs = Drift()
    envs.single_observation_space = spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(2))
    with pytest.raises(UsageError, match="mixes tensors and ndarray"):
        TensorEnvs(envs, ({"a": torch.zeros(4), "b": np.zeros(4)}, {}))


def test_an_undeclared_mode_is_refused_before_anything_is_reset():
    envs = Drift()
    envs.metadata = {}
    envs.reset = None
    with pytest.raises(UsageError, match="autoreset_mode"):
        ready_envs(envs, 0)


def test_the_policy_goes_where_the_tensors_are_unless_told_otherwise():
    there = torch.device("cuda:1")
    assert choose_device("auto", 100, there)[0] == there
    assert choose_device("cuda", 100, there)[0] == there
    assert choose_device("cpu", 100, there)[0] == torch.device("cpu")


def test_lost_lives_are_learned_from_as_ends():
    class Lives(Drift):
        def step(self, action):
            *rest, info = super().step(action)
            return *rest, {**info, "life_lost": self.t == 2}

    envs = Lives(AutoresetMode.DISABLED, num_envs=1)
    made = TensorEnvs(envs, envs.reset())
    made.reset()
    assert [bool(made.step(torch.zeros(1, 1)).life_lost) for _ in range(5)] == [False, True, False, False, False]


def test_buffers_that_the_reset_overwrites_do_not_reach_the_step():
    envs = Drift(AutoresetMode.DISABLED, num_envs=2, length=3)
    made = TensorEnvs(envs, envs.reset())
    made.reset()
    steps = [made.step(torch.full((2, 1), 0.5)) for _ in range(3)]
    assert steps[2].truncated.all()  # though the env cleared its own flags
    assert steps[2].final_obs[:, 1].tolist() == [3, 3]
    assert steps[2].obs.tolist() == [[0, 0], [0, 0]]


def test_it_is_no_env_to_evaluate_in_by_itself():
    with pytest.raises(UsageError, match="eval_every needs an env of its own"):
        surefoot.train(Drift(), total_steps=512, rollout_length=16, eval_every=128, progress=False)
