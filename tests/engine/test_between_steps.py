"""Steps of a simulator with everything in between recorded: the rollouts of the ordinary way, to the bit."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import surefoot
from surefoot.engine.collecting.stepping import step_all
from surefoot.engine.contract import CollectorOptions
from surefoot.engine.cuda import engine as engine_module
from surefoot.engine.cuda.actor import WHAT, RecordedActor
from surefoot.engine.cuda.between_steps import BetweenSteps
from surefoot.engine.cuda.engine import CudaEngine
from surefoot.engine.cuda.recorder import Recorder
from surefoot.envs.atari import LIFE_LOST
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.types import Rollout
from tests.engine.replays import ReplayRecorder, counted
from tests.engine.test_collect_tensors import MODES, Picky, adapted, assert_same, sync
from tests.helpers import NoiseEnv
from tests.tensor_vector_envs import AsTensors, Drift, Guard

LENGTH = 9


class Careless(Drift):
    """Gives final observations, lives and infos only at times, and numbers of other kinds."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.steps = getattr(self, "steps", 0) + 1
        if "final_obs" in info and not bool(self.ended.any()):
            info = {}
        if self.steps % 2:
            info.get("final_info", info).pop("height", None)
        if self.steps % 3 == 0:
            info[LIFE_LOST] = self.x > 0.3
        return obs.double(), reward.half(), terminated.to(torch.uint8), truncated, info


class Keeps(Drift):
    """Keeps the actions that it is given, as some simulators do to punish changes of them."""

    def step(self, action):
        self.kept = [*getattr(self, "kept", []), (action, action.clone())]
        return super().step(action)


class Parts(Drift):
    """Shows a Dict."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.single_observation_space = spaces.Dict(
            x=spaces.Box(-np.inf, np.inf, (2,), np.float32), late=spaces.Discrete(2, start=3)
        )

    def shown(self, obs):
        return {"x": obs, "late": 3 + (self.t > 2).long()}

    def reset(self, **how):
        obs, info = super().reset(**how)
        return self.shown(obs), info

    def step(self, action):
        obs, *rest, info = super().step(action)
        if "final_obs" in info:
            info["final_obs"] = self.shown(info["final_obs"])
        return self.shown(obs), *rest, info


def collector(envs, kind=BetweenSteps, recorder=None, length=LENGTH, policy=None, **options):
    torch.manual_seed(0)
    config = PolicyConfig(**(policy or {}))
    made = ActorCritic(envs.observation_space, envs.action_space, config, masked=bool(envs.layout.mask_size))
    engine = CudaEngine()
    engine.recorder = recorder or ReplayRecorder()
    options = CollectorOptions(length, torch.Generator().manual_seed(0), **options)
    found = engine.collector(envs, RecordedActor(made, engine.recorder), options)
    assert isinstance(found.stepping, kind)
    return found


def ordinary(envs, **how):
    made = collector(envs, **how)
    made.stepping = step_all
    return made


def compare(make, rollouts=3, **how):
    one, other = ordinary(adapted(make()), **how), collector(adapted(make()), **how)
    for _ in range(rollouts):
        left, right = one.collect(0.5), other.collect(0.5)
        assert isinstance(left, Rollout)
        assert_same(left, right)
        assert torch.equal(left.final_index, right.final_index)
        assert torch.equal(left.final_inputs, right.final_inputs)
        assert torch.equal(left.next_value, right.next_value)
        assert one.tracker.take() == other.tracker.take()
    assert other.stepping.recorder.recorded == [WHAT] * 3
    assert list(other.timer.seconds) == ["act", "env"]
    return other


@MODES
@pytest.mark.parametrize(
    "policy",
    [
        {"normalize_observations": True},
        {"memory": "gru", "memory_size": 4},
        {"memory": "lstm", "memory_size": 4},
        {"std": "gsde", "sde_resample": 4},
        {"action_bounds": "beta"},
        {"std": "state", "action_bounds": "tanh"},
    ],
    ids=str,
)
def test_the_rollouts_are_those_of_the_ordinary_way(mode, policy):
    compare(lambda: Drift(mode), policy=policy, log_info=("height",), reward_gamma=0.9)


@MODES
@pytest.mark.parametrize("length", [1, 2])
def test_rollouts_may_be_short(mode, length):
    compare(lambda: Drift(mode), rollouts=6, length=length, policy={"memory": "gru", "memory_size": 4})


@MODES
@pytest.mark.parametrize("kind", [Careless, Parts])
def test_envs_may_return_what_they_return_to_others(mode, kind):
    compare(lambda: kind(mode), log_info=("height",))


@MODES
def test_envs_of_numpy_give_the_same_as_tensors(mode):
    compare(lambda: AsTensors(sync(NoiseEnv, mode)), log_info=("time",), reset_each_rollout=True)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("in_obs", [False, True])
def test_masks_are_kept_to(mode, in_obs):
    compare(lambda: AsTensors(sync(lambda: Picky(in_obs), mode)), policy={"memory": "gru", "memory_size": 4})


def test_actions_that_an_env_keeps_do_not_change():
    made = compare(Keeps)
    assert len(made.envs.envs.kept) == 3 * LENGTH
    assert all(torch.equal(given, then) for given, then in made.envs.envs.kept)


@pytest.mark.parametrize("normalize", [False, True])
def test_the_host_reads_nothing(normalize, monkeypatch):
    guard = Guard(6, monkeypatch)
    made = collector(
        adapted(Drift(guard=guard)), recorder=Recorder(), length=6, policy={"normalize_observations": normalize}
    )
    for _ in range(3):
        made.collect()
    assert guard.rollouts == 3


def test_the_host_asks_for_little():
    """Each of these operations would take the host longer than the GPU."""

    class Quiet(ReplayRecorder):
        def record(self, what, work, *rest):
            return lambda: None

    class Still(Drift):
        def step(self, action):
            return self.obs, self.reward, self.terminated, self.truncated, {"final_obs": self.obs}

    made = collector(adapted(Still()), recorder=Quiet(), length=20, policy={"normalize_observations": True})
    made._begin()
    noise = made.noise()
    made.stepping(made, noise, None)
    with counted() as asked:
        made.stepping(made, noise, None)
    assert len(asked) < 6 * 20


@pytest.mark.parametrize("policy", [{}, {"memory": "gru", "memory_size": 4}], ids=str)
def test_inference_mode_may_be_on(policy):
    """A simulator or the user's program may have entered it."""
    one, other = (made(adapted(Drift()), policy=policy) for made in (ordinary, collector))
    for _ in range(2):
        expected = one.collect()
        with torch.inference_mode():
            assert_same(expected, other.collect())


def test_acting_that_cannot_be_recorded_is_done_in_the_ordinary_way():
    class Refuses(ReplayRecorder):
        def record(self, what, work, *rest):
            self._failed.add(what)
            return work

    one, other = ordinary(adapted(Drift())), collector(adapted(Drift()), recorder=Refuses())
    for _ in range(2):
        assert_same(one.collect(), other.collect())


def test_whole_episodes_are_stepped_in_the_ordinary_way():
    assert not isinstance(collector(adapted(Drift()), kind=object, episodes_per_env=1).stepping, BetweenSteps)


@pytest.mark.parametrize("algo", ["ppo", "trpo"])
def test_a_recorded_run_has_the_bytes_of_one_that_is_not(algo, monkeypatch, tmp_path):
    """With its gradient steps, whose minibatches find all that changes in fixed places, too."""
    monkeypatch.setattr(CudaEngine, "serves", lambda *_: None)
    recorders, found = [], []
    base = {"preset": "none", "seed": 3, "progress": False, "eval_episodes": 0, "engine": "cuda", "algo": algo}
    base |= {"rollout_length": 8, "total_steps": 4 * 32, "normalize_observations": True, "log_every": 32}
    for kind in (Recorder, ReplayRecorder):
        monkeypatch.setattr(engine_module, "Recorder", lambda kind=kind: recorders.append(kind()) or recorders[-1])
        run = surefoot.train(Drift(), run_dir=tmp_path / kind.__name__, **base)
        last = (run.path / "checkpoints" / "LATEST").read_text().strip()
        files = ("metrics.jsonl", f"checkpoints/{last}/policy.safetensors")
        found.append([(run.path / name).read_bytes() for name in files])
    assert found[0] == found[1]
    assert {WHAT, "the gradient step"} <= {what for one in recorders[1:] for what in getattr(one, "recorded", ())}
