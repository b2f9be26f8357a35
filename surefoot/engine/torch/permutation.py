"""Random orders of samples, drawn where the generator is."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

ROUNDS = 6
MOST = 2**30  # samples
WORD = 2**32 - 1


def permutation(size: int, generator: torch.Generator) -> Tensor:
    """0 … size − 1 in a random order. A GPU computes each place by itself (`kernels.fused_shuffle`)."""
    device = generator.device
    if device.type != "cuda" or size > MOST or find_spec("triton") is None:
        return torch.randperm(size, generator=generator, device=device)
    from surefoot.kernels.fused_shuffle import shuffled

    return shuffled(size, _keys(generator), halves(size))


def permutations(size: int, generators: Sequence[torch.Generator]) -> Tensor:
    """`permutation` by each generator, `[generators, size]`."""
    device = generators[0].device
    if device.type != "cuda" or size > MOST or find_spec("triton") is None:
        return torch.stack([permutation(size, generator) for generator in generators])
    from surefoot.kernels.fused_shuffle import shuffled

    return shuffled(size, torch.stack([_keys(generator) for generator in generators]), halves(size))


def _keys(generator: torch.Generator) -> Tensor:
    return torch.randint(0, 2**32, (ROUNDS,), generator=generator, dtype=torch.int64, device=generator.device)


def halves(size: int) -> tuple[int, int]:
    """Bits of the upper and the lower half of the numbers below `size`."""
    bits = max(2, (size - 1).bit_length())
    return bits // 2, bits - bits // 2


def feistel(size: int, keys: list[int]) -> list[int]:
    """The order that these keys stand for: the readable twin of the kernel, number by number."""
    (upper, lower), order = halves(size), []
    for place in range(size):
        x = place
        while True:
            left, right = x >> lower, x & ((1 << lower) - 1)
            for at, key in enumerate(keys):
                if at % 2 == 0:
                    left ^= _mixed(right, key) & ((1 << upper) - 1)
                else:
                    right ^= _mixed(left, key) & ((1 << lower) - 1)
            x = (left << lower) | right
            if x < size:
                break
        order.append(x)
    return order


def _mixed(half: int, key: int) -> int:
    x = (half ^ key) * 0x9E3779B1 & WORD
    x = (x ^ x >> 15) * 0x85EBCA6B & WORD
    x = (x ^ x >> 13) * 0xC2B2AE35 & WORD
    return x ^ x >> 16
