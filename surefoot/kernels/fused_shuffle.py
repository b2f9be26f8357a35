"""A random order of a batch's samples, computed place by place. Import it late: it needs Triton.

Sorting random numbers, as `torch.randperm` does, takes a GPU a quarter as long as learning from the samples. Here a
Feistel network maps every place to its sample: six rounds, each of which adds a mixed half of the number's bits to the
other half, which is one-to-one whatever the mixing. A result beyond the last sample goes through it again until it is
none. The twin is `math.permutation.feistel`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _mixed(half, key):
    """32 bits that depend on all of both."""
    x = (half ^ key) * 0x9E3779B1
    x = (x ^ (x >> 15)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def _through(x, keys_at, HALF: tl.constexpr, ROUNDS: tl.constexpr):
    mask: tl.constexpr = (1 << HALF) - 1
    left = x >> HALF
    right = x & mask
    for at in tl.static_range(ROUNDS):
        key = tl.load(keys_at + at).to(tl.uint32)
        left, right = right, left ^ (_mixed(right, key) & mask)
    return (left << HALF) | right


@triton.jit
def _shuffle(keys_at, order_at, size, HALF: tl.constexpr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = _through(place.to(tl.uint32), keys_at, HALF, ROUNDS)
    beyond = (x >= size) & (place < size)
    while tl.max(beyond.to(tl.int32), 0) > 0:
        x = tl.where(beyond, _through(x, keys_at, HALF, ROUNDS), x)
        beyond = (x >= size) & (place < size)
    tl.store(order_at + place, x.to(tl.int64), mask=place < size)


def shuffled(size: int, keys: Tensor, half: int) -> Tensor:
    """The order that these keys (int64, of 32 bits each) stand for; `half`: bits of each half of a number."""
    order = torch.empty(size, dtype=torch.int64, device=keys.device)
    _shuffle[(triton.cdiv(size, BLOCK),)](keys, order, size, HALF=half, ROUNDS=len(keys), BLOCK=BLOCK)
    return order
