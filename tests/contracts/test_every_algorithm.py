"""What every registered algorithm must do, on discrete and continuous actions."""

import math

import pytest
import torch

from surefoot.algorithms import ALGORITHMS
from surefoot.engine.torch.learner import Learner
from surefoot.errors import NonFiniteError
from tests.building import CONTINUOUS, DISCRETE, make_policy, make_rollout

SPACES = {"discrete": DISCRETE, "continuous": CONTINUOUS}


@pytest.fixture(params=ALGORITHMS)
def make(request):
    """Makes a fresh algorithm: some (PPO-penalty) carry state."""
    kind = ALGORITHMS[request.param]
    return lambda: kind(kind.config_type())


@pytest.fixture
def algorithm(make):
    return make()


@pytest.fixture(params=SPACES)
def space(request):
    return SPACES[request.param]


def make_learner(algorithm, space, **policy):
    network = make_policy(space, critic=algorithm.uses_critic, **policy)
    generator = torch.Generator().manual_seed(1)
    return Learner(network, algorithm.config, generator, train_actor=algorithm.train_actor)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"shared_trunk": True},
        {"normalize_observations": True},
        {"activation": "silu", "hidden_sizes": (16,)},
        {"std": "gsde"},
    ],
    ids=["separate", "shared", "normalised", "silu", "gsde"],
)
def test_the_first_ratio_is_one_and_every_metric_is_a_number(algorithm, space, config):
    learner = make_learner(algorithm, space, **config)
    before = learner.flat.vector.clone()
    metrics = algorithm.update(learner, make_rollout(learner.policy, steps=16, num_envs=4))
    assert metrics["ratio_error"] <= 1e-6
    assert all(isinstance(x, float) and math.isfinite(x) for x in metrics.values())
    assert metrics["kl_max"] >= metrics["kl_p95"] >= 0.0
    assert metrics["kl"] > 0.0
    assert not torch.equal(before, learner.flat.vector)


def test_an_update_that_is_not_finite_leaves_weights_and_optimizer_as_they_were(algorithm, space):
    learner = make_learner(algorithm, space)
    algorithm.update(learner, make_rollout(learner.policy, steps=16, seed=1))
    weights, state = learner.flat.vector.clone(), snapshot(learner)
    broken = make_rollout(learner.policy, steps=16, seed=2, done_probability=0.0)
    broken.reward[3, 2] = float("nan")
    with pytest.raises(NonFiniteError, match="rejected"):
        algorithm.update(learner, broken)
    assert torch.equal(learner.flat.vector, weights)
    assert snapshot(learner) == state


def snapshot(learner):
    return {k: v.tolist() if torch.is_tensor(v) else v for k, v in learner.optimizer.state_dict().items()}


def test_a_hopeless_learning_rate_is_rejected_not_saved():
    kind = ALGORITHMS["ppo"]
    algorithm = kind(kind.config_type(learning_rate=1e30))
    learner = make_learner(algorithm, CONTINUOUS)
    weights = learner.flat.vector.clone()
    with pytest.raises(NonFiniteError, match=r"learning_rate=1e\+30"):
        algorithm.update(learner, make_rollout(learner.policy, seed=0))
    assert torch.equal(learner.flat.vector, weights)


def test_invalid_steps_change_nothing(make, space):
    """Garbage in the rows that are no transitions must not reach the weights."""
    results = []
    for garbage in (0.0, 100.0):
        algorithm = make()
        learner = make_learner(algorithm, space)
        rollout = make_rollout(learner.policy, steps=8, num_envs=4, done_probability=0.0)
        rollout.truncated[3, :2] = True
        rollout.valid[4, :2] = False  # the fake step of NEXT_STEP autoreset
        rollout.reward[4, :2] = garbage
        rollout.log_prob[4, :2] -= garbage / 100.0  # nor may it look like a policy that disagrees with itself
        algorithm.update(learner, rollout)
        results.append(learner.flat.vector.clone())
    assert torch.equal(*results)


def test_the_same_update_twice_gives_the_same_bytes(make, space):
    results = []
    for _ in range(2):
        algorithm = make()
        learner = make_learner(algorithm, space)
        for seed in range(3):
            algorithm.update(learner, make_rollout(learner.policy, steps=16, seed=seed))
        results.append(learner.flat.vector.clone())
    assert torch.equal(*results)
