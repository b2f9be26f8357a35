import copy
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from surefoot.errors import UsageError
from surefoot.policies import images
from surefoot.policies.encoders import Encoder
from surefoot.policies.images import CNNS, Residual
from surefoot.policies.plans import needs_encoder
from surefoot.policies.user_encoder import CustomEncoder
from surefoot.spaces.layout import Layout

F32 = np.float32
VECTOR, BITS = spaces.Box(-np.inf, np.inf, (3,), F32), spaces.MultiBinary([2, 2])


def pixels(*shape, high=255, dtype=np.uint8, low=0):
    return spaces.Box(low, high, shape, dtype)


def build(space, seed=0, **options):
    torch.manual_seed(seed)
    encoder = Encoder(Layout(space), **options)
    encoder.orthogonal()
    return encoder


def sample_rows(space, count=5, seed=0, mask_size=0):
    """Rows of random values; packed by the layout itself."""
    space.seed(seed)
    layout = Layout(space, mask_size)
    mask = np.ones(mask_size) if mask_size else None
    rows = np.stack([layout.pack(space.sample(), mask) for _ in range(count)])
    return torch.from_numpy(rows if rows.dtype == np.uint8 else rows.astype(F32))


NESTED = spaces.Dict(
    {
        "camera": pixels(40, 44, 3),
        "robot": spaces.Dict({"arm": VECTOR, "tool": spaces.Discrete(5, start=2)}),
        "both": spaces.Tuple([spaces.MultiDiscrete([[2, 3], [4, 5]]), BITS]),
        "map": pixels(1, 8, 8, high=1.0, dtype=F32),
        "word": spaces.Discrete(100),
        "dots . in": spaces.MultiDiscrete([70, 2]),
    }
)

SIZES = [
    (VECTOR, 3),
    (spaces.Box(-1.0, 1.0, (), F32), 1),
    (spaces.Box(-1.0, 1.0, (2, 3), F32), 6),
    (spaces.Box(0, 9, (4,), np.int64), 4),
    (BITS, 4),
    (spaces.Discrete(1), 1),
    (spaces.Discrete(64), 64),
    (spaces.Discrete(65), 32),
    (spaces.MultiDiscrete([2, 64]), 66),
    (spaces.MultiDiscrete([2, 65]), 64),
    (spaces.MultiDiscrete([[2, 3], [4, 5]]), 14),
    (pixels(84, 84), 512),
    (pixels(84, 84, 3), 512),
    (pixels(4, 84, 84), 512),
    (pixels(36, 50, 3), 512),
    (pixels(35, 50, 3), 256),
    (pixels(8, 8, 3), 64),
    (pixels(5, 5, 3), 64),
    (pixels(7, 7), 64),
    (pixels(1, 9), 64),
    (pixels(16, 16, 3), 64),
    (pixels(16, 17, 3), 256),
    (pixels(4, 40, 40, 3), 512),
    (pixels(4, 3, 40, 40), 512),
    (spaces.Box(-np.inf, np.inf, (10, 10, 3), F32), 64),
    (spaces.Dict({"a": spaces.Tuple([VECTOR, spaces.Discrete(4)]), "b": BITS}), 11),
    (NESTED, 512 + 3 + 5 + 14 + 4 + 64 + 32 + 64),
]


@pytest.mark.parametrize(("space", "size"), SIZES, ids=lambda x: str(x)[:40])
def test_every_space_becomes_features_of_the_size_that_the_encoder_says(space, size):
    encoder, rows = build(space), sample_rows(space)
    features = encoder(rows)
    assert encoder.size == size
    assert features.shape == (5, size)
    assert features.dtype == torch.float32
    assert features.isfinite().all()
    assert len(encoder.describe()) == len(encoder.layout.leaves)


@pytest.mark.parametrize("space", [VECTOR, spaces.Box(-1.0, 1.0, (), F32), pixels(9, 9, 3), NESTED], ids=str)
def test_leading_dimensions_are_kept(space):
    encoder, rows = build(space), sample_rows(space, 6)
    expected = encoder(rows)
    grid = encoder(rows.reshape(2, 3, *rows.shape[1:]))
    torch.testing.assert_close(grid, expected.reshape(2, 3, -1))
    torch.testing.assert_close(encoder(rows[0]), expected[0], atol=1e-5, rtol=1e-4)
    assert encoder(rows[:0]).shape == (0, encoder.size)


def test_rows_of_another_shape_are_refused_and_not_reshaped():
    with pytest.raises(ValueError, match=r"\(3, 2\) do not end in \(3,\)"):
        build(VECTOR)(torch.zeros(3, 2))


def test_numbers_bits_and_choices_by_hand():
    space = spaces.Dict(
        {"c": spaces.Discrete(3, start=5), "m": spaces.MultiDiscrete([2, 3]), "v": VECTOR, "z": spaces.MultiBinary(2)}
    )
    value = {"c": 6, "m": np.array([1, 0]), "v": np.array([0.5, -1, 2], F32), "z": np.array([0, 1], np.int8)}
    row = torch.from_numpy(Layout(space).pack(value))
    assert build(space)(row).tolist() == [0, 1, 0, 0, 1, 1, 0, 0, 0.5, -1, 2, 0, 1]


def test_embeddings_look_up_a_table_for_each_component():
    encoder = build(spaces.MultiDiscrete([70, 2]), embedding_size=4)
    table = encoder.encoders[0].table.weight
    assert table.shape == (72, 4)
    features = encoder(torch.tensor([[69.0, 0.0], [0.0, 1.0]]))
    torch.testing.assert_close(features, torch.stack([table[69:71].reshape(-1), torch.cat([table[0], table[71]])]))


def test_an_action_mask_in_the_row_is_no_feature():
    space = spaces.Dict({"id": spaces.Discrete(3), "v": VECTOR})
    encoder = Encoder(Layout(space, mask_size=2))
    rows = sample_rows(space, mask_size=2)
    assert rows.shape == (5, 6)
    other = rows.clone()
    other[:, -2:] = 0
    assert torch.equal(encoder(rows), encoder(other))
    assert encoder.size == 6


@pytest.mark.parametrize("side", [12, 40])
@pytest.mark.parametrize("frames", [(), (2,)])
def test_channels_first_and_last_are_the_same_image(side, frames):
    last, first = pixels(*frames, side, side + 3, 3), pixels(*frames, 3, side, side + 3)
    a, b = build(last), build(first, seed=1)
    b.load_state_dict(a.state_dict())
    rows = sample_rows(last)
    torch.testing.assert_close(a(rows), b(rows.movedim(-1, -3).contiguous()), atol=1e-5, rtol=1e-4)


def test_frames_and_channels_are_merged_frame_by_frame():
    image = build(pixels(2, 9, 9, 3)).encoders[0]
    rows = sample_rows(pixels(2, 9, 9, 3))
    images = image.images(rows)
    assert images.shape == (5, 6, 9, 9)
    for frame in range(2):
        for channel in range(3):
            torch.testing.assert_close(images[:, 3 * frame + channel], rows[:, frame, :, :, channel] / 255)


@pytest.mark.parametrize(
    ("shape", "channels_last", "image_shape"),
    [
        ((9, 8, 3), True, (3, 9, 8)),
        ((3, 9, 8), False, (3, 9, 8)),
        ((9, 8, 9), True, (9, 9, 8)),  # a tie
        ((9, 8), False, (1, 9, 8)),
        ((4, 9, 8, 3), True, (12, 9, 8)),
        ((4, 1, 9, 8), False, (4, 9, 8)),
    ],
)
def test_the_channel_axis_is_found(shape, channels_last, image_shape):
    image = build(pixels(*shape)).encoders[0]
    assert (image.channels_last, image.image_shape) == (channels_last, image_shape)


@pytest.mark.parametrize(
    ("space", "scale"),
    [
        (pixels(9, 9, 3), 255),
        (pixels(9, 9, 3, high=100), 100),
        (pixels(9, 9, 3, high=1), 1),
        (pixels(9, 9, 3, high=255.0, dtype=F32), 255),
        (pixels(9, 9, 3, low=-255.0, high=10.0, dtype=F32), 255),
        (pixels(9, 9, 3, low=-np.inf, high=10.0, dtype=F32), 10),
        (pixels(9, 9, 3, high=1.0, dtype=F32), 1),
        (pixels(9, 9, 3, low=-1.0, high=1.0, dtype=F32), 1),
        (pixels(9, 9, 3, low=-np.inf, high=np.inf, dtype=F32), 1),
        (pixels(9, 9, 3, low=-5.0, high=np.inf, dtype=F32), 1),
        (pixels(9, 9, 3, low=np.finfo(F32).min, high=np.finfo(F32).max, dtype=F32), 1),
    ],
    ids=str,
)
def test_an_image_is_divided_by_the_largest_value_that_its_space_allows(space, scale):
    image = build(space).encoders[0]
    values = torch.ones(2, 9, 9, 3).to(torch.uint8 if space.dtype == np.uint8 else torch.float32)
    torch.testing.assert_close(image.images(values), torch.full((2, 3, 9, 9), 1 / scale))
    assert (f"/{scale}" if scale > 1 else "as it is") in image.describe()


def test_bytes_and_floats_of_one_image_give_the_same_features():
    alone, within = build(pixels(40, 40, 3)), build(spaces.Dict({"x": pixels(40, 40, 3)}))
    rows = sample_rows(pixels(40, 40, 3))
    assert rows.dtype == torch.uint8
    torch.testing.assert_close(alone(rows), within(rows.float().reshape(5, -1)))


@pytest.mark.parametrize("shape", [(3, 40, 43), (40, 43, 3), (2, 40, 43, 3)])
def test_the_order_in_memory_that_tensor_cores_want_is_the_same_image(shape, monkeypatch):
    space = pixels(*shape)
    encoder, rows = build(space), sample_rows(space)
    expected = encoder(rows)
    expected.square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in encoder.parameters()]
    monkeypatch.setattr(images, "on_tensor_cores", lambda x: True)
    encoder.zero_grad()
    found = encoder(rows)
    found.square().sum().backward()
    torch.testing.assert_close(found, expected)
    for parameter, gradient in zip(encoder.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-4, rtol=1e-4)


def test_a_single_frame_with_the_channels_last_is_not_copied_into_another_order():
    image = build(pixels(40, 40, 3)).encoders[0]
    assert image.images(sample_rows(pixels(40, 40, 3))).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("name", "side", "numbers", "parameters"),
    [
        ("nature", 84, 3136, 1_684_128),  # Mnih et al.: 8,224 + 32,832 + 36,928 + 1,606,144
        ("nature", 36, 64, None),
        ("small", 35, 64 * 5 * 5, None),
        ("small", 16, 64 * 4 * 4, None),
        ("small", 8, 64 * 4 * 4, None),
        ("small", 5, 64 * 5 * 5, None),
        ("small", 1, 64, None),
        ("tiny", 16, 32 * 4 * 4, None),
        ("tiny", 12, 32 * 6 * 6, None),
        ("tiny", 7, 32 * 4 * 4, 592 + 4_640 + 32_832),
        ("tiny", 4, 32 * 4 * 4, None),
        ("tiny", 1, 32, None),
        ("impala", 84, 32 * 11 * 11, None),
        ("impala", 5, 32, None),
        ("impala", 1, 32, None),
    ],
)
def test_the_numbers_before_the_linear_layer(name, side, numbers, parameters):
    # 4 frames of one channel
    image = build(pixels(4, side, side, 1), image_encoder=name).encoders[0]
    assert image.linear.in_features == numbers
    assert image.size == CNNS[name][1]
    if parameters is not None:
        assert sum(p.numel() for p in image.parameters()) == parameters


def test_a_long_strip_is_halved_along_its_long_side_only():
    image = build(pixels(5, 500)).encoders[0]
    assert image.linear.in_features == 64 * 5 * 4


def test_impala_has_fifteen_convolutions_and_the_small_one_as_many_as_the_side_asks_for():
    def convolutions(encoder):
        return sum(isinstance(m, nn.Conv2d) for m in encoder.modules())

    assert convolutions(build(pixels(64, 64, 3), image_encoder="impala")) == 15
    sides = (5, 8, 15, 16, 35)
    assert [convolutions(build(pixels(side, side), image_encoder="small")) for side in sides] == [2, 2, 2, 2, 3]


@pytest.mark.parametrize("side", range(1, 17))
def test_a_small_image_has_a_network_of_its_size(side):
    """Tens of thousands of parameters: it is a grid, not a picture."""
    image = build(pixels(side, side, 3)).encoders[0]
    assert image.architecture == "tiny"
    assert sum(p.numel() for p in image.parameters()) < 80_000


@pytest.mark.parametrize(("side", "was"), [(7, "small"), (16, "small"), (35, "small"), (36, "nature"), (84, "nature")])
def test_auto_is_what_it_was_in_the_first_runs(side, was):
    """Their checkpoints say no more than `auto`."""
    then, named = build(pixels(side, side, 3), image_encoder="auto"), build(pixels(side, side, 3), image_encoder=was)
    assert then.encoders[0].architecture == was
    rows = sample_rows(pixels(side, side, 3))
    torch.testing.assert_close(then(rows), named(rows), atol=0, rtol=0)
    if side == 7:
        assert sum(p.numel() for p in then.parameters()) == 822_464


def test_a_residual_block_adds_to_what_it_was_given():
    block, x = Residual(2), torch.randn(1, 2, 3, 3)
    added = block.second(torch.relu(block.first(torch.relu(x))))
    torch.testing.assert_close(block(x), x + added)


def test_the_embedding_size_is_obeyed():
    assert build(spaces.Discrete(100), embedding_size=7).size == 7


def test_every_image_has_a_cnn_of_its_own():
    encoder = build(spaces.Dict({"left": pixels(9, 9, 3), "right": pixels(9, 9, 3)}))
    left, right = encoder.encoders
    assert {id(p) for p in left.parameters()}.isdisjoint(id(p) for p in right.parameters())
    assert not torch.equal(left.linear.weight, right.linear.weight)


GRADIENTS = [
    pytest.param(pixels(84, 84, 3), "nature", id="nature"),
    pytest.param(pixels(12, 12, 3), "small", id="small"),
    pytest.param(pixels(7, 7, 3), "tiny", id="tiny"),
    pytest.param(pixels(3, 12, 12), "impala", id="impala"),
    pytest.param(NESTED, "by-size", id="nested"),
]


@pytest.mark.parametrize(("space", "image_encoder"), GRADIENTS)
def test_gradients_reach_every_parameter(space, image_encoder):
    encoder = build(space, image_encoder=image_encoder)
    encoder(sample_rows(space)).square().sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


@pytest.mark.parametrize(("space", "image_encoder"), GRADIENTS)
def test_the_gradient_can_be_differentiated_again(space, image_encoder, monkeypatch):
    """TRPO's product Hv, against (∇L(θ + hv) − ∇L(θ − hv)) / 2h in double precision: a small h meets few kinks."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    encoder = build(space, image_encoder=image_encoder).double()
    parameters = list(encoder.parameters())
    with torch.no_grad():
        for parameter in parameters:  # with biases of zero some sums are exactly 0, the kink of relu
            parameter += 0.01 * torch.randn_like(parameter)
    rows, weights = sample_rows(space), torch.randn(encoder.size, dtype=torch.float64)

    def gradient(*, create_graph=False):
        loss = torch.tanh(encoder(rows) @ weights / 30).mean()
        return torch.autograd.grad(loss, parameters, create_graph=create_graph)

    vector = [torch.randn_like(p) / math.sqrt(p.numel()) for p in parameters]
    slope = sum((g * v).sum() for g, v in zip(gradient(create_graph=True), vector, strict=True))
    product = torch.cat([p.reshape(-1) for p in torch.autograd.grad(slope, parameters)])

    def moved(step):
        with torch.no_grad():
            for p, v in zip(parameters, vector, strict=True):
                p += step * v
        return torch.cat([g.reshape(-1) for g in gradient()])

    h = 1e-7
    forward = moved(h)
    numeric = (forward - moved(-2 * h)) / (2 * h)
    assert product.isfinite().all()
    assert (product - numeric).norm() < 1e-4 * numeric.norm()


def test_orthogonal_weights_zero_biases_and_normal_embeddings():
    encoder = build(spaces.Dict({"a": pixels(40, 40, 3), "b": spaces.Discrete(5000)}))
    layers = [m for m in encoder.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert len(layers) == 4
    for layer in layers:
        weight = layer.weight.detach().flatten(1)
        weight = weight if weight.shape[0] <= weight.shape[1] else weight.T
        torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(len(weight)), atol=1e-4, rtol=1e-4)
        assert not layer.bias.any()
    table = encoder.encoders[1].table.weight
    assert abs(table.mean()) < 0.02
    assert abs(table.std() - 1) < 0.02


def test_only_parameters_are_saved_and_a_copy_is_independent():
    encoder, rows = build(NESTED), sample_rows(NESTED)
    assert set(encoder.state_dict()) == {name for name, _ in encoder.named_parameters()}
    before, other = encoder(rows), copy.deepcopy(encoder)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(encoder(rows), before)
    assert not torch.equal(other(rows), before)


def test_describe_says_what_happens_to_each_leaf():
    space = spaces.Dict(
        {
            "camera": pixels(84, 84, 3),
            "id": spaces.Discrete(10),
            "robot": spaces.Dict({"arm": VECTOR}),
            "bits": BITS,
            "stack": pixels(4, 3, 12, 12, high=1.0, dtype=F32),
            "grey": pixels(12, 12),
            "word": spaces.Discrete(1000),
            "dice": spaces.MultiDiscrete([6, 6]),
            "mixed": spaces.MultiDiscrete([2, 3]),
        }
    )
    # Gymnasium sorts the keys of a Dict.
    assert build(space).describe() == [
        "bits: 2×2 bits → 0 or 1 → 4",
        "camera: image 84×84×3 (HWC, /255) → nature CNN → 512",
        "dice: 2 × one of 6 → one-hot → 12",
        "grey: image 12×12 (HW, /255) → tiny CNN → 64",
        "id: one of 10 → one-hot → 10",
        "mixed: one of each of 2, 3 → one-hot → 5",
        "robot/arm: vector 3 → as it is → 3",
        "stack: image 4×3×12×12 (4 frames of CHW, as it is) → tiny CNN → 64",
        "word: one of 1000 → embedding → 32",
    ]
    assert build(spaces.Discrete(4)).describe() == ["observation: one of 4 → one-hot → 4"]


@pytest.mark.parametrize(
    ("space", "needed"),
    [
        (VECTOR, False),
        (BITS, False),
        (spaces.Dict({"a": VECTOR, "b": spaces.Tuple([BITS])}), False),
        (spaces.Discrete(3), True),
        (spaces.MultiDiscrete([2, 3]), True),
        (pixels(9, 9, 3), True),
        (spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)}), True),
    ],
    ids=str,
)
def test_flat_numbers_need_no_encoder_and_would_pass_it_unchanged(space, needed):
    assert needs_encoder(Layout(space)) is needed
    if not needed:
        rows = sample_rows(space)
        assert torch.equal(build(space)(rows), rows.float().reshape(5, -1))


def test_nature_on_a_small_image_is_refused_with_its_size():
    with pytest.raises(UsageError, match=r"at least 36×36, but eye is 35×64; use by-size, small or impala"):
        build(spaces.Dict({"eye": pixels(35, 64, 3)}), image_encoder="nature")


def test_wrong_options_are_refused():
    with pytest.raises(UsageError, match=r"unknown image_encoder 'natur'; known: by-size, .*did you mean 'nature'"):
        build(VECTOR, image_encoder="natur")
    with pytest.raises(UsageError, match="embedding_size=-1 must be at least 1"):
        build(VECTOR, embedding_size=-1)


def test_a_layout_without_leaves_is_refused():
    layout = Layout(VECTOR)
    layout.leaves = ()
    with pytest.raises(UsageError, match="nothing to encode"):
        Encoder(layout)


class Mine(nn.Module):
    """A user's encoder for a Dict of an image and a vector."""

    def __init__(self, layout, size=7, result=None):
        super().__init__()
        self.size, self.result, self.seen = size, result, []
        self.norm = nn.BatchNorm1d(3)
        self.linear = nn.Linear(3 + 243, 7)

    def forward(self, parts):
        self.seen.append({path: tuple(values.shape) for path, values in parts.items()})
        if self.result is not None:
            return self.result
        return self.linear(torch.cat([parts["eye"].flatten(1), self.norm(parts["arm"])], -1))


MINE = spaces.Dict({"arm": VECTOR, "eye": pixels(9, 9, 3)})


def test_a_custom_encoder_gets_the_parts_and_keeps_leading_dimensions():
    layout = Layout(MINE)
    mine = Mine(layout)
    mine.norm.eval()
    encoder, rows = CustomEncoder(mine, layout), sample_rows(MINE, 6)
    assert mine.seen == [{"arm": (2, 3), "eye": (2, 9, 9, 3)}]
    assert encoder.size == 7
    assert encoder(rows.reshape(2, 3, -1)).shape == (2, 3, 7)
    torch.testing.assert_close(encoder(rows), mine(layout.parts(rows)))
    assert encoder.describe() == ["arm, eye: Mine → 7"]


def test_trying_a_custom_encoder_leaves_its_statistics_modes_and_weights():
    mine = Mine(Layout(MINE))
    frozen = copy.deepcopy(mine)
    frozen.norm.eval()
    encoder = CustomEncoder(mine, Layout(MINE))
    encoder.orthogonal()
    assert mine.training
    assert mine.norm.training
    assert int(mine.norm.num_batches_tracked) == 0
    assert torch.equal(mine.linear.weight, frozen.linear.weight)
    CustomEncoder(frozen, Layout(MINE))
    assert frozen.training
    assert not frozen.norm.training


def test_a_custom_encoder_of_a_single_image_sees_bytes():
    class Bytes(nn.Module):
        size = 1

        def forward(self, parts):
            assert parts[""].dtype == torch.uint8
            return parts[""].float().mean((1, 2, 3), keepdim=True).reshape(-1, 1)

    assert CustomEncoder(Bytes(), Layout(pixels(9, 9, 3)))(sample_rows(pixels(9, 9, 3))).shape == (5, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": None}, "must say how many features it gives: size, an int ≥ 1, not None"),
        ({"size": 0}, "not 0"),
        ({"size": True}, "not True"),
        ({"size": 8}, r"says size=8, so 2 observations must give the shape \(2, 8\); they gave \(2, 7\)"),
        ({"result": torch.zeros(7)}, r"they gave \(7,\)"),
        ({"result": [1.0]}, "must return a tensor, not list"),
        ({"result": torch.zeros(2, 7, dtype=torch.float64)}, "must return torch.float32, not torch.float64"),
    ],
)
def test_a_wrong_custom_encoder_is_told_what_is_wrong(options, message):
    with pytest.raises(UsageError, match=f"the encoder Mine.*{message}"):
        CustomEncoder(Mine(None, **options), Layout(MINE))


def test_a_custom_encoder_that_raises_is_told_the_paths_that_there_are():
    with pytest.raises(UsageError, match=r"Mine failed .* KeyError: 'eye'.*'arm' \(3,\), 'nose' \(2,\)") as caught:
        CustomEncoder(Mine(None), Layout(spaces.Dict({"arm": VECTOR, "nose": spaces.Box(0, 1, (2,), F32)})))
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_custom_encoder_must_be_a_module():
    with pytest.raises(UsageError, match=r"must be a torch\.nn\.Module"):
        CustomEncoder(lambda parts: parts, Layout(MINE))
