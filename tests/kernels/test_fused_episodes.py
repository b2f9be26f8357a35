"""The table of ended episodes against its readable twin, in Triton's interpreter."""

import os

import pytest
import torch

from surefoot.engine.collecting.device_episodes import packed_episodes, running_sums

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
pytest.importorskip("triton")


@pytest.mark.parametrize(("steps", "envs", "often"), [(1, 3, 0.5), (70, 5, 0.2), (130, 3, 0.0), (3, 2, 1.0)])
def test_the_table_is_that_of_the_readable_twin(steps, envs, often):
    from surefoot.kernels.fused_episodes import packed
    from surefoot.kernels.fused_rollout import Ends, Played

    generator = torch.Generator().manual_seed(steps)
    done = torch.rand(steps, envs, generator=generator) < often
    over = done & (torch.rand(steps, envs, generator=generator) < 0.5)
    reward = torch.rand(steps, envs, generator=generator, dtype=torch.float64)
    carried, valid, none = torch.rand(2, envs, dtype=torch.float64), torch.ones_like(done), torch.zeros(0)
    sums = running_sums(reward, done, valid, carried)
    ends = Ends(sums[0].contiguous(), sums[1].contiguous(), carried, none, none, none)
    played = Played(none, none, none, reward, over, done & ~over, done, none, none, ends)
    found, expected = (torch.zeros(steps * envs + 1, 4, dtype=torch.float64) for _ in range(2))
    number = packed(played, found)
    count, _ = packed_episodes(reward, over, done, valid, carried, expected)
    assert int(number) == int(count) == int(done.sum())
    assert torch.equal(found[: int(number)], expected[: int(number)])
