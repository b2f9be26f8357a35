import numpy as np
import pytest
import torch

from surefoot.policies.normalizer import ObservationNormalizer


def rows(count, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, generator=g) * torch.tensor([1.0, 50.0, 0.01]) + torch.tensor([0.0, 1000.0, -3.0])


def test_before_any_merge_observations_are_only_clipped():
    obs = torch.tensor([[0.5, -20.0, 30.0]])
    assert ObservationNormalizer((3,))(obs).tolist() == [[0.5, -10.0, 10.0]]
    assert obs.tolist() == [[0.5, -20.0, 30.0]]


def test_by_hand():
    normalizer = ObservationNormalizer((1,))
    normalizer.merge(torch.tensor([[1.0], [5.0]]))
    # mean 3, variance 4:  (7 − 3)/2 = 2;  (103 − 3)/2 = 50, clipped to 10
    assert normalizer(torch.tensor([[7.0], [103.0], [-97.0]])).flatten().tolist() == pytest.approx([2.0, 10.0, -10.0])


@pytest.mark.parametrize("sizes", [(100,), (1, 99), (30, 30, 40), (1,) * 100])
def test_any_batching_gives_the_statistics_of_all_rows(sizes):
    data = rows(100)
    normalizer = ObservationNormalizer((3,))
    for batch in data.split(list(sizes)):
        normalizer.merge(batch)
    exact = data.numpy().astype(np.float64)
    assert normalizer.count.item() == 100
    np.testing.assert_allclose(normalizer.mean, exact.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(normalizer.var, exact.var(0), rtol=1e-9)
    expected = ((exact - exact.mean(0)) / np.sqrt(exact.var(0) + 1e-8)).clip(-10, 10)
    np.testing.assert_allclose(normalizer(data), expected, atol=2e-3)


def test_frozen_between_merges():
    normalizer = ObservationNormalizer((3,))
    normalizer.merge(rows(20))
    obs = rows(5, seed=1)
    first = normalizer(obs)
    normalizer(rows(1000, seed=2))
    assert torch.equal(normalizer(obs), first)
    normalizer.merge(rows(20, seed=3))
    assert not torch.equal(normalizer(obs), first)


def test_an_empty_merge_changes_nothing():
    normalizer = ObservationNormalizer((3,))
    normalizer.merge(rows(20))
    before = {name: tensor.clone() for name, tensor in normalizer.state_dict().items()}
    normalizer.merge(torch.zeros(0, 3))
    assert all(torch.equal(tensor, before[name]) for name, tensor in normalizer.state_dict().items())


def test_round_trip_gives_bit_equal_outputs_then_and_after_more_data():
    normalizer, loaded = ObservationNormalizer((3,)), ObservationNormalizer((3,))
    for seed in range(4):
        normalizer.merge(rows(17, seed))
    loaded.load_state_dict(normalizer.state_dict())
    loaded.refresh()
    obs = rows(50, seed=9)
    assert torch.equal(loaded(obs), normalizer(obs))
    for each in (normalizer, loaded):
        each.merge(rows(11, seed=10))
    assert torch.equal(loaded(obs), normalizer(obs))


def test_statistics_are_saved_in_float64_and_never_learned():
    normalizer = ObservationNormalizer((3,))
    assert {name: tensor.dtype for name, tensor in normalizer.state_dict().items()} == dict.fromkeys(
        ("mean", "var", "count"), torch.float64
    )
    assert not list(normalizer.parameters())


def test_a_constant_observation_becomes_zero():
    normalizer = ObservationNormalizer((1,))
    normalizer.merge(torch.full((10, 1), 4.0))
    assert normalizer(torch.tensor([[4.0]])).item() == 0.0


def test_an_observation_keeps_its_leading_axes_and_its_own_shape():
    normalizer = ObservationNormalizer((2, 3))
    normalizer.merge(torch.randn(8, 2, 3))
    assert normalizer(torch.randn(4, 5, 2, 3)).shape == (4, 5, 2, 3)
