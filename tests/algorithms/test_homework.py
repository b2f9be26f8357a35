"""The three numbers of the homework come out of the losses that train agents."""

import pytest
import torch
from torch import nn

from surefoot.algorithms.ppo_clip import Config as ClipConfig
from surefoot.algorithms.ppo_clip import PPOClip
from surefoot.algorithms.reinforce import Config as ReinforceConfig
from surefoot.algorithms.reinforce import Reinforce
from surefoot.algorithms.vpg import VPG
from surefoot.algorithms.vpg import Config as VPGConfig
from surefoot.math.distributions import Categorical
from surefoot.types import Batch, Outputs


@pytest.fixture
def sheet():
    """The tensors that the homework's unit tests draw: 10 steps, 5 envs, 4 observations, 1 action."""
    torch.manual_seed(0)
    drawn = {
        "states": torch.rand(10, 5, 4),
        "actions": torch.randint(0, 1, (10, 5)),
        "rewards": torch.rand(10, 5),
        "not_dones": torch.randint(0, 2, (10, 5)),
        "log_probs": torch.rand(10, 5),
        "returns": torch.rand(10, 5),
    }
    torch.manual_seed(0)
    drawn["policy"], drawn["value"] = nn.Linear(4, 1), nn.Linear(4, 1)
    return drawn


def batch_of(sheet, returns, advantage):
    return Batch(
        obs=sheet["states"].flatten(0, 1),
        action=sheet["actions"].flatten(),
        log_prob=sheet["log_probs"].flatten(),
        dist_params=torch.zeros(50, 1),
        advantage=advantage.flatten().detach(),
        value_target=returns.flatten(),
        value=torch.zeros(50),
    )


def outputs_of(sheet, log_prob):
    states = sheet["states"].flatten(0, 1)
    return Outputs(log_prob, Categorical(sheet["policy"](states)), sheet["value"](states).squeeze(-1))


def test_reinforce_loss_is_minus_0_2369(sheet):
    batch = batch_of(sheet, sheet["returns"], sheet["returns"])
    loss, _ = Reinforce(ReinforceConfig()).loss(outputs_of(sheet, batch.log_prob), batch)
    assert loss.item() == pytest.approx(-0.2369, abs=1e-4)


def test_vpg_loss_is_0_0618(sheet):
    value = sheet["value"](sheet["states"]).squeeze(-1)
    batch = batch_of(sheet, sheet["returns"], sheet["returns"] - value)
    loss, _ = VPG(VPGConfig(value_coef=1.0)).loss(outputs_of(sheet, batch.log_prob), batch)
    assert loss.item() == pytest.approx(0.0618, abs=1e-4)


def test_ppo_loss_is_0_9314(sheet):
    returns = 2 * sheet["returns"] - 1
    value = sheet["value"](sheet["states"]).squeeze(-1)
    batch = batch_of(sheet, returns, returns - value)
    new_log_prob = Categorical(sheet["policy"](batch.obs)).log_prob(batch.action)
    loss, _ = PPOClip(ClipConfig(clip_ratio=0.1, value_coef=1.0)).loss(outputs_of(sheet, new_log_prob), batch)
    assert loss.item() == pytest.approx(0.9314, abs=1e-4)


def test_the_policy_loss_does_not_push_the_critic_as_the_homework_does(sheet):
    """The sheet's advantage is not detached; ours is data, so the critic's gradient is the value loss's alone."""
    value = sheet["value"](sheet["states"]).squeeze(-1)
    batch = batch_of(sheet, sheet["returns"], sheet["returns"] - value)
    loss, _ = VPG(VPGConfig(value_coef=1.0)).loss(outputs_of(sheet, batch.log_prob), batch)
    whole = torch.autograd.grad(loss, sheet["value"].parameters())
    fit = (sheet["value"](batch.obs).squeeze(-1) - batch.value_target).square().mean()
    alone = torch.autograd.grad(fit, sheet["value"].parameters())
    for a, b in zip(whole, alone, strict=True):
        torch.testing.assert_close(a, b)
