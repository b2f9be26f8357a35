"""Whole rollouts of classic control by one kernel against PyTorch's steps, in Triton's interpreter."""

import os

import pytest
import torch

from surefoot.engine.collecting.stepping import step_all
from surefoot.engine.cuda.recorder import Recorder
from surefoot.engine.cuda.stepping import FusedStepping, RecordedStepping, can_play
from surefoot.engine.cuda.whole_nets import whole_nets
from surefoot.engine.torch.flat import FlatParameters
from surefoot.envs.config import EnvConfig
from surefoot.envs.device_envs import DeviceEnvs
from tests.building import make_collector, make_policy
from tests.marks import quick

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
pytest.importorskip("triton")
CPU, STEPS = torch.device("cpu"), 4
ENVS = ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0"]
CASES = [(env, hidden, normalized) for env in ENVS for hidden in ((8, 8), (8,)) for normalized in (False, True)]
COLUMNS = ("obs", "action", "params", "reward", "terminated", "truncated", "_ended", "start", "valid")


def make(env, hidden=(8, 8), *, normalized=False):
    """(a collector, its nets); every env is truncated within a rollout."""
    envs = DeviceEnvs(EnvConfig(env=env, max_episode_steps=3), 3, 3, CPU)
    policy = make_policy(
        envs.action_space,
        observation_space=envs.observation_space,
        hidden_sizes=hidden,
        normalize_observations=normalized,
    )
    if normalized:
        policy.normalizer.mean += 0.1
        policy.normalizer.var *= 0.5
        policy.normalizer.refresh()
    nets = whole_nets(policy, FlatParameters(policy).vector)
    return make_collector(envs, policy, STEPS), nets


@pytest.mark.parametrize(("env", "hidden", "normalized"), quick(CASES, ("CartPole-v1", (8, 8), False)))
def test_two_rollouts_are_those_of_single_steps(env, hidden, normalized):
    found = []
    for fused in (False, True):
        collector, nets = make(env, hidden, normalized=normalized)
        if fused:
            collector.stepping = stepping = FusedStepping(Recorder(), nets)
        rollouts = [collector.collect() for _ in range(2)]
        assert not fused or stepping._instead is None
        storage = [getattr(collector.storage, name).clone() for name in COLUMNS]
        own = [rollouts[-1].next_value, rollouts[-1].final_inputs, *collector.envs.tensors]
        found.append([*storage, *own, torch.tensor(collector.tracker.length)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fault", ["fails", "differs"])
def test_a_kernel_that_fails_or_differs_is_not_used(fault, monkeypatch):
    from surefoot.kernels import fused_rollout

    def play(theta, net, normalizer, world, noise, into):
        if fault == "fails":
            raise RuntimeError("no compiler\nand more")
        into.obs[1:] = 7.0

    monkeypatch.setattr(fused_rollout, "play", play)
    collector, nets = make("CartPole-v1")
    reference, _ = make("CartPole-v1")
    recorder = Recorder()
    collector.stepping = stepping = FusedStepping(recorder, nets)
    assert torch.equal(collector.collect().obs, reference.collect().obs)
    assert isinstance(stepping._instead, RecordedStepping)
    reason = "no compiler" if fault == "fails" else "100% of the envs"
    assert reason in recorder.take_notices()[0]


def test_it_plays_only_what_the_kernel_knows():
    collector, nets = make("CartPole-v1")
    envs, policy = collector.envs, collector.policy
    assert not can_play(envs, nets, policy)  # the envs' own kernel is not used on a CPU
    envs.fused = True
    assert can_play(envs, nets, policy)
    assert not can_play(envs, None, policy)
    assert collector.stepping is step_all
