"""Sums along the time of a rollout by Triton against PyTorch's, in Triton's interpreter."""

import os

import pytest
import torch

from surefoot.engine.collecting.device_episodes import running_sums
from surefoot.math.operations import OPERATIONS
from tests.building import make_policy, make_rollout

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
pytest.importorskip("triton")


@pytest.mark.parametrize(("value_lambda", "segment_length"), [(0.9, None), (0.5, None), (0.9, 3)])
def test_advantages_are_those_of_the_readable_version(value_lambda, segment_length):
    from surefoot.kernels.fused_scan import advantages

    rollout = make_rollout(make_policy(), steps=7, num_envs=5)
    rollout.valid[2, 1] = False
    columns = (rollout.reward, rollout.value.contiguous(), rollout.next_value.contiguous())
    flags = (rollout.terminated, rollout.truncated, rollout.valid)
    found = advantages((*columns, *flags), (0.99, 0.99 * 0.9, 0.99 * value_lambda), segment_length)
    for one, other in zip(found, OPERATIONS.advantages(rollout, 0.99, 0.9, value_lambda, segment_length), strict=True):
        torch.testing.assert_close(one, other)


def test_returns_and_lengths_are_those_by_doubling():
    from surefoot.kernels.fused_scan import running_sums as fused

    generator = torch.Generator().manual_seed(0)
    reward = torch.randn(9, 5, generator=generator, dtype=torch.float64)
    ended, valid = (torch.rand(9, 5, generator=generator) < share for share in (0.3, 0.8))
    carried = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(fused(reward, ended, valid, carried), running_sums(reward, ended, valid, carried))
