"""Random orders of samples, drawn where the generator is."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

ROUNDS = 6
MOST = 2**30  # samples whose numbers fit in two halves of 15 bits
WORD = 2**32 - 1


def permutation(size: int, generator: torch.Generator) -> Tensor:
    """0 … size − 1 in a random order. A GPU computes each place by itself (`kernels.fused_shuffle`)."""
    device = generator.device
    if device.type != "cuda" or size > MOST or find_spec("triton") is None:
        return torch.randperm(size, generator=generator, device=device)
    from surefoot.kernels.fused_shuffle import shuffled

    keys = torch.randint(0, 2**32, (ROUNDS,), generator=generator, dtype=torch.int64, device=device)
    return shuffled(size, keys, half_bits(size))


def half_bits(size: int) -> int:
    """Bits of each half of a number, such that all numbers below `size` have a place."""
    return max(1, -(-max(1, size - 1).bit_length() // 2))


def feistel(size: int, keys: list[int]) -> list[int]:
    """The order that these keys stand for: the readable twin of the kernel, number by number."""
    half = half_bits(size)
    mask, order = (1 << half) - 1, []
    for place in range(size):
        x = place
        while True:
            left, right = x >> half, x & mask
            for key in keys:
                left, right = right, left ^ (_mixed(right, key) & mask)
            x = (left << half) | right
            if x < size:
                break
        order.append(x)
    return order


def _mixed(half: int, key: int) -> int:
    x = (half ^ key) * 0x9E3779B1 & WORD
    x = (x ^ x >> 15) * 0x85EBCA6B & WORD
    x = (x ^ x >> 13) * 0xC2B2AE35 & WORD
    return x ^ x >> 16
