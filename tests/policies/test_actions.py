import numpy as np
import pytest
import torch
from gymnasium import spaces

from surefoot.errors import UsageError
from surefoot.math.distributions import Categorical, DiagGaussian
from surefoot.policies.actions import build_actions

BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 2.0], np.float32))


def test_discrete_actions_are_indices_from_zero_and_the_start_is_added_for_the_env():
    actions = build_actions(spaces.Discrete(3, start=5))
    assert (actions.num_params, actions.shape, actions.dtype) == (3, (), torch.int64)
    draws = actions.draw(torch.zeros(1000, 3), actions.noise((1000,), torch.Generator().manual_seed(0)))
    assert set(draws.tolist()) == {0, 1, 2}
    sent = actions.to_env(draws.numpy())
    assert set(sent.tolist()) == {5, 6, 7}
    assert (sent - draws.numpy() == 5).all()
    assert actions.distribution(torch.zeros(1000, 3)).log_prob(draws).isfinite().all()


def test_discrete_actions_without_a_start_pass_as_they_are():
    assert build_actions(spaces.Discrete(3)).to_env(np.array([0, 2])).tolist() == [0, 2]


def test_discrete_actions_have_nothing_to_clip():
    assert build_actions(spaces.Discrete(3)).clip_fraction(torch.tensor([0, 1])) is None


def test_box_actions_are_sent_clipped_and_the_drawn_one_is_kept():
    actions = build_actions(BOX)
    drawn = np.array([[-3.0, 1.0], [0.5, 5.0], [1.0, 0.0]], np.float32)
    before = drawn.copy()
    sent = actions.to_env(drawn)
    assert sent.tolist() == [[-1.0, 1.0], [0.5, 2.0], [1.0, 0.0]]
    assert sent.dtype == np.float32
    np.testing.assert_array_equal(drawn, before)


def test_the_clip_fraction_counts_components_outside_the_bounds():
    # −3 and 5 of the six are outside; 1 and 0 lie on the bounds
    fraction = build_actions(BOX).clip_fraction(torch.tensor([[-3.0, 1.0], [0.5, 5.0], [1.0, 0.0]]))
    assert fraction.tolist() == [0.5, 0.5, 0.0]


def test_an_unbounded_box_has_nothing_to_clip():
    actions = build_actions(spaces.Box(-np.inf, np.inf, (2,)))
    assert actions.clip_fraction(torch.ones(3, 2)) is None
    assert actions.to_env(np.full((1, 2), 1e9, np.float32)).tolist() == [[1e9, 1e9]]


def test_a_box_bounded_on_one_side_clips_there():
    actions = build_actions(spaces.Box(0.0, np.inf, (1,)))
    assert actions.to_env(np.array([[-1.0], [7.0]], np.float32)).tolist() == [[0.0], [7.0]]
    assert actions.clip_fraction(torch.tensor([[-1.0], [7.0]])).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_box_actions_of_any_shape_are_stored_flat_and_sent_in_shape(shape, dtype):
    space = spaces.Box(-0.1, 0.1, shape, dtype)
    actions = build_actions(space)
    size = int(np.prod(shape))
    assert (actions.shape, actions.num_params) == ((size,), 2 * size)
    draws = actions.draw(torch.zeros(50, 2 * size), actions.noise((50,), torch.Generator().manual_seed(0)))
    assert draws.shape == (50, size)
    sent = actions.to_env(draws.numpy())
    assert sent.shape == (50, *shape)
    assert all(space.contains(np.asarray(action)) for action in sent)


def test_flat_order_is_that_of_the_space():
    bounds = np.arange(4, dtype=np.float32).reshape(2, 2)
    actions = build_actions(spaces.Box(bounds, bounds))
    assert actions.to_env(np.zeros((1, 4), np.float32)).tolist() == [[[0.0, 1.0], [2.0, 3.0]]]
    assert actions.clip_fraction(torch.tensor([[0.0, 1.0, 2.0, 3.0]])).item() == 0.0


@pytest.mark.parametrize(("space", "kind"), [(spaces.Discrete(4), Categorical), (BOX, DiagGaussian)])
def test_the_drawn_action_is_the_distributions_own_sample(space, kind):
    actions = build_actions(space)
    params = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    noise = actions.noise((30,), torch.Generator().manual_seed(2))
    distribution = actions.distribution(params)
    assert type(distribution) is kind
    assert torch.equal(actions.draw(params, noise), distribution.sample(noise))


def test_noise_has_the_leading_shape_asked_for():
    g = torch.Generator().manual_seed(0)
    assert build_actions(spaces.Discrete(4)).noise((7, 2), g).shape == (7, 2, 4)
    assert build_actions(BOX).noise((7, 2), g).shape == (7, 2, 2)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.MultiDiscrete([2, 3]), "MultiDiscrete.*supported: Discrete, Box"),
        (spaces.Dict({"a": BOX}), "Dict"),
        (spaces.Box(0, 9, (2,), np.int64), "int64"),
        (spaces.Box(-1, 1, (0,)), "no dimension"),
    ],
)
def test_other_action_spaces_are_refused_in_words(space, words):
    with pytest.raises(UsageError, match=words):
        build_actions(space)
