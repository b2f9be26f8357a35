"""What is not finite is found and named, whatever its type; what is finite passes, however large."""

import numpy as np
import pytest

from surefoot.envs.checks import require_finite
from surefoot.errors import NonFiniteError

ENVS = ["env a", "env b", "env c"]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [(0, 0), (1, 1), (2, 3)])
def test_one_bad_number_is_named_with_its_env(dtype, bad, where):
    values = np.ones((3, 4), dtype)
    require_finite(values, "observation", ENVS)
    values[where] = bad
    with pytest.raises(NonFiniteError, match=f"observation of {ENVS[where[0]]} is not finite"):
        require_finite(values, "observation", ENVS)
    with pytest.raises(NonFiniteError, match=ENVS[where[0]]):
        require_finite(values[:, ::-1], "observation", ENVS)  # also where the array has strides of its own


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numbers_whose_squares_overflow_are_finite_all_the_same(dtype):
    require_finite(np.full((3, 4), np.finfo(dtype).max, dtype), "reward", ENVS)


def test_observations_must_fit_into_float32():
    values = np.array([[0.0], [1e30], [-1e39]])
    require_finite(values, "reward", ENVS)
    require_finite(values[:2], "observation", ENVS)
    with pytest.raises(NonFiniteError, match=r"final observation of env c is too large for float32.*: \[-1.e\+39\]"):
        require_finite(values, "final observation", ENVS)


def test_two_infinities_do_not_cancel():
    with pytest.raises(NonFiniteError, match="env b"):
        require_finite(np.array([0.0, np.inf, -np.inf]), "reward", ENVS)


@pytest.mark.parametrize("values", [np.zeros((3, 0), np.float32), np.ones((3, 2), np.int64), np.ones(3, np.bool_)])
def test_empty_and_whole_numbers_pass(values):
    require_finite(values, "observation", ENVS)
