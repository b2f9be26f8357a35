"""Fused gradient steps against autograd and float64, in Triton's interpreter; a GPU repeats it in benchmarks/gpu.py."""

import os
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

from surefoot.algorithms import ALGORITHMS
from surefoot.algorithms.ppo_clip import SURROGATES as OF_PPO
from surefoot.engine.cuda.fused_passes import FusedPasses, terms_of
from surefoot.engine.cuda.passes import FixedPasses
from surefoot.engine.cuda.whole_nets import WholeNets, whole_nets
from surefoot.engine.losses import LOG_PROB, RATIO, Loss, Surrogate, ratio_of
from tests.building import CONTINUOUS, DISCRETE, make_learner, make_policy, make_rollout
from tests.marks import quick

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
pytest.importorskip("triton")


def spo(outputs, batch, epsilon):
    ratio = ratio_of(outputs, batch)
    return ratio * batch.advantage - batch.advantage.abs() * (ratio - 1.0) ** 2 / (2.0 * epsilon)


LOSSES = {
    "log_prob": Loss(LOG_PROB, value_coef=0.5),
    "ratio": Loss(RATIO, kl_coef=0.7, value_coef=0.5, entropy_coef=0.02),
    "clip": Loss(OF_PPO["clip"], (0.1,), value_coef=0.5, entropy_coef=0.01, metrics=("approx_kl", "clip_fraction")),
    "value clip": Loss(OF_PPO["clip"], (0.1,), value_coef=0.3, value_clip=0.1, value_loss="smooth_l1"),
    "spo": Loss(Surrogate(spo, "spo"), (0.2,), value_coef=0.5),
    "no critic": Loss(RATIO),
}
HEADS = {"choice": DISCRETE, "many choices": spaces.Discrete(6), "Gaussian": CONTINUOUS}
NETS = {"tanh": (8, 8), "relu": (8, 5), "elu": (7,)}
CASES = [(head, loss, activation) for head in HEADS for loss in LOSSES for activation in NETS]


def make(name="ppo", space=DISCRETE, activation="tanh", **settings):
    """(algorithm, learner) whose gradient steps are fused."""
    kind = ALGORITHMS[name]
    algorithm = kind(kind.config_type(num_envs=4, **settings))
    policy = make_policy(space, critic=kind.uses_critic, hidden_sizes=NETS[activation], activation=activation)
    learner = make_learner("cuda", policy, algorithm, seed=1)
    nets = whole_nets(policy, learner.flat.vector)
    assert isinstance(nets, WholeNets)
    learner.connect(learner.recorder, nets, fixed_length=True)  # autograd stays PyTorch's own
    return algorithm, learner


def moved(learner, algorithm, steps=5):
    """A batch of a policy that has since moved, so that ratios are around 1."""
    batch = algorithm.estimate(make_rollout(learner.policy, steps=steps, num_envs=4))
    with torch.no_grad():
        learner.flat.vector.add_(
            0.05 * torch.randn(len(learner.flat.vector), generator=torch.Generator().manual_seed(0))
        )
    return replace(batch, weight=None)


def exact(policy, loss, batch):
    """The gradient in float64."""
    twin = deepcopy(policy).double()
    names = ["obs", "log_prob", "dist_params", "advantage", "value_target", "value"]
    names += ["action"] if batch.action.is_floating_point() else []
    wide = replace(batch, **{name: getattr(batch, name).double() for name in names})
    total, _ = loss(twin.evaluate(wide.obs, wide.action), wide)
    own = [*twin.actor_parameters(), *twin.critic_parameters()]
    found = torch.autograd.grad(total, own, allow_unused=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(own, found, strict=True)])


def passes(learner, loss, batch, *, kind="joint", parts=1, normalize=False):
    found, fixed = learner._new((kind, (), (), parts, 1, normalize, True), kind, loss, batch)
    fixed.load(loss)
    return found


@pytest.mark.parametrize(("head", "loss", "activation"), quick(CASES, ("choice", "clip", "tanh")))
def test_a_gradient_is_that_of_float64(head, loss, activation):
    algorithm, learner = make(space=HEADS[head], activation=activation)
    batch, loss = moved(learner, algorithm), LOSSES[loss]
    found = passes(learner, loss, batch)
    assert isinstance(found, FusedPasses), learner.recorder.notices
    truth = exact(learner.policy, loss, batch)
    assert (found.gradient() - truth).norm() < 1e-5 * truth.norm()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["joint", "critic"])
def test_shuffled_and_standardised_minibatches_are_autograds(kind):
    algorithm, learner = make()
    batch, loss = moved(learner, algorithm, steps=10), LOSSES["value clip"]
    found = passes(learner, loss, batch, kind=kind, parts=2, normalize=kind == "joint")
    assert isinstance(found, FusedPasses), learner.recorder.notices
    assert found.disagreement() < 1e-5


UPDATES = [("ppo", DISCRETE), ("ppo", CONTINUOUS), ("ppo-penalty", DISCRETE), ("a2c", CONTINUOUS), ("trpo", DISCRETE)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "space"), UPDATES, ids=str)
def test_an_update_is_that_of_autograd(name, space):
    fields = ALGORITHMS[name].config_type.__dataclass_fields__
    epochs = {"num_epochs": 2, "num_minibatches": 2} if "num_epochs" in fields else {}
    found = []
    for fused in (True, False):
        algorithm, learner = make(name, space, **epochs)
        learner.nets = learner.nets if fused else None
        rollout = make_rollout(learner.policy, steps=8, num_envs=4)
        rollout.complete = True
        learner.set_rates(1.0)
        metrics = algorithm.update(learner, rollout)
        kinds = {type(each) for each, _ in learner._fixed.values()}
        assert kinds == {FusedPasses if fused else FixedPasses}, learner.recorder.notices
        found.append((metrics, learner.flat.vector.clone(), learner.optimizer.first.clone(), learner.optimizer.steps))
    (ours, *mine), (theirs, *other) = found
    assert list(ours) == list(theirs)
    for key, value in theirs.items():
        assert ours[key] == pytest.approx(value, rel=1e-3, abs=1e-5), key
    assert mine[-1] == other[-1]
    for one, two in zip(mine[:-1], other[:-1], strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5)


def test_what_is_not_fused_says_why():
    def reason(space=CONTINUOUS, **config):
        policy = make_policy(space, **{"hidden_sizes": (8, 8), **config})
        return whole_nets(policy, torch.zeros(1))

    assert "share a trunk" in reason(shared_trunk=True)
    assert "memory" in reason(memory="gru", memory_size=4)
    assert "neither one choice" in reason(spaces.MultiBinary(3))
    assert "neither one choice" in reason(action_bounds="tanh")
    assert "std is no parameter" in reason(std="state")
    assert "hidden layers" in reason(hidden_sizes=(8, 8, 8))
    assert "hidden layers" in reason(hidden_sizes=(100, 8))
    assert "silu" in reason(activation="silu")
    own = Loss(Surrogate(lambda outputs, batch: outputs.log_prob))
    assert "do not know this loss" in terms_of(own, "joint", normalize=False, has_critic=True)
    unweighted = Loss(RATIO, value_coef=0.0)
    assert "no weight" in terms_of(unweighted, "joint", normalize=False, has_critic=True)


@pytest.mark.parametrize("fault", ["fails", "differs", "weights"])
def test_a_step_that_fails_or_differs_is_autograds(fault, monkeypatch):
    def disagreement(self):
        if fault == "fails":
            raise RuntimeError("no compiler\nand more")
        return 0.5

    monkeypatch.setattr(FusedPasses, "disagreement", disagreement)
    algorithm, learner = make()
    batch = moved(learner, algorithm)
    if fault == "weights":
        batch = replace(batch, weight=torch.ones(len(batch)))
    assert type(passes(learner, LOSSES["clip"], batch)) is FixedPasses
    reason = {"fails": "no compiler", "differs": "off by 0.5", "weights": "no transitions"}[fault]
    assert reason in learner.recorder.notices[0]
