"""`recompute_advantage`: what is computed anew before each epoch, and what is not."""

import pytest
import torch

from surefoot.algorithms import ppo_clip
from surefoot.engine.rollouts import fill_values
from tests.building import make_learner, make_policy, make_rollout


def value_after(kind, epochs, **settings):
    """V, which begins at 0 and is all bias, after so many epochs on episodes that end at once with a reward of 10."""
    policy = make_policy(hidden_sizes=())
    config = ppo_clip.Config(
        optimizer="rmsprop", learning_rate=0.006, max_grad_norm=None, num_minibatches=1, num_epochs=epochs,
        normalize_advantage="none", value_coef=1.0, gae_lambda=1.0, recompute_advantage=True, **settings,
    )  # fmt: skip
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
    rollout = make_rollout(policy, steps=2, num_envs=2)
    rollout.obs.zero_()
    rollout.inputs.zero_()
    learner = make_learner(kind, policy, ppo_clip.PPOClip(config))
    rollout.terminated[:], rollout.truncated[:], rollout.reward[:] = True, False, 10.0
    rollout.final_index, rollout.final_inputs = rollout.final_index[:0], rollout.final_inputs[:0]
    fill_values(rollout, learner.actor)
    ppo_clip.PPOClip(config).update(learner, rollout)
    return policy.critic.head.bias.item()


@pytest.mark.parametrize("kind", ["torch", "native"])
def test_value_clip_holds_to_the_critic_that_collected(kind):
    """The gradient of (V − 10)² is 2(V − 10), and RMSprop's step is α·g / √v with v ← 0.99v + 0.01g².

    1. g = −20, v = 4: a step of 0.006·20/2 = 0.06. V = 0.06, within 0.1 of the old V.
    2. g = −19.88, v = 3.96 + 3.952: 0.006·19.88/2.8129 = 0.0424. V = 0.1024, beyond it.
    3. The clipped loss (0.1 − 10)² is the larger one and has no gradient, now and for good.
    """
    assert value_after(kind, 1, value_clip=0.1) == pytest.approx(0.06, abs=1e-5)
    assert value_after(kind, 2, value_clip=0.1) == pytest.approx(0.1024, abs=1e-5)
    assert value_after(kind, 3, value_clip=0.1) == pytest.approx(0.1024, abs=1e-5)
    assert value_after(kind, 8, value_clip=0.1) == pytest.approx(0.1024, abs=1e-5)


@pytest.mark.parametrize("kind", ["torch", "native"])
def test_without_it_v_goes_on(kind):
    assert value_after(kind, 2) == pytest.approx(0.1024, abs=1e-5)
    assert value_after(kind, 3) > 0.13
