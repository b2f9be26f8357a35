"""The loss of a tile of rows, its terms and its slope at the outputs of actor and critic, for fused kernels.

PyTorch's twin is `engine.losses.Loss`, C++'s `src/losses.hpp`. Import it late: it needs Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

from surefoot.kernels.fused_nets import CATEGORICAL, _kl, _load_action, _load_old, _log_prob, _log_probs

SURROGATES = ("log_prob", "ratio", "clip", "spo")  # in the kernel's order, by their names in `src/surrogates.hpp`
HALF_LOG_2PIE = tl.constexpr(1.4189385332046727)


@triton.jit(do_not_specialize=["size"])
def _moments(
    advantage_at, order_at, found_at, size, CHUNK: tl.constexpr, BLOCK: tl.constexpr, ORDER: tl.constexpr
):  # fmt: skip
    """Mean and sum of squared distances from it, of each chunk of each minibatch of each agent."""
    chunk = tl.program_id(0)
    part = tl.program_id(1)
    before = tl.program_id(2) * tl.num_programs(1)  # minibatches of the agents before
    advantage_at += before.to(tl.int64) * size
    found_at += before * tl.num_programs(0) * 2
    if ORDER:
        order_at += before.to(tl.int64) * size
    end = tl.minimum(size, (chunk + 1) * CHUNK)
    total = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, CHUNK, BLOCK):
        row = chunk * CHUNK + begin + tl.arange(0, BLOCK)
        at = (part * size + row).to(tl.int64)
        if ORDER:
            at = tl.load(order_at + at, mask=row < end, other=0)
        total += tl.load(advantage_at + at, mask=row < end, other=0.0)
    mean = tl.sum(total, 0) / tl.maximum(end - chunk * CHUNK, 1).to(tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, CHUNK, BLOCK):
        row = chunk * CHUNK + begin + tl.arange(0, BLOCK)
        at = (part * size + row).to(tl.int64)
        if ORDER:
            at = tl.load(order_at + at, mask=row < end, other=0)
        off = tl.where(row < end, tl.load(advantage_at + at, mask=row < end, other=0.0) - mean, 0.0)
        squares += off * off
    found_at += (part * tl.num_programs(0) + chunk) * 2
    tl.store(found_at, mean)
    tl.store(found_at + 1, tl.sum(squares, 0))


@triton.jit
def _standard(moments_at, size, CHUNKS: tl.constexpr, CHUNK: tl.constexpr):
    """(mean, 1 / (std + 1e-8)) of a minibatch, from its chunks."""
    chunk = tl.arange(0, CHUNKS)
    count = tl.minimum(tl.maximum(size - chunk * CHUNK, 0), CHUNK).to(tl.float32)
    means = tl.load(moments_at + chunk * 2)
    mean = tl.sum(count * means, 0) / size
    off = means - mean
    squares = tl.sum(tl.load(moments_at + chunk * 2 + 1) + count * off * off, 0)
    return mean, 1.0 / (tl.sqrt(squares / size) + 1e-8)


@triton.jit
def _gain(log_prob, old, advantage, epsilon, SURROGATE: tl.constexpr):
    """(value, its slope along log π, whether it is clipped, r), as in `surrogates.hpp`."""
    ratio = tl.exp(log_prob - old)
    value = log_prob * advantage
    slope = advantage
    clipped = ratio * 0.0
    if SURROGATE == 1:
        value = ratio * advantage
        slope = value
    if SURROGATE == 2:
        kept = tl.minimum(tl.maximum(ratio, 1.0 - epsilon), 1.0 + epsilon)
        free = ratio * advantage
        value = tl.minimum(free, kept * advantage)
        slope = tl.where(free > kept * advantage, 0.0, free)
        clipped = tl.where(ratio != kept, 1.0, 0.0)
    if SURROGATE == 3:
        off = ratio - 1.0
        pull = tl.abs(advantage) * off / epsilon
        value = ratio * advantage - 0.5 * pull * off
        slope = ratio * (advantage - pull)
        clipped = tl.where(tl.abs(off) > epsilon, 1.0, 0.0)
    return value, slope, clipped, ratio


@triton.jit
def _distance(error, HUBER: tl.constexpr):
    """(loss, slope)."""
    loss = error * error
    slope = 2.0 * error
    if HUBER:
        size = tl.abs(error)
        loss = tl.where(size < 1.0, 0.5 * loss, size - 0.5)
        slope = tl.where(size < 1.0, error, tl.where(error > 0.0, 1.0, -1.0))
    return loss, slope


@triton.jit
def _actor_loss(
    out, log_std, row, inside, action_at, old_at, params_at, advantage_at, mean, stretch, numbers_at, share,
    A: tl.constexpr, BO: tl.constexpr, HEAD: tl.constexpr, SURROGATE: tl.constexpr,
    EPSILON: tl.constexpr, BETA: tl.constexpr, ENTROPY: tl.constexpr, NORMALIZE: tl.constexpr,
):  # fmt: skip
    """(d_out, d_log_std, five terms, |r − 1|), of every row."""
    o = tl.arange(0, BO)
    exists = (o < A)[None, :]
    action = _load_action(action_at, row, inside, A, BO, HEAD)
    log_prob = _log_prob(out, log_std, action, A, BO, HEAD)
    old = tl.load(old_at + row, mask=inside, other=0.0)
    advantage = tl.load(advantage_at + row, mask=inside, other=0.0)
    if NORMALIZE:
        advantage = (advantage - mean) * stretch
    epsilon = 0.0
    if EPSILON >= 0:
        epsilon = tl.load(numbers_at + EPSILON)
    value, slope, clipped, ratio = _gain(log_prob, old, advantage, epsilon, SURROGATE)
    own = tl.where(inside, share, 0.0)
    into = (-slope * own)[:, None]
    d_log_std = out * 0.0
    if HEAD == CATEGORICAL:
        log_probs = _log_probs(out, A, BO)
        p = tl.exp(log_probs)
        entropy = -tl.sum(tl.where(exists, p * log_probs, 0.0), 1)
        d_out = into * (tl.where(o[None, :] == action[:, None], 1.0, 0.0) - p)
        if ENTROPY >= 0:
            weight = tl.load(numbers_at + ENTROPY) * own
            d_out += weight[:, None] * p * (log_probs + entropy[:, None])
    else:
        inverse = tl.exp(-log_std)
        z = (action - out) * inverse
        entropy = tl.sum(tl.where(exists, log_std + HALF_LOG_2PIE, 0.0), 1) + log_prob * 0.0
        d_out = into * z * inverse
        d_log_std = into * (z * z - 1.0)
        if ENTROPY >= 0:
            d_log_std -= (tl.load(numbers_at + ENTROPY) * own)[:, None]
    kl = log_prob * 0.0
    if BETA >= 0:
        before, before_log_std = _load_old(params_at, row, inside, A, BO, HEAD)
        kl = _kl(out, log_std, before, before_log_std, A, BO, HEAD)
        weight = (tl.load(numbers_at + BETA) * own)[:, None]
        if HEAD == CATEGORICAL:
            d_out += weight * (p - tl.exp(_log_probs(before, A, BO)))
        else:
            off = (out - before) * inverse
            d_out += weight * off * inverse
            d_log_std += weight * (1.0 - tl.exp(2.0 * (before_log_std - log_std)) - off * off)
    return (
        tl.where(exists, d_out, 0.0),
        tl.where(exists, d_log_std, 0.0),
        tl.where(inside, value, 0.0),
        tl.where(inside, entropy, 0.0),
        tl.where(inside, kl, 0.0),
        tl.where(inside, ratio - 1.0 - (log_prob - old), 0.0),
        tl.where(inside, clipped, 0.0),
        tl.where(inside, tl.abs(ratio - 1.0), 0.0),
    )


@triton.jit
def _critic_loss(
    out, row, inside, target_at, value_at, numbers_at, share,
    BO: tl.constexpr, WEIGHT: tl.constexpr, NEAR: tl.constexpr, HUBER: tl.constexpr,
):  # fmt: skip
    """(d_out, the loss), of every row. V is the first column."""
    o = tl.arange(0, BO)
    value = tl.sum(tl.where((o == 0)[None, :], out, 0.0), 1)
    target = tl.load(target_at + row, mask=inside, other=0.0)
    loss, slope = _distance(value - target, HUBER)
    if NEAR >= 0:
        most = tl.load(numbers_at + NEAR)
        before = tl.load(value_at + row, mask=inside, other=0.0)
        moved = value - before
        held, back = _distance(before + tl.minimum(tl.maximum(moved, -most), most) - target, HUBER)
        slope = tl.where(held > loss, tl.where(tl.abs(moved) <= most, back, 0.0), slope)
        loss = tl.maximum(loss, held)
    weight = share
    if WEIGHT >= 0:
        weight = share * tl.load(numbers_at + WEIGHT)
    d_value = tl.where(inside, slope * weight, 0.0)
    return tl.where((o == 0)[None, :], d_value[:, None], 0.0), tl.where(inside, loss, 0.0)
