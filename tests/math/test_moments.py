import numpy as np
import pytest
import torch

from surefoot.math.moments import RunningMoments
from surefoot.math.statistics import explained_variance, standardize


def test_moments_by_hand():
    moments = RunningMoments()
    moments.merge(np.array([1.0, 3.0]))
    moments.merge(np.array([5.0]))
    # mean = 9/3 = 3;  var = (4 + 0 + 4)/3
    assert (moments.count, float(moments.mean)) == (3.0, 3.0)
    assert float(moments.var) == pytest.approx(8 / 3)


@pytest.mark.parametrize("cuts", [[], [1], [50], [1, 2, 3], [10, 10, 80], list(range(1, 100))])
def test_any_batching_gives_the_moments_of_all_rows(cuts):
    rows = np.random.default_rng(0).normal([3.0, -100.0], [2.0, 0.1], size=(100, 2))
    moments = RunningMoments((2,))
    for batch in np.split(rows, cuts):
        moments.merge(batch)
    assert moments.count == 100
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.var, rows.var(0), rtol=1e-9)


def test_moments_of_float32_rows_with_a_large_mean_keep_their_variance():
    rows = (1e4 + np.random.default_rng(1).normal(size=(1000, 1))).astype(np.float32)
    moments = RunningMoments((1,))
    for batch in np.split(rows, 10):
        moments.merge(batch)
    np.testing.assert_allclose(moments.var, rows.astype(np.float64).var(0), rtol=1e-9)


def test_an_empty_batch_changes_nothing():
    moments = RunningMoments((2,))
    moments.merge(np.zeros((0, 2)))
    assert moments.count == 0
    assert moments.var.tolist() == [1.0, 1.0]


def test_rows_of_another_shape_are_refused():
    with pytest.raises(AssertionError):
        RunningMoments((2,)).merge(np.zeros((5, 1)))


def test_state_round_trip_is_exact():
    first, second = RunningMoments((3,)), RunningMoments((3,))
    rng = np.random.default_rng(2)
    first.merge(rng.normal(size=(17, 3)))
    state = first.state_dict()
    second.load_state_dict(state)
    rows = rng.normal(size=(5, 3))
    first.merge(rows)
    second.merge(rows)
    assert second.count == first.count == 22
    np.testing.assert_array_equal(second.mean, first.mean)
    np.testing.assert_array_equal(second.var, first.var)
    assert state["count"] == 17


def test_standardize_by_hand():
    # mean 3, population variance (4 + 0 + 4)/3
    expected = [-2 / (8 / 3) ** 0.5, 0.0, 2 / (8 / 3) ** 0.5]
    assert standardize(torch.tensor([1.0, 3.0, 5.0])).tolist() == pytest.approx(expected, abs=1e-6)


def test_standardize_leaves_a_batch_of_one_as_it_is():
    assert standardize(torch.tensor([7.0])).item() == 7.0
    assert standardize(torch.tensor([7.0, 9.0]), torch.tensor([1.0, 0.0]))[0].item() == 7.0


def test_standardize_of_a_constant_is_zero():
    assert standardize(torch.full((4,), 3.0)).tolist() == [0.0] * 4


def test_standardize_with_weights_sees_only_the_valid_samples():
    x = torch.tensor([1.0, 1000.0, 3.0, 5.0, -1000.0])
    weight = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
    torch.testing.assert_close(standardize(x, weight)[[0, 2, 3]], standardize(x[[0, 2, 3]]))


def test_explained_variance_by_hand():
    target = torch.tensor([0.0, 2.0, 4.0])
    # Var(target) = 8/3;  target − value = 0, 1, 2 with variance 2/3:  1 − ¼
    assert explained_variance(torch.tensor([0.0, 1.0, 2.0]), target).item() == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("value", "expected"), [([0.0, 2.0, 4.0], 1.0), ([9.0, 9.0, 9.0], 0.0), ([4.0, 2.0, 0.0], -3.0)]
)
def test_explained_variance_of_perfect_constant_and_reversed_critics(value, expected):
    assert explained_variance(torch.tensor(value), torch.tensor([0.0, 2.0, 4.0])).item() == pytest.approx(expected)


def test_explained_variance_with_weights_sees_only_the_valid_samples():
    g = torch.Generator().manual_seed(0)
    value, target = torch.randn(20, generator=g), torch.randn(20, generator=g)
    weight = (torch.rand(20, generator=g) < 0.5).float()
    kept = weight.bool()
    torch.testing.assert_close(explained_variance(value, target, weight), explained_variance(value[kept], target[kept]))


def test_explained_variance_of_a_constant_target_is_finite():
    assert explained_variance(torch.randn(5), torch.ones(5)).isfinite()


def test_a_single_number_survives_saving_before_anything_is_added():
    """A run that is stopped right after a resume saves what it has loaded."""
    from surefoot.training.loop.state_tree import join, split

    first = RunningMoments()
    first.merge(np.array([1.0, 2.0, 4.0]))
    for _ in range(3):
        state = join(*split(first.state_dict()))
        assert all(isinstance(state[name], float) for name in ("count", "mean", "var"))
        first = RunningMoments()
        first.load_state_dict(state)
    assert first.mean == pytest.approx(7.0 / 3.0)
