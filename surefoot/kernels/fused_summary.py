"""What many numbers say together, in a few kernels: mean, quantile and largest; explained variance. Needs Triton.

Every row of `[rows, n]` is summed up in an order that depends on n alone, so that an agent among many has the bits that
it has by itself. The readable twins are `torch.quantile` and `math.statistics`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # numbers at once
EACH, MOST = 2048, 128  # numbers per program, and programs per row at most
SEEN = 32_768  # numbers of which a quantile is taken; of more, every so manyth, an odd number: envs come in even ones
FIRST, SECOND, THIRD = (
    tl.constexpr(2048),
    tl.constexpr(2048),
    tl.constexpr(1024),
)  # bins: 11, 11 and 10 bits of a number
BINS = tl.constexpr(5120)  # of all three


@triton.jit
def _key(x):
    """32 bits in the order of the numbers."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) | -2147483648)).to(tl.uint32, bitcast=True)


@triton.jit
def _number(key):
    """The number of a key."""
    bits = key.to(tl.int32, bitcast=True)
    return (bits ^ (((bits >> 31) ^ -1) | -2147483648)).to(tl.float32, bitcast=True)


@triton.jit
def _bin(counts_at, rank, SIZE: tl.constexpr):
    """(the bin of this rank, how many numbers are in bins before it)."""
    at = tl.arange(0, SIZE)
    count = tl.load(counts_at + at)
    found = tl.sum((tl.cumsum(count, 0) <= rank).to(tl.int32), 0)
    return found, tl.sum(tl.where(at < found, count, 0), 0)


@triton.jit
def _tally(counts_at, bins, known, SIZE: tl.constexpr):
    """Count numbers in bins; integers add up to the same in any order."""
    found = tl.histogram(bins, SIZE, mask=known)
    tl.atomic_add(counts_at + tl.arange(0, SIZE), found, mask=found > 0)


@triton.jit
def _totals(x_at, sums_at, most_at, n, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """Each chunk's sum and largest."""
    chunk, row = tl.program_id(0), tl.program_id(1)
    x_at += row.to(tl.int64) * n
    total = tl.zeros((BLOCK,), tl.float32)
    most = tl.zeros((BLOCK,), tl.float32) + float("-inf")
    for begin in range(0, CHUNK, BLOCK):
        at = chunk * CHUNK + begin + tl.arange(0, BLOCK)
        known = (at < n) & (begin + tl.arange(0, BLOCK) < CHUNK)
        x = tl.load(x_at + at, mask=known, other=0.0)
        total += x
        most = tl.maximum(most, tl.where(known, x, float("-inf")))
    place = row * tl.num_programs(0) + chunk
    tl.store(sums_at + place, tl.sum(total, 0))
    tl.store(most_at + place, tl.max(most, 0))


@triton.jit
def _coarse(x_at, counts_at, n, apart, seen, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """The first 11 bits of every number that is seen: each `apart`th of n."""
    chunk, row = tl.program_id(0), tl.program_id(1)
    x_at += row.to(tl.int64) * n
    for begin in range(0, CHUNK, BLOCK):
        at = chunk * CHUNK + begin + tl.arange(0, BLOCK)
        known = (at < seen) & (begin + tl.arange(0, BLOCK) < CHUNK)
        x = tl.load(x_at + at * apart, mask=known, other=0.0)
        _tally(counts_at + row * BINS, (_key(x) >> 21).to(tl.int32), known, FIRST)


@triton.jit
def _finer(x_at, counts_at, n, apart, seen, rank, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """The next 11 bits of those with the first bits of the wanted one."""
    chunk, row = tl.program_id(0), tl.program_id(1)
    x_at += row.to(tl.int64) * n
    counts_at += row * BINS
    first, _ = _bin(counts_at, rank, FIRST)
    for begin in range(0, CHUNK, BLOCK):
        at = chunk * CHUNK + begin + tl.arange(0, BLOCK)
        known = (at < seen) & (begin + tl.arange(0, BLOCK) < CHUNK)
        key = _key(tl.load(x_at + at * apart, mask=known, other=0.0))
        known = known & ((key >> 21).to(tl.int32) == first)
        _tally(counts_at + FIRST, ((key >> 10) & 2047).to(tl.int32), known, SECOND)


@triton.jit
def _finest(
    x_at, counts_at, next_at, n, apart, seen, rank, CHUNK: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The last 10 bits, and the least number with larger first bits than the wanted one."""
    chunk, row = tl.program_id(0), tl.program_id(1)
    x_at += row.to(tl.int64) * n
    counts_at += row * BINS
    first, before = _bin(counts_at, rank, FIRST)
    second, _ = _bin(counts_at + FIRST, rank - before, SECOND)
    prefix = first * 2048 + second
    least = tl.zeros((BLOCK,), tl.float32) + float("inf")
    for begin in range(0, CHUNK, BLOCK):
        at = chunk * CHUNK + begin + tl.arange(0, BLOCK)
        known = (at < seen) & (begin + tl.arange(0, BLOCK) < CHUNK)
        x = tl.load(x_at + at * apart, mask=known, other=0.0)
        key = _key(x)
        own = (key >> 10).to(tl.int32)
        least = tl.minimum(least, tl.where(known & (own > prefix), x, float("inf")))
        _tally(counts_at + FIRST + SECOND, (key & 1023).to(tl.int32), known & (own == prefix), THIRD)
    tl.store(next_at + row * tl.num_programs(0) + chunk, tl.min(least, 0))


@triton.jit
def _chosen(
    counts_at, sums_at, most_at, next_at, found_at, n, seen, rank, chunks, parts, share, CHUNKS: tl.constexpr
):  # fmt: skip
    """Mean, quantile and largest of a row. `share`: how far the quantile is from the wanted number to the next."""
    row = tl.program_id(1)
    counts_at += row * BINS
    first, before = _bin(counts_at, rank, FIRST)
    second, also = _bin(counts_at + FIRST, rank - before, SECOND)
    place = rank - before - also
    third, fewer = _bin(counts_at + FIRST + SECOND, place, THIRD)
    at = tl.arange(0, THIRD)
    count = tl.load(counts_at + FIRST + SECOND + at)
    here = tl.sum(tl.where(at == third, count, 0), 0)
    behind = tl.min(tl.where((at > third) & (count > 0), at, THIRD), 0)
    upper = (first * 2048 + second) * 1024
    own = _number((upper + third).to(tl.uint32, bitcast=True))
    chunk = tl.arange(0, CHUNKS)
    after = tl.min(tl.load(next_at + row * parts + chunk, mask=chunk < parts, other=float("inf")), 0)
    known, chunk = chunk < chunks, row * chunks + chunk
    after = tl.where(behind < THIRD, _number((upper + behind).to(tl.uint32, bitcast=True)), after)
    after = tl.where((place - fewer + 1 < here) | (rank + 1 >= seen), own, after)
    found_at += row * 3
    tl.store(found_at, tl.sum(tl.load(sums_at + chunk, mask=known, other=0.0), 0) / n)
    tl.store(found_at + 1, own + share * (after - own))
    tl.store(found_at + 2, tl.max(tl.load(most_at + chunk, mask=known, other=float("-inf")), 0))


def _shape(x: Tensor) -> tuple[int, int, int, int]:
    """(rows, numbers in each, programs for each, numbers for a program)."""
    size = x.shape[-1]
    chunks = min(max(triton.cdiv(size, EACH), 1), MOST)
    return x.numel() // size, size, chunks, triton.cdiv(size, chunks)


def spread(x: Tensor, quantile: float) -> tuple[Tensor, Tensor, Tensor]:
    """(mean, this quantile, largest) of each row `[..., n]`, `[...]` each. If a number is NaN, so is the mean."""
    rows, size, chunks, chunk = _shape(x)
    apart = (1 + size // SEEN) | 1 if size > SEEN else 1
    seen = triton.cdiv(size, apart)
    parts = triton.cdiv(seen, EACH)
    x, rank = x.contiguous(), quantile * (seen - 1)
    counts = torch.zeros((rows, int(BINS.value)), dtype=torch.int32, device=x.device)
    # Each with memory of its own, or its alignment, and with it the code, would depend on the number of rows.
    sums, most = (torch.empty((rows, chunks), dtype=x.dtype, device=x.device) for _ in range(2))
    following = torch.empty((rows, parts), dtype=x.dtype, device=x.device)
    found = torch.empty((rows, 3), dtype=x.dtype, device=x.device)
    how, whole = {"CHUNK": EACH, "BLOCK": BLOCK}, int(rank)
    _totals[(chunks, rows)](x, sums, most, size, CHUNK=chunk, BLOCK=BLOCK)
    _coarse[(parts, rows)](x, counts, size, apart, seen, **how)
    _finer[(parts, rows)](x, counts, size, apart, seen, whole, **how)
    _finest[(parts, rows)](x, counts, following, size, apart, seen, whole, **how)
    _chosen[(1, rows)](
        counts, sums, most, following, found, size, seen, whole, chunks, parts, rank - whole,
        CHUNKS=triton.next_power_of_2(max(chunks, parts)),
    )  # fmt: skip
    mean, between, largest = found.view(*x.shape[:-1], 3).unbind(-1)
    return mean, between, largest


@triton.jit
def _deviations(value_at, target_at, found_at, n, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """Mean of each chunk and sum of squared distances from it, for the targets and for what the values miss."""
    chunk, row = tl.program_id(0), tl.program_id(1)
    value_at, target_at = value_at + row.to(tl.int64) * n, target_at + row.to(tl.int64) * n
    size = tl.minimum(CHUNK, tl.maximum(n - chunk * CHUNK, 1)).to(tl.float32)
    targets, errors = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, CHUNK, BLOCK):
        at = chunk * CHUNK + begin + tl.arange(0, BLOCK)
        known = (at < n) & (begin + tl.arange(0, BLOCK) < CHUNK)
        target = tl.load(target_at + at, mask=known, other=0.0)
        targets, errors = targets + target, errors + target - tl.load(value_at + at, mask=known, other=0.0)
    mean, missed = tl.sum(targets, 0) / size, tl.sum(errors, 0) / size
    targets, errors = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, CHUNK, BLOCK):
        at = chunk * CHUNK + begin + tl.arange(0, BLOCK)
        known = (at < n) & (begin + tl.arange(0, BLOCK) < CHUNK)
        target = tl.load(target_at + at, mask=known, other=0.0)
        off = tl.where(known, target - mean, 0.0)
        miss = tl.where(known, target - tl.load(value_at + at, mask=known, other=0.0) - missed, 0.0)
        targets, errors = targets + off * off, errors + miss * miss
    found_at += (row * tl.num_programs(0) + chunk) * 4
    tl.store(found_at, mean)
    tl.store(found_at + 1, tl.sum(targets, 0))
    tl.store(found_at + 2, missed)
    tl.store(found_at + 3, tl.sum(errors, 0))


@triton.jit
def _joined(found_at, count, n):
    """The variance of all, from the chunks' means and squares."""
    mean = tl.sum(count * tl.load(found_at), 0) / n
    off = tl.where(count > 0.0, tl.load(found_at) - mean, 0.0)
    return tl.sum(tl.load(found_at + 1) + count * off * off, 0) / n


@triton.jit
def _explained(found_at, explained_at, n, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    row, chunk = tl.program_id(1), tl.arange(0, CHUNKS)
    count = tl.minimum(tl.maximum(n - chunk * CHUNK, 0), CHUNK).to(tl.float32)
    at = found_at + (row * CHUNKS + chunk) * 4
    variance, missed = _joined(at, count, n), _joined(at + 2, count, n)
    tl.store(explained_at + row, tl.where(variance > 1e-12, 1.0 - missed / tl.maximum(variance, 1e-12), 0.0))


def explained_variance(value: Tensor, target: Tensor) -> Tensor:
    """1 − Var(target − value) / Var(target) of each row `[..., n]`; 0 where the targets do not vary."""
    rows, size, chunks, chunk = _shape(target)
    most = triton.next_power_of_2(chunks)
    found = torch.zeros((rows, most, 4), dtype=torch.float32, device=target.device)
    explained = torch.empty(rows, dtype=torch.float32, device=target.device)
    _deviations[(most, rows)](
        value.contiguous(), target.contiguous(), found, size, CHUNK=chunk, BLOCK=BLOCK
    )  # fmt: skip
    _explained[(1, rows)](found, explained, size, CHUNK=chunk, CHUNKS=most)
    return explained.view(target.shape[:-1])
