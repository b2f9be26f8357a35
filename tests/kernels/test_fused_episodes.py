"""Sums along episodes and the table of those that ended, against their readable twins, in Triton's interpreter."""

import os

import pytest
import torch

from surefoot.engine.collecting.device_episodes import packed_episodes, running_sums

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
pytest.importorskip("triton")


@pytest.mark.parametrize(
    ("steps", "envs", "often"), [(1, 3, 0.5), (70, 5, 0.2), (130, 3, 0.0), (3, 40, 1.0), (65, 2, 0.1)]
)
def test_sums_and_table_are_those_of_the_readable_twins(steps, envs, often):
    from surefoot.kernels import fused_episodes

    generator = torch.Generator().manual_seed(steps)
    ended = torch.rand(steps, envs, generator=generator) < often
    over = ended & (torch.rand(steps, envs, generator=generator) < 0.5)
    valid = torch.rand(steps, envs, generator=generator) < 0.9
    reward = torch.rand(steps, envs, generator=generator, dtype=torch.float64)
    carried = torch.rand(2, envs, generator=generator, dtype=torch.float64)
    sums = fused_episodes.running_sums(reward, ended, valid, carried)
    assert torch.allclose(sums, running_sums(reward, ended, valid, carried), rtol=1e-12)
    found, expected = (torch.zeros(steps * envs + 1, 4, dtype=torch.float64) for _ in range(2))
    number, rest = fused_episodes.packed(reward, over, ended, valid, carried, found)
    count, after = packed_episodes(reward, over, ended, valid, carried, expected)
    assert int(number) == int(count) == int((ended & valid).sum())
    assert torch.allclose(found[: int(number)], expected[: int(number)], rtol=1e-12)
    assert torch.allclose(rest, after, rtol=1e-12)
