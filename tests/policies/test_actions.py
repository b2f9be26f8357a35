import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from torch.nn import functional as F

from surefoot.errors import UsageError
from surefoot.math.distributions import (
    Bernoulli,
    Beta,
    Categorical,
    Composite,
    DiagGaussian,
    MultiCategorical,
    TanhGaussian,
)
from surefoot.policies.actions import build_actions
from surefoot.spaces.masks import ActionMasks

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
def test_the_drawn_action_is_the_distributions_own_draw(space, kind):
    actions = build_actions(space)
    params = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    noise = actions.noise((30,), torch.Generator().manual_seed(2))
    assert type(actions.distribution(params)) is kind
    assert torch.equal(actions.draw(params, noise), kind.draw(params, noise))


def test_noise_has_the_leading_shape_asked_for():
    g = torch.Generator().manual_seed(0)
    assert build_actions(spaces.Discrete(4)).noise((7, 2), g).shape == (7, 2, 4)
    assert build_actions(BOX).noise((7, 2), g).shape == (7, 2, 2)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Text(5), "Text.*no fixed size.*supported are Box, Discrete, MultiDiscrete, MultiBinary"),
        (spaces.Sequence(spaces.Discrete(2)), "Sequence.*no fixed size"),
        (spaces.Graph(spaces.Discrete(2), None), "Graph.*no fixed size"),
        (spaces.OneOf([spaces.Discrete(2), BOX]), "OneOf"),
        (spaces.Tuple([spaces.Discrete(2), spaces.Text(5)]), "Text"),
        (spaces.Dict({}), "empty"),
        (spaces.Tuple([]), "empty"),
        (spaces.Dict({"a": BOX, "b": spaces.Tuple([])}), "empty"),
        (spaces.Box(0, 9, (2,), np.int64), "int64.*Discrete or MultiDiscrete"),
        (spaces.Box(-1, 1, (0,)), "no dimension"),
        (spaces.MultiDiscrete(np.zeros((0,), np.int64)), "no dimension"),
        (spaces.Discrete(2**24 + 1), "16,777,217 choices"),
        (spaces.MultiDiscrete([2**24, 1]), "16,777,217 choices"),
    ],
)
def test_other_action_spaces_are_refused_in_words(space, words):
    with pytest.raises(UsageError, match=words):
        build_actions(space)


@pytest.mark.parametrize("bounds", ["tanh", "beta"])
@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Box(-np.inf, np.inf, (2,)), "bounded on all sides"),
        (spaces.Box(0.0, np.inf, (2,)), "bounded on all sides"),
        (spaces.Dict({"a": BOX, "b": spaces.Box(-np.inf, 0.0, (1,))}), "bounded on all sides"),
        (spaces.Box(1.0, 1.0, (2,)), "low < high"),
    ],
)
def test_squashed_actions_need_bounds(space, words, bounds):
    with pytest.raises(UsageError, match=f"action_bounds={bounds}.*{words}.*action_bounds=clip"):
        build_actions(space, bounds)
    build_actions(space, "clip")


NESTED = spaces.Dict(
    {
        "z": spaces.Discrete(3, start=-4),
        "box": BOX,
        "deep": spaces.Tuple(
            [spaces.MultiBinary((2, 2)), spaces.Dict({"m": spaces.MultiDiscrete([2, 3], start=[5, 0])})]
        ),
        "point": spaces.Box(-2.0, 0.5, (), np.float64),
    }
)
SPACES = {
    "discrete": spaces.Discrete(3, start=-7),
    "int32": spaces.Discrete(3, start=2, dtype=np.int32),
    "multi": spaces.MultiDiscrete([3, 1, 4], start=[0, -2, 9]),
    "square": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, -1], [0, 7]])),
    "small": spaces.MultiDiscrete([120, 7], dtype=np.int8, start=[-128, 121]),
    "bits": spaces.MultiBinary((2, 3)),
    "box": spaces.Box(np.array([[-1.0], [0.25]]), np.array([[0.1], [0.3]]), dtype=np.float64),
    "half": spaces.Box(-0.1, 0.1, (3,), np.float16),
    "nested": NESTED,
    "tuple": spaces.Tuple([spaces.Discrete(2), spaces.Tuple([spaces.Discrete(5, start=3)]), spaces.MultiBinary(1)]),
}
OPEN = {
    "free": spaces.Box(-np.inf, np.inf, (2,)),
    "one side": spaces.Tuple([spaces.Box(np.array([0.0, -np.inf]), np.array([np.inf, 0.0]), dtype=np.float64), BOX]),
}
CASES = [
    *[(name, space, bounds) for name, space in SPACES.items() for bounds in ("clip", "tanh", "beta")],
    *[(name, space, "clip") for name, space in OPEN.items()],
]
EVERY = pytest.mark.parametrize(("space", "bounds"), [pytest.param(s, b, id=f"{n}-{b}") for n, s, b in CASES])


def drawn(actions, count, seed=0, scale=3.0):
    g = torch.Generator().manual_seed(seed)
    params = scale * torch.randn(count, actions.num_params, generator=g)
    return params, actions.draw(params, actions.noise((count,), g))


def random_space(rng, depth=0):
    """Any space that is supported, nested up to three deep."""
    kind = rng.choice(["discrete", "multi", "bits", "box", "dict", "tuple"][: 6 if depth < 3 else 4])
    if kind == "discrete":
        return spaces.Discrete(int(rng.integers(1, 6)), start=int(rng.integers(-9, 9)))
    shape = tuple(int(n) for n in rng.integers(1, 4, size=rng.integers(1, 3)))
    if kind == "multi":
        return spaces.MultiDiscrete(rng.integers(1, 5, shape), start=rng.integers(-9, 9, shape))
    if kind == "bits":
        return spaces.MultiBinary(shape)
    if kind == "box":
        dtype = rng.choice([np.float32, np.float64])
        low = rng.normal(size=shape).astype(dtype)
        return spaces.Box(low, low + rng.exponential(size=shape).astype(dtype), dtype=dtype)
    parts = [random_space(rng, depth + 1) for _ in range(rng.integers(1, 4))]
    return spaces.Tuple(parts) if kind == "tuple" else spaces.Dict({f"k{9 - i}": part for i, part in enumerate(parts)})


def check_every_action_is_in_the_space(space, bounds, count=50):
    actions = build_actions(space, bounds)
    params, action = drawn(actions, count)
    assert action.shape == (count, *actions.shape)
    assert action.dtype == actions.dtype
    noise = actions.noise((count,), torch.Generator().manual_seed(1))
    assert noise.shape == (count, actions.num_noise)
    for stored in (action, actions.distribution(params).mode()):
        each = actions.to_each(stored.numpy())
        assert len(each) == count
        assert all(space.contains(one) for one in each)
        vector = batch_space(space, count)
        sent = actions.to_vector_env(stored.numpy())
        assert vector.contains(sent)
        if isinstance(space, (spaces.Dict, spaces.Tuple)):
            assert all(space.contains(one) for one in actions.to_env(stored.numpy()))
            assert type(each[0]) is type(sent) is (dict if isinstance(space, spaces.Dict) else tuple)
    log_prob = actions.distribution(params).log_prob(action)
    assert log_prob.shape == (count,)
    assert log_prob.isfinite().all()


@EVERY
def test_every_action_sent_is_in_the_space(space, bounds):
    check_every_action_is_in_the_space(space, bounds)


@pytest.mark.parametrize("bounds", ["clip", "tanh", "beta"])
@pytest.mark.parametrize("seed", range(25))
def test_every_action_sent_is_in_a_random_space(seed, bounds):
    check_every_action_is_in_the_space(random_space(np.random.default_rng(seed)), bounds, count=10)


def test_actions_of_a_nest_are_sent_to_their_own_places():
    actions = build_actions(NESTED)
    # the space's own order: box, deep, point, z
    assert list(NESTED.spaces) == ["box", "deep", "point", "z"]
    assert (actions.shape, actions.dtype) == ((2 + 4 + 2 + 1 + 1,), torch.float32)
    row = np.array([[0.5, 9.0, 1, 0, 0, 1, 1, 2, -1.25, 2]], np.float32)
    (sent,) = actions.to_env(row)
    assert sent["box"].tolist() == [0.5, 2.0]
    bits, inner = sent["deep"]
    assert bits.tolist() == [[1, 0], [0, 1]]
    assert inner["m"].tolist() == [6, 2]
    assert sent["point"].tolist() == -1.25
    assert sent["z"] == -2
    assert [sent["box"].dtype, bits.dtype, inner["m"].dtype, sent["point"].dtype] == ["f4", "i1", "i8", "f8"]
    hash(sent["z"])  # an env may look it up in a table
    batch = actions.to_vector_env(np.repeat(row, 3, 0))
    assert batch["deep"][1]["m"].tolist() == [[6, 2]] * 3
    assert batch["z"].tolist() == [-2] * 3
    # 9.0 is cut, of the three numbers in boxes
    assert actions.clip_fraction(torch.from_numpy(row)).item() == pytest.approx(1 / 3)


def test_a_vector_env_and_single_envs_get_the_same():
    actions = build_actions(NESTED, "tanh")
    _, action = drawn(actions, 4)
    batch = actions.to_vector_env(action.numpy())
    for index, one in enumerate(actions.to_env(action.numpy())):
        np.testing.assert_array_equal(one["box"], batch["box"][index])
        np.testing.assert_array_equal(one["deep"][0], batch["deep"][0][index])
        assert one["z"] == batch["z"][index]


def test_squashed_actions_reach_their_bounds_and_no_further():
    tanh = build_actions(BOX, "tanh")
    sent = tanh.to_env(np.array([[0.0, 0.0], [100.0, -100.0], [0.5, 0.5]], np.float32))
    # centre 0 and 1, half 1 and 1
    np.testing.assert_allclose(sent, [[0, 1], [1, 0], [math.tanh(0.5), 1 + math.tanh(0.5)]], rtol=1e-6)
    beta = build_actions(spaces.Box(-1.0, 3.0, (1,)), "beta")
    np.testing.assert_allclose(beta.to_env(np.array([[0.5], [0.25]], np.float32)), [[1.0], [0.0]])
    assert tanh.clip_fraction(torch.zeros(3, 2)) is None
    assert beta.clip_fraction(torch.zeros(3, 1)) is None


@pytest.mark.parametrize("bounds", ["tanh", "beta"])
def test_squashed_densities_integrate_to_one_over_the_envs_bounds(bounds):
    actions = build_actions(spaces.Box(-1.0, 3.0, (1,)), bounds)
    d = actions.distribution(torch.tensor([0.3, -0.2], dtype=torch.float64))
    a = torch.linspace(-1 + 1e-7, 3 - 1e-7, 100_001, dtype=torch.float64)
    stored = torch.atanh((a - 1) / 2) if bounds == "tanh" else (a + 1) / 4
    assert torch.trapezoid(d.log_prob(stored.unsqueeze(-1)).exp(), a).item() == pytest.approx(1.0, abs=1e-4)
    np.testing.assert_allclose(actions.to_env(stored[:, None].numpy())[:, 0], a, atol=1e-6)


@pytest.mark.parametrize(
    ("space", "bounds", "kind"),
    [
        (spaces.MultiDiscrete([2, 3]), "clip", MultiCategorical),
        (spaces.MultiBinary(3), "clip", Bernoulli),
        (BOX, "tanh", TanhGaussian),
        (BOX, "beta", Beta),
        (spaces.Tuple([BOX]), "clip", Composite),
        (spaces.Discrete(2), "beta", Categorical),
    ],
)
def test_every_space_has_its_distribution(space, bounds, kind):
    actions = build_actions(space, bounds)
    assert type(actions.distribution(torch.zeros(4, actions.num_params))) is kind


def test_the_single_spaces_are_what_they_were():
    """Discrete and clipped Box: the very numbers of the code before the other spaces came."""
    g = torch.Generator().manual_seed
    params = torch.randn(40, 4, generator=g(1))
    discrete, box = build_actions(spaces.Discrete(4, start=2)), build_actions(BOX)
    noise = Categorical.noise((40, 4), g(2))
    assert torch.equal(discrete.noise((40,), g(2)), noise)
    action = discrete.draw(params, noise)
    assert torch.equal(action, (params + noise).argmax(-1))
    np.testing.assert_array_equal(discrete.to_env(action.numpy()), action.numpy() + 2)
    assert discrete.params_from(params, None) is params
    noise = torch.randn(40, 2, generator=g(2))
    assert torch.equal(box.noise((40,), g(2)), noise)
    action = box.draw(params, noise)
    assert torch.equal(action, params[:, :2] + params[:, 2:].exp() * noise)
    np.testing.assert_array_equal(box.to_env(action.numpy()), np.clip(action.numpy(), BOX.low, BOX.high))
    # as ActorCritic put them together
    mean, log_std = params[:, :2], torch.tensor([-30.0, 0.5])
    expected = torch.cat([mean, log_std.clamp(-20.0, 5.0).expand_as(mean)], dim=-1)
    assert torch.equal(box.params_from(mean, log_std), expected)
    raw = F.softplus(params[:, 2:]).clamp(min=math.exp(-20.0)).log()
    assert torch.equal(box.params_from(params, None), torch.cat([mean, raw], dim=-1))
    centre, half = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0])
    squashed = torch.cat([centre + half * torch.tanh(mean), raw], dim=-1)
    assert torch.equal(box.params_from(params, None, (centre, half)), squashed)


@EVERY
@pytest.mark.parametrize("std", ["parameter", "state"])
def test_the_network_gives_what_the_parameters_need(space, bounds, std):
    actions = build_actions(space, bounds)
    outputs = torch.randn(5, actions.num_outputs(std), generator=torch.Generator().manual_seed(0))
    log_std = torch.linspace(-1, 1, actions.num_gaussian) if std == "parameter" else None
    params = actions.params_from(outputs, log_std)
    assert params.shape == (5, actions.num_params)
    assert actions.num_outputs("state") - actions.num_outputs("parameter") == actions.num_gaussian
    low, high = actions.gaussian_bounds()
    assert low.shape == high.shape == (actions.num_gaussian,)
    at = [i for own in actions.log_std_slices for i in range(own.start, own.stop)]
    assert len(at) == actions.num_gaussian
    expected = F.softplus(outputs[:, at]).log() if log_std is None else log_std.expand(5, -1)
    torch.testing.assert_close(params[:, at], expected)


def test_the_gaussians_of_a_nest_share_one_vector_of_log_stds_and_means():
    actions = build_actions(NESTED)
    assert actions.num_gaussian == 3
    # parameters: box 2 means, 2 log stds; bits 4; m 5; point 1 mean, 1 log std; z 3
    assert actions.num_params == 4 + 4 + 5 + 2 + 3
    assert actions.log_std_slices == (slice(2, 4), slice(14, 15))
    low, high = actions.gaussian_bounds()
    assert (low.tolist(), high.tolist()) == ([-1.0, 0.0, -2.0], [1.0, 2.0, 0.5])
    outputs = torch.arange(15.0)
    params = actions.params_from(outputs, torch.tensor([-1.0, -2.0, -3.0]))
    assert params.tolist() == [0, 1, -1, -2, *range(2, 11), 11, -3, 12, 13, 14]
    centre, half = torch.tensor([0.0, 10.0, 20.0]), torch.tensor([1.0, 2.0, 3.0])
    params = actions.params_from(torch.zeros(15), torch.zeros(3), (centre, half))
    assert params.tolist() == [0, 10, 0, 0, *[0] * 9, 20, 0, 0, 0, 0]


def test_masks_reach_the_right_parameters():
    actions = build_actions(NESTED)
    assert actions.mask_size == 5 + 3
    params, _ = drawn(actions, 6)
    mask = torch.tensor([True, False, False, True, True, False, False, True])
    masked = actions.masked(params, mask.expand(6, -1))
    illegal = [9, 10, 15, 16]  # of m's first variable 1, of its second 0; of z 0 and 1; see the layout above
    changed = (masked != params).any(0).nonzero().squeeze(-1).tolist()
    assert changed == illegal
    count = 20_000
    noise = actions.noise((count,), torch.Generator().manual_seed(3))
    action = actions.draw(masked[:1].expand(count, -1), noise)
    assert set(action[:, 6].tolist()) == {0}
    assert set(action[:, 7].tolist()) <= {1, 2}
    assert set(action[:, 9].tolist()) == {2}


@pytest.mark.parametrize(("name", "size"), [("discrete", 3), ("multi", 8), ("square", 14), ("bits", 0), ("box", 0)])
def test_the_size_of_a_mask(name, size):
    actions = build_actions(SPACES[name])
    assert actions.mask_size == size
    params, _ = drawn(actions, 4)
    assert torch.equal(actions.masked(params, torch.ones(4, size, dtype=torch.bool)), params)
    assert ActionMasks(SPACES[name]).size == size  # what envs hand out has the order of these logits
