"""The ladder hangs together: at θ = θ_old all surrogates have one gradient, and A2C is a special PPO."""

import pytest
import torch

from surefoot.algorithms import a2c, npg, ppo_clip, ppo_penalty, trpo, vpg
from surefoot.engine.torch.learner import Learner
from surefoot.math.trust_region import flat_gradient
from tests.building import CONTINUOUS, DISCRETE, make_policy, make_rollout

ADVANTAGE = {"gamma": 0.97, "gae_lambda": 0.9, "normalize_advantage": "none"}


def actor_gradient(policy, batch, loss):
    outputs = policy.evaluate(batch.obs, batch.action)
    return flat_gradient(loss(outputs, batch), policy.actor_parameters())


@pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_every_surrogate_has_vpgs_gradient_at_the_old_policy(space):
    policy = make_policy(space)
    rollout = make_rollout(policy)
    joint = {**ADVANTAGE, "value_coef": 0.0}
    reference = vpg.VPG(vpg.Config(**joint))
    batch = reference.estimate(rollout)
    expected = actor_gradient(policy, batch, lambda o, b: reference.loss(o, b)[0])
    others = {
        "ppo": ppo_clip.PPOClip(ppo_clip.Config(**joint)).loss,
        "ppo-penalty": ppo_penalty.PPOPenalty(ppo_penalty.Config(**joint, kl_coef=7.0)).loss,
        "a2c": a2c.A2C(a2c.Config(**joint)).loss,
    }
    for name, loss in others.items():
        found = actor_gradient(policy, batch, lambda o, b, loss=loss: loss(o, b)[0])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7, msg=name)
    for algorithm in (npg.NPG(npg.Config(**ADVANTAGE)), trpo.TRPO(trpo.Config(**ADVANTAGE))):
        found = -actor_gradient(policy, batch, algorithm.terms(1.0).objective)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a2c_is_ppo_with_one_epoch_one_minibatch_and_no_normalisation(space, optimizer):
    shared = {**ADVANTAGE, "learning_rate": 1e-2, "optimizer": optimizer, "entropy_coef": 0.01, "value_coef": 0.5}
    left = a2c.A2C(a2c.Config(**shared))
    right = ppo_clip.PPOClip(ppo_clip.Config(**shared, num_epochs=1, num_minibatches=1))
    weights = []
    for algorithm in (left, right):
        policy = make_policy(space)
        learner = Learner(policy, algorithm.config, torch.Generator().manual_seed(0))
        for k in range(5):
            algorithm.update(learner, make_rollout(policy, seed=k))
        weights.append(learner.flat.vector.clone())
    torch.testing.assert_close(weights[0], weights[1], rtol=0.0, atol=1e-6)
    assert not torch.equal(weights[0], make_initial(space))


def make_initial(space):
    policy = make_policy(space)
    return Learner(policy, a2c.Config(), torch.Generator()).flat.vector
