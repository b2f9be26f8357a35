"""The look at a whole batch after an update: by hand, and the kernels' beside PyTorch's."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from surefoot.algorithms import ALGORITHMS, ppo_clip, trpo
from surefoot.algorithms.parts import estimate
from surefoot.engine.losses import RATIO, Loss
from surefoot.engine.torch import instruments
from surefoot.engine.torch.instruments import Look, due, from_sums, inspect, pieces, sampled_rows, with_instruments
from surefoot.engine.torch.learner import Learner
from tests.building import CONTINUOUS, DISCRETE, make_learner, make_policy, make_rollout

BOUNDED = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32))
HEADS = {
    "discrete": (DISCRETE, {}),
    "multi-discrete": (spaces.MultiDiscrete([3, 2]), {}),
    "multi-binary": (spaces.MultiBinary(3), {"activation": "relu"}),
    "box": (CONTINUOUS, {}),
    "box-state-std": (CONTINUOUS, {"std": "state"}),
    "tanh": (BOUNDED, {"action_bounds": "tanh"}),
    "beta": (BOUNDED, {"action_bounds": "beta", "shared_trunk": True}),
    "hybrid": (spaces.Dict(a=DISCRETE, b=BOUNDED), {"hidden_sizes": ()}),
}


def updated(engine, space, settings, *, update=0, invalid=True, config=None):
    """The metrics of one update of PPO."""
    algorithm = ppo_clip.PPOClip(config or ppo_clip.Config(num_envs=8, entropy_coef=0.01, learning_rate=3e-3))
    policy = make_policy(space, **settings)
    learner = make_learner(engine, policy, algorithm, seed=1)
    learner.update = update
    rollout = make_rollout(policy, steps=32, num_envs=8)
    if invalid:
        rollout.valid[3:5, 2] = False
    return algorithm.update(learner, rollout)


@pytest.mark.parametrize("head", HEADS)
def test_the_kernels_see_what_pytorch_sees(head):
    torch_metrics, native_metrics = (updated(engine, *HEADS[head]) for engine in ("torch", "native"))
    assert set(torch_metrics) == set(native_metrics)
    for name, value in torch_metrics.items():
        assert native_metrics[name] == pytest.approx(value, rel=2e-3, abs=2e-5), name
    assert {"ratio_p5", "effective_sample_size", "clip_fraction_positive", "surrogate_gain"} <= set(torch_metrics)
    assert ("dead_units" in torch_metrics) == (head != "hybrid")  # which has no hidden layer
    dimensions = sum(name.startswith("entropy/") for name in torch_metrics)
    assert dimensions == {"discrete": 0, "multi-binary": 3, "hybrid": 3}.get(head, 2)
    assert sum(name.startswith("std/") for name in torch_metrics) == (0 if "multi" in head or head == "discrete" else 2)


@pytest.mark.parametrize("engine", ["torch", "native"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_them(name, engine):
    kind = ALGORITHMS[name]
    algorithm = kind(kind.config_type(num_envs=8))
    policy = make_policy(CONTINUOUS, critic=kind.uses_critic)
    metrics = algorithm.update(make_learner(engine, policy, algorithm), make_rollout(policy, steps=16, num_envs=8))
    wanted = {"ratio_p5", "ratio_p50", "ratio_p95", "ratio_max", "effective_sample_size", "predicted_gain"}
    wanted |= {"surrogate_gain", "std/0", "std/1", "entropy/0", "dead_units", "effective_rank"}
    wanted |= {"gradient_noise", "gradient_signal"}
    assert wanted <= set(metrics)
    assert ("explained_variance_after" in metrics) == kind.uses_critic
    assert metrics["surrogate_gain"] > 0.0


def test_ratios_by_hand():
    """Ratios 1, 1, 2 of advantages 1, −1, 3: (1 + 1 + 2)² / (3·6); E[r·Â] from 1 to 2."""
    sums = {"weight": 3.0, "ratio": 4.0, "ratio_squared": 6.0, "before": 3.0, "after": 6.0}
    clipped = {"positive": 2.0, "negative": 1.0, "clipped_positive": 1.0, "clipped_negative": 0.0}
    assert from_sums(sums) == {"effective_sample_size": pytest.approx(16 / 18), "surrogate_gain": 1.0}
    assert from_sums(sums | clipped)["clip_fraction_positive"] == 0.5
    assert from_sums(sums | clipped)["clip_fraction_negative"] == 0.0


def moved(policy, batch, log_ratio):
    """The batch as if its policy had been another: each sample's ratio is e^log_ratio now."""
    with torch.no_grad():
        batch.log_prob = policy.evaluate(batch.obs, batch.action, batch.context).log_prob - log_ratio
    return batch


def test_only_the_side_that_pays_counts_as_clipped():
    """ε 0.2, ratios 1.5 and ½ with either sign of the advantage: one of two is held back on either side."""
    policy = make_policy()
    batch = estimate(make_rollout(policy, steps=1, num_envs=4), ppo_clip.Config())
    batch.advantage, batch.weight = torch.tensor([1.0, 1.0, -1.0, -1.0]), None
    batch = moved(policy, batch, torch.tensor([1.5, 0.5, 1.5, 0.5]).log())
    found = inspect(policy, ppo_clip.PPOClip(ppo_clip.Config(clip_ratio=0.2)).terms(1.0), batch)
    sums = {name: float(x) for name, x in found.sums.items()}
    assert (sums["positive"], sums["negative"]) == (2.0, 2.0)
    assert (sums["clipped_positive"], sums["clipped_negative"]) == (1.0, 1.0)
    assert sums["before"] == pytest.approx(0.0, abs=1e-6)
    assert sums["after"] == pytest.approx(1.2 + 0.5 - 1.5 - 0.8)
    assert sums["ratio_squared"] == pytest.approx(2 * (2.25 + 0.25))


def test_a_large_batch_goes_through_in_pieces(monkeypatch):
    policy = make_policy(CONTINUOUS)
    batch = estimate(make_rollout(policy, steps=10, num_envs=4), ppo_clip.Config())
    batch.weight = (torch.arange(40) % 5 > 0).float()
    whole = inspect(policy, Loss(RATIO), batch, normalize=True)
    monkeypatch.setattr(instruments, "CHUNK", 16)
    assert [len(piece) for piece in pieces(batch)] == [16, 16, 8]
    parts = inspect(policy, Loss(RATIO), batch, normalize=True)
    assert torch.allclose(whole.kl, parts.kl)
    assert torch.allclose(whole.value, parts.value)
    for name, x in whole.sums.items():
        assert float(parts.sums[name]) == pytest.approx(float(x), rel=1e-5, abs=1e-4), name


def test_predicted_gain_by_hand():
    """Two gradients of the loss, (1, 0) and (3, 2), on a way of (−0.1, 0.3): −(2·−0.1 + 1·0.3)."""
    look = Look(Loss(RATIO), torch.zeros(2), 2, normalize=False)
    for gradient in ([1.0, 0.0], [3.0, 2.0], [100.0, 100.0]):  # the last one is of the second pass
        look.add(torch.tensor(gradient))
    found = look.metrics(torch.tensor([-0.1, 0.3]), 8.0)
    assert float(found["predicted_gain"]) == pytest.approx(0.2 - 0.3)
    assert float(found["gradient_noise"]) == pytest.approx(4.0 * (2 + 2))
    assert float(found["gradient_signal"]) == pytest.approx(5.0 - 4.0 / 2)


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_a_small_step_gains_what_the_gradient_promises(engine):
    config = ppo_clip.Config(num_envs=8, learning_rate=1e-5, num_epochs=1, num_minibatches=1)
    metrics = updated(engine, CONTINUOUS, {}, config=config, invalid=False)
    assert metrics["surrogate_gain"] == pytest.approx(metrics["predicted_gain"], rel=0.02)


def test_which_updates_are_measured():
    """Once in 30 passes, collecting being half of one."""
    assert [n for n in range(8) if due(n, 10)[0]] == [0, 3, 6]
    assert [n for n in range(50) if due(n, 1)[0]] == [0, 20, 40]
    assert all(due(n, 100)[0] for n in range(5))
    assert [n for n in range(500) if due(n, 1)[1]] == [0, 200, 400]


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_the_others_have_the_kl_alone_and_the_same_step(engine):
    metrics = updated(engine, DISCRETE, {}, update=1)
    assert "kl_p95" in metrics
    assert "ratio_p5" not in metrics
    measured = updated(engine, DISCRETE, {}, update=0)
    assert {name: measured[name] for name in metrics} == metrics


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_they_can_be_switched_off(engine, monkeypatch):
    monkeypatch.setattr(Learner, "instruments", False)
    assert "ratio_p5" not in updated(engine, DISCRETE, {})


def test_an_instrument_that_overflows_refuses_no_update():
    found = with_instruments({"kl": 1.0}, {"kl": 2.0, "ratio_max": math.inf, "ratio_p5": 0.5, "x": math.nan})
    assert found == {"kl": 1.0, "ratio_p5": 0.5}


def test_the_samples_that_are_looked_at_closely_come_from_all_envs():
    policy = make_policy()
    batch = estimate(make_rollout(policy, steps=64, num_envs=8), ppo_clip.Config())
    rows = sampled_rows(batch)
    assert len(rows) == 128
    assert (np.diff(rows) > 0).all()
    assert set(np.bincount(rows % 8)) == {16}


def test_the_line_search_leaves_its_trace():
    algorithm = trpo.TRPO(trpo.Config(num_envs=8, max_kl=0.5, cg_damping=1e-6))
    policy = make_policy(CONTINUOUS)
    metrics = algorithm.update(make_learner("native", policy, algorithm), make_rollout(policy, steps=32, num_envs=8))
    tries = metrics["line_search_tries"]
    assert metrics["step_fraction"] in (0.0, pytest.approx(0.8 ** (tries - 1)))
    assert metrics["tries_over_max_kl"] <= tries
    if tries == 1:
        assert metrics["full_step_kl"] == pytest.approx(metrics["kl"], rel=1e-4)
        assert metrics["full_step_gain"] == pytest.approx(metrics["surrogate_gain"])


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_an_algorithm_that_makes_its_own_passes_is_measured_too(engine):
    algorithm = ppo_clip.PPOClip(ppo_clip.Config(num_envs=8))
    policy = make_policy()
    learner = make_learner(engine, policy, algorithm)
    batch = algorithm.estimate(make_rollout(policy, steps=16, num_envs=8), learner.operations)
    with learner.all_or_nothing():
        history = [learner.step(algorithm.terms(1.0), part) for part in learner.minibatches(batch, 4)]
        metrics = learner.summarize(batch, history, {})
    assert {"ratio_p5", "surrogate_gain", "effective_rank"} <= set(metrics)
