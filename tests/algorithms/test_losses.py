"""Each loss against numbers worked out by hand."""

import math

import pytest
import torch

from surefoot.algorithms import a2c, ppo_clip, ppo_penalty, reinforce, vpg
from surefoot.algorithms.parts import CriticConfig, critic_loss
from surefoot.errors import UsageError
from tests.building import make_batch, make_outputs

LOG2 = math.log(2.0)


def clip_loss(ratio, advantage, epsilon=0.2, **config):
    outputs = make_outputs([math.log(r) for r in ratio])
    outputs.log_prob.requires_grad_()
    algorithm = ppo_clip.PPOClip(ppo_clip.Config(clip_ratio=epsilon, value_coef=0.0, **config))
    loss, metrics = algorithm.loss(outputs, make_batch(advantage))
    (gradient,) = torch.autograd.grad(loss, outputs.log_prob)
    return loss.item(), gradient.tolist(), metrics


def test_clip_takes_the_pessimistic_side():
    # A=+1: min(1.5, 1.2)=1.2, min(0.5, 0.8)=0.5; A=-1: min(-1.5,-1.2)=-1.5, min(-0.5,-0.8)=-0.8. Mean -0.6/4 = -0.15.
    loss, gradient, metrics = clip_loss([1.5, 0.5, 1.5, 0.5], [1.0, 1.0, -1.0, -1.0])
    assert loss == pytest.approx(0.15)
    # d(-r·A/4)/d log r = -r·A/4 where it is not clipped, 0 where it is.
    assert gradient == pytest.approx([0.0, -0.125, 0.375, 0.0])
    assert metrics["clip_fraction"].item() == 1.0


def test_clip_fraction_counts_ratios_outside_the_interval():
    _, _, metrics = clip_loss([1.0, 1.1, 1.3, 0.7], [1.0] * 4)
    assert metrics["clip_fraction"].item() == pytest.approx(0.5)


def test_approx_kl_is_ratio_minus_one_minus_log_ratio():
    _, _, metrics = clip_loss([2.0, 0.5], [1.0, 1.0])
    # (2 - 1 - ln 2 + 0.5 - 1 + ln 2) / 2 = 0.25
    assert metrics["approx_kl"].item() == pytest.approx(0.25)


def test_spo_holds_the_ratio_with_a_parabola():
    # r·Â − |Â|·(r − 1)²/0.4: 1.1 − 0.01/0.4 = 1.075; −3 − 2·0.25/0.4 = −4.25; 1 − 0 = 1; 0.5 − 0.25/0.4 = −0.125.
    loss, gradient, metrics = clip_loss([1.1, 1.5, 1.0, 0.5], [1.0, -2.0, 1.0, 1.0], surrogate="spo")
    assert loss == pytest.approx(-(1.075 - 4.25 + 1.0 - 0.125) / 4)
    # d/d log r = r·(Â − |Â|·(r − 1)/0.2): 1.1·0.5 = 0.55; 1.5·(−2 − 5) = −10.5; 1; 0.5·(1 + 2.5) = 1.75.
    assert gradient == pytest.approx([-0.55 / 4, 10.5 / 4, -1.0 / 4, -1.75 / 4], rel=1e-5)
    assert metrics["clip_fraction"].item() == 0.5


def test_spo_does_not_divide_by_an_epsilon_of_zero():
    ppo_clip.Config(surrogate="spo", clip_ratio_schedule="linear")  # zero only where the run is over
    with pytest.raises(UsageError, match=r"surrogate=spo divides by clip_ratio, which .* takes to 0 before the end"):
        ppo_clip.Config(surrogate="spo", clip_ratio="points:0=0.2,0.5=0,1=0.1")


def test_clip_schedule_shrinks_epsilon_with_what_remains():
    algorithm = ppo_clip.PPOClip(ppo_clip.Config(clip_ratio=0.2, clip_ratio_schedule="linear", value_coef=0.0))
    outputs = make_outputs([math.log(1.15)])
    full, _ = algorithm.loss(outputs, make_batch([1.0], remaining=1.0))
    half, _ = algorithm.loss(outputs, make_batch([1.0], remaining=0.5))
    assert full.item() == pytest.approx(-1.15)
    assert half.item() == pytest.approx(-1.1)


def test_penalty_is_ratio_times_advantage_minus_beta_times_exact_kl():
    config = ppo_penalty.Config(kl_coef=3.0, value_coef=0.0)
    # old = (1/2, 1/2), new = (2/3, 1/3): KL(old‖new) = ½ln(3/4) + ½ln(3/2) = ½ ln(9/8)
    new = [[math.log(2.0), 0.0]]
    outputs = make_outputs([math.log(2 / 3)], logits=new)
    batch = make_batch([1.0], log_prob=[math.log(0.5)], dist_params=[[0.0, 0.0]])
    loss, _ = ppo_penalty.PPOPenalty(config).loss(outputs, batch)
    assert loss.item() == pytest.approx(-(4 / 3 - 3.0 * 0.5 * math.log(9 / 8)), rel=1e-5)


@pytest.mark.parametrize(
    ("kl", "factor"),
    [(0.015, 2.0), (0.0149, 1.0), (0.01, 1.0), (0.0067, 1.0), (0.01 / 1.5, 0.5), (0.0, 0.5), (1.0, 2.0)],
)
def test_beta_doubles_at_one_and_a_half_times_the_target_and_halves_below_two_thirds(kl, factor):
    algorithm = ppo_penalty.PPOPenalty(ppo_penalty.Config(target_kl=0.01, kl_coef=1.0))
    assert algorithm.next_kl_coef(kl, 0.01) == pytest.approx(factor)


def test_beta_stays_within_its_bounds():
    algorithm = ppo_penalty.PPOPenalty(ppo_penalty.Config(kl_coef=1.0, kl_coef_min=0.8, kl_coef_max=1.5))
    assert algorithm.next_kl_coef(1.0, 0.01) == 1.5
    assert algorithm.next_kl_coef(0.0, 0.01) == 0.8


@pytest.mark.parametrize(("module", "name"), [(vpg, "VPG"), (a2c, "A2C")])
def test_actor_critic_loss_adds_value_loss_and_subtracts_entropy(module, name):
    algorithm = getattr(module, name)(module.Config(value_coef=0.5, entropy_coef=0.1))
    outputs = make_outputs([-1.0, -2.0], value=[1.0, 3.0])
    loss, metrics = algorithm.loss(outputs, make_batch([2.0, -1.0], value_target=[0.0, 1.0]))
    # policy: -(-2 + 2)/2 = 0; value: (1 + 4)/2 = 2.5; entropy of two fair coins: ln 2
    assert loss.item() == pytest.approx(0.0 + 0.5 * 2.5 - 0.1 * LOG2)
    assert metrics["value_loss"].item() == pytest.approx(2.5)
    assert metrics["entropy"].item() == pytest.approx(LOG2)


def test_reinforce_weighs_log_probabilities_by_returns():
    algorithm = reinforce.Reinforce(reinforce.Config(entropy_coef=0.0))
    loss, _ = algorithm.loss(make_outputs([-1.0, -2.0, -3.0]), make_batch([3.0, 2.0, 1.0]))
    assert loss.item() == pytest.approx((3 + 4 + 3) / 3)


def test_invalid_samples_carry_no_weight():
    algorithm = vpg.VPG(vpg.Config())
    loss, _ = algorithm.loss(
        make_outputs([-1.0, -2.0, -9.0], value=[1.0, 1.0, 50.0]), make_batch([1.0, 1.0, 99.0], weight=[1, 1, 0])
    )
    assert loss.item() == pytest.approx(1.5 + 1.0)


def test_smooth_l1_is_quadratic_within_one_and_linear_beyond():
    loss = critic_loss(CriticConfig(value_loss="smooth_l1")).of_value(
        torch.tensor([0.5, 3.0, -2.0]), make_batch([0.0] * 3)
    )
    # 0.125, 2.5, 1.5
    assert loss.item() == pytest.approx(4.125 / 3)


def test_smooth_l1_equals_torchs():
    value, target = torch.randn(64) * 3, torch.randn(64)
    ours = critic_loss(CriticConfig(value_loss="smooth_l1")).of_value(
        value, make_batch(torch.zeros(64), value_target=target)
    )
    torch.testing.assert_close(ours, torch.nn.functional.smooth_l1_loss(value, target))


def test_value_clip_takes_the_larger_loss():
    # old V 0, target 1. New V 0.5: clipped to 0.2 -> (0.8)² > (0.5)². New V -0.5: clipped -0.2 -> (1.2)² < (1.5)².
    config = CriticConfig(value_clip=0.2)
    batch = make_batch([0.0, 0.0], value=[0.0, 0.0], value_target=[1.0, 1.0])
    assert critic_loss(config).of_value(torch.tensor([0.5, -0.5]), batch).item() == pytest.approx((0.64 + 2.25) / 2)


def test_value_clip_is_off_by_default():
    assert ppo_clip.Config().value_clip is None
