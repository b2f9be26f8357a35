"""A random order of a batch's samples, computed place by place. Import it late: it needs Triton.

Sorting random numbers, as `torch.randperm` does, takes a GPU a quarter as long as learning from the samples. Here a
Feistel network maps every place to its sample: in each of six rounds, one half of the number's bits changes the other
half, which is one-to-one whatever the mixing. A result beyond the last sample goes through it again until it is none.
The twin is `engine.torch.permutation.feistel`.
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
def _through(x, keys_at, UPPER: tl.constexpr, LOWER: tl.constexpr, ROUNDS: tl.constexpr):
    left = x >> LOWER
    right = x & ((1 << LOWER) - 1)
    for at in tl.static_range(ROUNDS):
        key = tl.load(keys_at + at).to(tl.uint32)
        if at % 2 == 0:
            left ^= _mixed(right, key) & ((1 << UPPER) - 1)
        else:
            right ^= _mixed(left, key) & ((1 << LOWER) - 1)
    return (left << LOWER) | right


@triton.jit
def _shuffle(
    keys_at, order_at, size, UPPER: tl.constexpr, LOWER: tl.constexpr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    agent = tl.program_id(1)
    keys_at += agent * ROUNDS
    order_at += agent.to(tl.int64) * size
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = _through(place.to(tl.uint32), keys_at, UPPER, LOWER, ROUNDS)
    beyond = (x >= size) & (place < size)
    while tl.max(beyond.to(tl.int32), 0) > 0:
        x = tl.where(beyond, _through(x, keys_at, UPPER, LOWER, ROUNDS), x)
        beyond = (x >= size) & (place < size)
    tl.store(order_at + place, x.to(tl.int64), mask=place < size)


def shuffled(size: int, keys: Tensor, halves: tuple[int, int]) -> Tensor:
    """The order that these keys (int64, of 32 bits each) stand for; `halves`: bits of both halves of a number.

    Keys `[agents, rounds]` give an order for each agent, `[agents, size]`.
    """
    order = torch.empty((*keys.shape[:-1], size), dtype=torch.int64, device=keys.device)
    agents = keys.numel() // keys.shape[-1]
    _shuffle[(triton.cdiv(size, BLOCK), agents)](
        keys, order, size, UPPER=halves[0], LOWER=halves[1], ROUNDS=keys.shape[-1], BLOCK=BLOCK
    )
    return order
