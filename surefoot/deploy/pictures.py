"""Describes the CNN of an image."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from surefoot.deploy.program import Activate, Add, At, Convolution, MaxPool, Picture, Sides
from surefoot.policies.plans import PLANS, POOL, Convolve, Pool, Rectify, chosen, divisor, geometry
from surefoot.schema import Misfit

if TYPE_CHECKING:
    from surefoot.deploy.describe import Builder
    from surefoot.spaces.rows import Leaf


def describe_picture(builder: Builder, x: At, leaf: Leaf, name: str) -> At:
    """The features of an image. `name`: the prefix of its weights."""
    image, channels_last = geometry(leaf)
    frames = leaf.shape[0] if len(leaf.shape) == 4 else 1
    at = builder.add(Picture(x, frames, image, channels_last, divisor(leaf)))
    plan, features = PLANS[chosen(leaf, builder.config.encoder)]
    for number, layer in enumerate(plan(*image[1:])):
        own = f"{name}.cnn.{number}"
        if isinstance(layer, Convolve):
            at, image = _convolve(builder, at, image, own, layer)
        elif isinstance(layer, Pool):
            pool = MaxPool(at, image, *POOL)
            at, image = builder.add(pool), pool.result
        elif isinstance(layer, Rectify):
            at = _relu(builder, at)
        else:
            same = Convolve(image[0], 3, padding=1)
            inner, _ = _convolve(builder, _relu(builder, at), image, f"{own}.first", same)
            inner, _ = _convolve(builder, _relu(builder, inner), image, f"{own}.second", same)
            at = builder.add(Add(at, inner, math.prod(image)))
    return _relu(builder, builder.linear(at, f"{name}.linear", features))


def _convolve(builder: Builder, x: At, image: Sides, name: str, layer: Convolve) -> tuple[At, Sides]:
    weight = builder.weights.take(f"{name}.weight", (layer.outputs, image[0], layer.kernel, layer.kernel))
    bias = builder.weights.take(f"{name}.bias", (layer.outputs,))
    convolution = Convolution(x, weight, bias, image, layer.stride, layer.padding)
    if min(convolution.result) < 1:
        raise Misfit(f"an image of {image[1]}×{image[2]} is too small for its network")
    return builder.add(convolution), convolution.result


def _relu(builder: Builder, x: At) -> At:
    return builder.add(Activate(x, "relu", builder.size(x)))
