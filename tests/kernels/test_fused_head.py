"""The loss from a policy's outputs on, as kernels, against float64 and the torch engine, in Triton's interpreter."""

import os
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from surefoot.algorithms import ALGORITHMS
from surefoot.engine.cuda import learner as learner_module
from surefoot.engine.cuda.fused_passes import terms_of
from surefoot.engine.cuda.head_loss import PlainHead, head_objective, plain_head
from surefoot.engine.cuda.passes import FixedLoss, FixedPasses
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.types import Context
from tests.building import BOX4, CONTINUOUS, DISCRETE, make_learner, make_policy, make_rollout
from tests.kernels.test_fused_update import LOSSES
from tests.marks import quick

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
pytest.importorskip("triton")

BOTH = spaces.Dict({"near": spaces.Box(-1.0, 1.0, (3,), np.float32), "far": spaces.Box(-1.0, 1.0, (2,), np.float32)})
POLICIES = {
    "choice": {"action_space": DISCRETE, "hidden_sizes": (80, 8)},
    "many choices": {"action_space": spaces.Discrete(19)},
    "Gaussian": {"action_space": CONTINUOUS, "activation": "elu"},
    "Gaussian of twelve, GRU": {
        "action_space": spaces.Box(-1.0, 1.0, (3, 4), np.float32),
        "memory": "gru",
        "memory_size": 6,
    },
    "shared trunk, norms": {"action_space": DISCRETE, "shared_trunk": True, "layer_norm": True},
}
CASES = [(policy, loss) for policy in POLICIES for loss in LOSSES]


def make(case, name="ppo", **settings):
    """(algorithm, learner) whose losses are kernels, from the policy's head on."""
    kind = ALGORITHMS[name]
    algorithm = kind(kind.config_type(num_envs=4, **settings))
    policy = make_policy(**{"hidden_sizes": (9,), **POLICIES[case]}, critic=kind.uses_critic)
    learner = make_learner("cuda", policy, algorithm, seed=1)
    head = plain_head(policy)
    assert isinstance(head, PlainHead), head
    learner.connect(learner.recorder, None, fixed_length=True, head=head)
    return algorithm, learner


def moved(algorithm, learner):
    """A batch of a policy that has since moved, one of whose log stds beyond its range."""
    rollout = make_rollout(learner.policy, steps=40, num_envs=4)
    rollout.log_prob = learner.actor.log_prob(rollout.dist_params, rollout.action)
    batch = replace(algorithm.estimate(rollout), weight=None)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        learner.flat.vector.add_(0.05 * torch.randn(len(learner.flat.vector), generator=generator))
        if learner.policy.log_std is not None:
            learner.policy.log_std[-1] = 5.5
    return batch


def by_kernels(learner, loss):
    fixed = FixedLoss(loss, torch.device("cpu"))
    terms = terms_of(fixed.loss, "joint", normalize=False, has_critic=True)
    return head_objective(learner, fixed, learner.head, terms)


def exact(policy, loss, batch):
    """(the loss, its gradient, its terms), in float64."""
    twin = deepcopy(policy).double()
    twin.compute_with(type(policy.networks.reference)(twin))
    wide = {name: getattr(batch, name).double() for name in ("obs", "log_prob", "advantage", "value_target", "value")}
    wide["dist_params"] = batch.dist_params.double()
    wide["action"] = batch.action.double() if batch.action.is_floating_point() else batch.action
    if batch.context is not None:
        wide["context"] = Context(batch.context.start, batch.context.memory.double())
    wide = replace(batch, **wide)
    total, metrics = loss(twin.evaluate(wide.obs, wide.action, wide.context), wide)
    own = [*twin.actor_parameters(), *twin.critic_parameters()]
    found = torch.autograd.grad(total, own, allow_unused=True)
    found = [(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(own, found, strict=True)]
    return total.detach(), torch.cat(found), metrics


@pytest.mark.parametrize(("case", "loss"), quick(CASES, ("choice", "clip"), ("Gaussian", "ratio")))
def test_loss_gradient_and_terms_are_those_of_float64(case, loss):
    algorithm, learner = make(case)
    batch, loss = moved(algorithm, learner), LOSSES[loss]
    total, terms = by_kernels(learner, loss)(batch, True)
    learner.flat.differentiate(total)
    truth, gradient, metrics = exact(learner.policy, loss, batch)
    assert (learner.flat.gradient - gradient).norm() < 1e-5 * gradient.norm()
    assert float(total.detach()) == pytest.approx(float(truth), rel=1e-5)
    assert terms.pop("ratio_error") > 0.0
    assert list(terms) == list(metrics)
    for name, x in metrics.items():
        assert float(terms[name]) == pytest.approx(float(x), rel=1e-5, abs=1e-7), name


def test_illegal_choices_get_no_gradient():
    algorithm, learner = make("many choices")
    batch = moved(algorithm, learner)
    mask = torch.ones(len(batch), 19)
    mask[:, 3] = 0.0
    mask[torch.arange(len(batch)), batch.action] = 1.0
    policy = ActorCritic(BOX4, spaces.Discrete(19), PolicyConfig(hidden_sizes=(9,)), masked=True)
    learner = make_learner("cuda", policy, algorithm, seed=1)
    learner.connect(learner.recorder, None, fixed_length=True, head=plain_head(policy))
    obs = torch.cat([batch.obs, mask], 1)
    with torch.no_grad():
        params = policy.action_params(obs)
    batch = replace(batch, obs=obs, dist_params=params)
    total, _ = by_kernels(learner, LOSSES["clip"])(batch, False)
    learner.flat.differentiate(total)
    _, gradient, _ = exact(policy, LOSSES["clip"], batch)
    assert (learner.flat.gradient - gradient).norm() < 1e-5 * gradient.norm()


POLICIES["critic sees more"] = {"action_space": CONTINUOUS, "observation_space": BOTH, "critic_obs": ("far",)}
UPDATES = [
    ("ppo", "choice"),
    ("ppo", "critic sees more"),
    ("ppo", "Gaussian of twelve, GRU"),
    ("ppo-penalty", "Gaussian"),
    ("a2c", "many choices"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case"), UPDATES, ids=str)
def test_an_update_is_that_of_the_torch_engine(name, case):
    found = []
    for engine in ("torch", "cuda"):
        algorithm, learner = make(case, name)
        if engine == "torch":
            learner = make_learner("torch", learner.policy, algorithm, seed=1)
        rollout = make_rollout(learner.policy, steps=16, num_envs=4)
        rollout.log_prob = learner.actor.log_prob(rollout.dist_params, rollout.action)
        learner.set_rates(0.5)
        found.append((algorithm.update(learner, rollout), learner.flat.vector.clone()))
        if engine == "cuda":
            passes = [passes for passes, _ in learner._fixed.values()]
            assert all(type(one) is FixedPasses for one in passes)
            assert not learner.recorder.notices
    (theirs, weights), (ours, vector) = found
    assert list(ours) == list(theirs)
    for key, value in theirs.items():
        assert ours[key] == pytest.approx(value, rel=2e-3, abs=2e-5), key
    assert (vector - weights).abs().max() < 2e-4


def test_the_first_ratio_is_one():
    algorithm, learner = make("Gaussian")
    rollout = make_rollout(learner.policy, steps=16, num_envs=4)
    rollout.log_prob = learner.actor.log_prob(rollout.dist_params, rollout.action)
    algorithm.update(learner, rollout)
    passes, _ = learner.latest
    assert passes.first["ratio_error"] == 0.0


@pytest.mark.parametrize("fault", ["fails", "differs"])
def test_kernels_that_fail_or_differ_are_left_alone(fault, monkeypatch):
    def broken(*_):
        raise RuntimeError("no C compiler\nand more")

    def off(*_):
        return 0.5

    monkeypatch.setattr(learner_module, "disagreement", broken if fault == "fails" else off)
    algorithm, learner = make("choice")
    algorithm.update(learner, make_rollout(learner.policy, steps=16, num_envs=4))
    reason = "Triton failed: no C compiler" if fault == "fails" else "its gradient is off by 0.5 here"
    assert learner.recorder.take_notices() == [f"the loss is not one kernel, which would be faster: {reason}"]
    passes, _ = learner.latest
    assert passes.first["ratio_error"] < 1e-5


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"action_space": spaces.MultiDiscrete([2, 3])}, "its actions are neither one choice nor one Gaussian"),
        ({"action_space": CONTINUOUS, "tanh_mean": True}, "its std is no parameter, or its mean is squashed"),
        ({"action_space": CONTINUOUS, "std": "state"}, "its std is no parameter, or its mean is squashed"),
        ({"action_space": CONTINUOUS, "action_bounds": "beta"}, "its actions are neither one choice nor one Gaussian"),
        ({"action_space": spaces.Discrete(200)}, "its head has more than 128 outputs"),
    ],
)
def test_what_the_kernels_do_not_know_is_left_to_pytorch(config, why):
    assert plain_head(make_policy(**config)) == why
