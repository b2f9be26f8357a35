"""From rollouts to advantages: ends, segments, the critic's own λ, normalisation, invalid steps."""

import pytest
import torch

from surefoot.algorithms import reinforce, vpg
from surefoot.algorithms.parts import AdvantageConfig, estimate
from tests.building import make_policy, make_rollout


@pytest.fixture
def rollout():
    """Three steps of one env, V = 1, 2, 3 and 4 afterwards, rewards 1; γ = λ = ½ makes every number a fraction."""
    found = make_rollout(make_policy(), steps=3, num_envs=1, done_probability=0.0)
    found.reward = torch.ones(3, 1)
    found.value = torch.tensor([[1.0], [2.0], [3.0]])
    found.next_value = torch.tensor([[2.0], [3.0], [4.0]])
    return found


def advantages(rollout, **config):
    return estimate(rollout, AdvantageConfig(**{"gamma": 0.5, "gae_lambda": 0.5, **config}))


def test_gae_by_hand(rollout):
    # δ = 1 + ½V' − V = 1, 0.5, 0; Â_2 = 0, Â_1 = 0.5, Â_0 = 1 + ¼·0.5 = 1.125
    batch = advantages(rollout)
    assert batch.advantage.tolist() == pytest.approx([1.125, 0.5, 0.0])
    assert batch.value_target.tolist() == pytest.approx([2.125, 2.5, 3.0])


def test_termination_cuts_value_and_recursion(rollout):
    rollout.terminated[1] = True
    # δ_1 = 1 − 2 = −1; Â_1 = −1, Â_0 = 1 − ¼
    assert advantages(rollout).advantage.tolist() == pytest.approx([0.75, -1.0, 0.0])


def test_truncation_cuts_the_recursion_only(rollout):
    rollout.truncated[1] = True
    rollout.next_value[1] = 10.0  # V(final observation)
    # δ_1 = 1 + 5 − 2 = 4; nothing flows back from step 2
    rollout.value[2] = -100.0
    assert advantages(rollout).advantage.tolist()[:2] == pytest.approx([1 + 0.25 * 4, 4.0])


def test_terminated_wins_over_truncated(rollout):
    rollout.terminated[1] = rollout.truncated[1] = True
    rollout.next_value[1] = 10.0
    assert advantages(rollout).advantage.tolist()[1] == pytest.approx(-1.0)


def test_the_critic_may_have_a_lambda_of_its_own(rollout):
    batch = advantages(rollout, value_lambda=0.0)
    assert batch.advantage.tolist() == pytest.approx([1.125, 0.5, 0.0])
    assert batch.value_target.tolist() == pytest.approx([2.0, 2.5, 3.0])  # r + γV'


def test_segments_cut_the_sum_but_still_bootstrap(rollout):
    # Segments of 2: {0, 1}, {2}: Â_1 = δ_1 = 0.5, Â_0 = 1.125
    rollout.value[2], rollout.next_value[2] = 3.0, 40.0
    batch = advantages(rollout, segment_length=2)
    assert batch.advantage.tolist() == pytest.approx([1.125, 0.5, 18.0])


def test_lambda_one_target_is_the_bootstrapped_return(rollout):
    # R_2 = 1 + ½·4 = 3, R_1 = 1 + ½·3 = 2.5, R_0 = 2.25
    assert advantages(rollout, gae_lambda=1.0).value_target.tolist() == pytest.approx([2.25, 2.5, 3.0])


def test_reinforce_is_vpg_without_a_critic(rollout):
    rollout.value = torch.zeros(3, 1)
    rollout.next_value = torch.zeros(3, 1)
    returns = reinforce.Reinforce(reinforce.Config(gamma=0.5)).estimate(rollout).advantage
    baseline = vpg.VPG(vpg.Config(gamma=0.5, gae_lambda=1.0)).estimate(rollout).advantage
    assert returns.tolist() == pytest.approx([1.75, 1.5, 1.0])
    assert torch.equal(returns, baseline)


def test_batch_normalisation_uses_valid_samples_only(rollout):
    rollout.valid[2] = False
    rollout.reward[2] = 1000.0
    rollout.truncated[1] = True
    batch = advantages(rollout, normalize_advantage="batch")
    kept = batch.advantage[:2]
    assert kept.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert kept.pow(2).mean().item() == pytest.approx(1.0, abs=1e-6)
    assert batch.weight.tolist() == [1.0, 1.0, 0.0]


def test_a_rollout_without_invalid_steps_needs_no_weights(rollout):
    assert advantages(rollout).weight is None
