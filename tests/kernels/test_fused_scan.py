"""Sums along the time of a rollout by Triton against PyTorch's, in Triton's interpreter."""

import os

import pytest
import torch

from surefoot.math.operations import OPERATIONS
from tests.building import make_policy, make_rollout

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
pytest.importorskip("triton")


@pytest.mark.parametrize("steps", [7, 130])
@pytest.mark.parametrize(("value_lambda", "segment_length"), [(0.9, None), (0.5, None), (0.9, 3)])
def test_advantages_are_those_of_the_readable_version(value_lambda, segment_length, steps):
    from surefoot.kernels.fused_scan import advantages

    rollout = make_rollout(make_policy(), steps=steps, num_envs=5)
    rollout.valid[2, 1] = False
    columns = (rollout.reward, rollout.value.contiguous(), rollout.next_value.contiguous())
    flags = (rollout.terminated, rollout.truncated, rollout.valid)
    found = advantages((*columns, *flags), (0.99, 0.99 * 0.9, 0.99 * value_lambda), segment_length)
    for one, other in zip(found, OPERATIONS.advantages(rollout, 0.99, 0.9, value_lambda, segment_length), strict=True):
        torch.testing.assert_close(one, other)
