"""Running statistics in tensors against those in arrays."""

import numpy as np
import pytest
import torch

from surefoot.math.device_moments import DeviceMoments
from surefoot.math.moments import RunningMoments


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
def test_they_are_the_moments_of_all_valid_rows(shape):
    rng = np.random.default_rng(0)
    host, device = RunningMoments(shape), DeviceMoments(shape, torch.device("cpu"), torch.float64)
    for size in (1, 0, 7, 40):
        rows, valid = rng.normal(2.0, 3.0, size=(size, *shape)), rng.random(size) < 0.7
        host.merge(rows[valid])
        device.merge(torch.from_numpy(rows), torch.from_numpy(valid))
        found, expected = device.state_dict(), host.state_dict()
        assert found["count"] == expected["count"]
        for name in ("mean", "var"):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-12)
            assert type(found[name]) is type(expected[name])
    again = DeviceMoments(shape, torch.device("cpu"), torch.float64)
    again.load_state_dict(host.state_dict())
    assert all(np.array_equal(again.state_dict()[name], value) for name, value in host.state_dict().items())
