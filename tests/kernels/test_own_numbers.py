"""Agents that are trained at once and differ in their settings, each against the same run alone, to the bit."""

import os
from itertools import pairwise

import pytest
import torch

from surefoot.engine.cuda.population.iteration import Population as Iterations
from surefoot.engine.own_numbers import OF_ALGORITHM, OWN_NUMBERS
from surefoot.engine.torch import instruments
from surefoot.training.life.population import Population, joined
from tests.building import make_policy, make_rollout
from tests.engine.population import Count, built, on_the_cpu, tensors

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
pytest.importorskip("triton")
FIRST = {"learning_rate": "linear:3e-2:2e-2", "clip_ratio": 0.1, "entropy_coef": 0.01, "value_coef": 0.5}
FIRST |= {"gamma": 0.9, "gae_lambda": 0.95, "max_grad_norm": 0.5}
OTHER = {"learning_rate": 0.01, "clip_ratio": 0.2, "entropy_coef": 0.1, "value_coef": 2.0}
OTHER |= {"gamma": 0.99, "gae_lambda": 0.8, "value_lambda": 0.5, "max_grad_norm": 0.05}
AGENTS = {
    "numbers": [
        FIRST,
        FIRST | {"learning_rate": "linear:3e-2:1e-2", "reward_scale": 0.1},  # a schedule that equals the first one's
        OTHER,
    ],
    "pendulum": [
        {"log_std_init": -1.0, "gamma": 0.9, "value_clip": 0.1, "critic_learning_rate": 1e-2, "adaptive_kl": 1e-4},
        {"log_std_init": 0.5, "gamma": 0.99, "value_clip": 0.3, "critic_learning_rate": 1e-3, "adaptive_kl": 1e-1},
    ],
    "other kernels": [
        {"entropy_coef": 0.0, "clip_ratio_schedule": "linear"},
        {"entropy_coef": 0.01, "total_steps": 2 * 12},
        {"entropy_coef": 0.02, "total_steps": 4 * 12, "learning_rate_schedule": "linear"},
        {"max_grad_norm": None},
        {"critic_learning_rate": 1e-3, "value_clip": 0.2},
    ],
}
SHARED = {"pendulum": {"env": "Pendulum-v1", "normalize_rewards": True}, "other kernels": {"num_minibatches": 1}}


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    on_the_cpu(monkeypatch)


def trainers_of(agents, **shared):
    return [built(seed, callback=Count(), updates=3, **shared, **own) for seed, own in enumerate(agents)]


@pytest.fixture
def begun(monkeypatch):
    """How many iterations of an agent were begun together with those of others."""
    found, own = [], Iterations.begin

    def begin(self, turns):
        flight = own(self, turns)
        found.extend([len(turns)] * (0 if flight is None else len(flight.pages)))
        return flight

    monkeypatch.setattr(Iterations, "begin", begin)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", AGENTS)
def test_every_agent_has_the_bits_that_it_has_alone(case, begun):
    shared = {"num_epochs": 1, **SHARED.get(case, {})}
    several, alone = trainers_of(AGENTS[case], **shared), trainers_of(AGENTS[case], **shared)
    Population(several, joined(several), [trainer.turns() for trainer in several]).train()
    assert sum(begun) == sum(trainer.update for trainer in several)  # none did one by itself
    for one, other in zip(several, alone, strict=True):
        other.train()
        assert one.callbacks[0].seen == other.callbacks[0].seen
        assert all(torch.equal(x, y) for x, y in zip(tensors(one), tensors(other), strict=True))
    assert all(not torch.equal(*(x.learner.flat.vector for x in two)) for two in pairwise(several))


def test_agents_that_need_other_kernels_are_populations_of_their_own():
    together = joined(trainers_of(AGENTS["other kernels"]))
    assert [population.agents for population in together.populations] == [1, 2, 1, 1]
    assert len(joined(trainers_of(AGENTS["numbers"])).populations) == 1


def test_shapes_and_other_settings_must_agree():
    for settings in ({"num_epochs": 3}, {"surrogate": "spo"}, {"hidden_sizes": (4,)}, {"num_envs": 6}):
        together = trainers_of([{}, settings])
        with pytest.raises(Exception, match="differ in more than their seeds and learning_rate"):
            joined(together)


def test_all_of_them_are_settings():
    config = built(0).config
    assert set(OWN_NUMBERS) <= set(config.flat())
    assert set(OF_ALGORITHM) <= set(config.algorithm.as_dict())


@pytest.mark.parametrize("segment_length", [None, 3])
def test_advantages_of_agents_side_by_side_are_those_of_each_alone(segment_length):
    from surefoot.engine.cuda.operations import DeviceOperations
    from surefoot.kernels.fused_scan import advantages

    rollout = make_rollout(make_policy(), steps=7, num_envs=6)
    whole = (rollout.reward, rollout.value, rollout.next_value, rollout.terminated, rollout.truncated, rollout.valid)
    rows = [(g, g * gae_lambda, g * of_value) for g, gae_lambda, of_value in ((0.99, 0.95, 0.95), (0.9, 0.8, 0.5))]
    numbers = torch.tensor(rows, dtype=torch.float32).T.contiguous()
    kernel = advantages(tuple(x.contiguous() for x in whole), numbers, segment_length)
    twin = DeviceOperations().scanned(rollout, numbers, segment_length)
    for agent, row in enumerate(rows):
        own = slice(agent * 3, agent * 3 + 3)
        alone = advantages(tuple(x[:, own].contiguous() for x in whole), row, segment_length)
        for x, y, z in zip(kernel, alone, twin, strict=True):
            assert torch.equal(x[:, own], y)
            torch.testing.assert_close(z[:, own], y)


@pytest.mark.slow
def test_a_term_that_ends_is_left_to_the_ordinary_way(monkeypatch):
    """Here before an update whose kind of measuring is new, and which is recorded then."""
    monkeypatch.setattr(instruments, "PASSES", 1)
    agents = [{"entropy_coef": "points:0=0.01,0.1=0,1=0"}, {"entropy_coef": "points:0=0.1,0.1=0,1=0"}]
    shared = {"num_epochs": 1, "num_minibatches": 1}
    several, alone = trainers_of(agents, **shared), trainers_of(agents, **shared)
    Population(several, joined(several), [trainer.turns() for trainer in several]).train()
    for one, other in zip(several, alone, strict=True):
        other.train()
        assert one.callbacks[0].seen == other.callbacks[0].seen
        assert torch.equal(one.learner.flat.vector, other.learner.flat.vector)
