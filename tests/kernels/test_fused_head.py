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
from surefoot.engine.cuda.head_loss import PartsHead, PlainHead, head_objective, head_of
from surefoot.engine.cuda.passes import FixedLoss, FixedPasses
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.types import Batch, Context
from tests.building import BOX4, CONTINUOUS, DISCRETE, make_learner, make_policy, make_rollout
from tests.kernels.test_fused_update import LOSSES
from tests.marks import quick

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
pytest.importorskip("triton")

BOTH = spaces.Dict({"near": spaces.Box(-1.0, 1.0, (3,), np.float32), "far": spaces.Box(-1.0, 1.0, (2,), np.float32)})
UNEVEN = spaces.Box(np.array([-1.0, 0.0, -2.0], np.float32), np.array([1.0, 3.0, 5.0], np.float32))
HYBRID = spaces.Dict(
    {
        "aim": spaces.Box(-2.0, 2.0, (2,), np.float32),
        "buttons": spaces.MultiBinary(3),
        "gear": spaces.Discrete(4),
        "more": spaces.Tuple((spaces.MultiDiscrete([2, 3]), UNEVEN)),
    }
)
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
    "too many choices for a tile": {"action_space": spaces.Discrete(200)},
    "several choices": {"action_space": spaces.MultiDiscrete([2, 5, 3])},
    "bits": {"action_space": spaces.MultiBinary(4)},
    "squashed Gaussian": {"action_space": UNEVEN, "action_bounds": "tanh"},
    "squashed Gaussian, std of state": {"action_space": UNEVEN, "action_bounds": "tanh", "std": "state"},
    "std of state": {"action_space": CONTINUOUS, "std": "state"},
    "squashed mean": {"action_space": UNEVEN, "tanh_mean": True},
    "squashed mean, std of state": {"action_space": UNEVEN, "tanh_mean": True, "std": "state"},
    "Beta, shared trunk": {"action_space": UNEVEN, "action_bounds": "beta", "shared_trunk": True},
    "of all kinds": {"action_space": HYBRID},
    "of all kinds, std of state": {"action_space": HYBRID, "std": "state"},
    "of all kinds, squashed": {"action_space": HYBRID, "action_bounds": "tanh"},
    "of all kinds, Beta, GRU": {"action_space": HYBRID, "action_bounds": "beta", "memory": "gru", "memory_size": 6},
}
PLAIN = ("choice", "many choices", "Gaussian", "Gaussian of twelve, GRU", "shared trunk, norms", "critic sees more")
CASES = [(policy, loss) for policy in POLICIES for loss in LOSSES]
QUICK = [
    ("choice", "clip"),
    ("Gaussian", "ratio"),
    ("squashed Gaussian", "ratio"),
    ("of all kinds, Beta, GRU", "ratio"),
]


def make(case, name="ppo", **settings):
    """(algorithm, learner) whose losses are kernels, from the policy's head on."""
    kind = ALGORITHMS[name]
    algorithm = kind(kind.config_type(num_envs=4, **settings))
    policy = make_policy(**{"hidden_sizes": (9,), **POLICIES[case]}, critic=kind.uses_critic)
    learner = make_learner("cuda", policy, algorithm, seed=1)
    head = head_of(policy)
    assert not isinstance(head, str), head
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


@pytest.mark.parametrize(("case", "loss"), quick(CASES, *QUICK))
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


MASKED = {"one": spaces.Discrete(19), "several": spaces.MultiDiscrete([2, 5, 3]), "of all kinds": HYBRID}


@pytest.mark.parametrize("space", quick(MASKED, "one", "of all kinds"))
def test_illegal_choices_get_no_gradient(space):
    policy = ActorCritic(BOX4, MASKED[space], PolicyConfig(hidden_sizes=(9,)), masked=True)
    learner = make_learner("cuda", policy, seed=1)
    learner.connect(learner.recorder, None, fixed_length=True, head=head_of(policy))
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(160, policy.layout.mask_size, generator=generator) < 0.6
    first = np.cumsum([0, *(part.size for part in policy.actions.kernel_parts if part.kind.chooses)])[:-1]
    mask[:, first] = True  # something is always legal
    obs = torch.cat([torch.randn(160, 4, generator=generator), mask.float()], 1)
    with torch.no_grad():
        params = policy.action_params(obs)
    action = policy.actions.draw(params, policy.actions.noise((160,), generator))
    advantage, target, value = torch.randn(3, 160, generator=generator)
    log_prob = learner.actor.log_prob(params, action)
    batch = Batch(obs, action, log_prob, params, advantage, target, value, None, 1.0)
    assert by_kernels(learner, LOSSES["ratio"])(batch, True)[1]["ratio_error"] == 0.0
    with torch.no_grad():
        learner.flat.vector.add_(0.05 * torch.randn(len(learner.flat.vector), generator=generator))
    total, _ = by_kernels(learner, LOSSES["ratio"])(batch, False)
    learner.flat.differentiate(total)
    _, gradient, _ = exact(policy, LOSSES["ratio"], batch)
    assert (learner.flat.gradient - gradient).norm() < 1e-5 * gradient.norm()


POLICIES["critic sees more"] = {"action_space": CONTINUOUS, "observation_space": BOTH, "critic_obs": ("far",)}
UPDATES = [
    ("ppo", "choice"),
    ("ppo", "critic sees more"),
    ("ppo", "Gaussian of twelve, GRU"),
    ("ppo-penalty", "Gaussian"),
    ("a2c", "many choices"),
    ("ppo", "several choices"),
    ("vpg", "bits"),
    ("ppo-penalty", "squashed Gaussian, std of state"),
    ("a2c", "Beta, shared trunk"),
    ("ppo-penalty", "of all kinds"),
    ("ppo", "of all kinds, Beta, GRU"),
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


@pytest.mark.parametrize("case", quick(POLICIES, "Gaussian", "squashed Gaussian, std of state", "of all kinds"))
def test_the_first_ratio_is_one(case):
    algorithm, learner = make(case)
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
        ({"action_space": CONTINUOUS, "std": "gsde"}, "gSDE's std depends on the last hidden layer"),
        ({"action_space": spaces.Discrete(600)}, "its actions have more than 512 parameters"),
        ({"action_space": spaces.Box(-1.0, 1.0, (300,), np.float32)}, "its actions have more than 512 parameters"),
    ],
)
def test_what_the_kernels_do_not_know_is_left_to_pytorch(config, why):
    assert head_of(make_policy(**config)) == why


def test_one_choice_and_one_plain_gaussian_have_kernels_of_their_own():
    for case, config in POLICIES.items():
        assert type(head_of(make_policy(**config))) is (PlainHead if case in PLAIN else PartsHead), case
