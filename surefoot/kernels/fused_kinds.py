"""What each kind of action distribution says of a row, and its slopes there, for fused kernels.

A program's rows are a vector, and the terms of a row (its logits, bits or dimensions) are added in their order, one at
a time. So a row's sums depend neither on its batch nor on how a compiler divides a tile among threads. C++'s twins are
`src/head_*.hpp`, PyTorch's are in `math.distributions`. Import it late: it needs Triton.

Slopes come in two: those of log π, and those of the rest of the loss, β·KL(old‖new) − c_e·H. Only the former wait for
the surrogate, which needs log π of the whole action.
"""

from __future__ import annotations

import triton
import triton.language as tl

from surefoot.kernels.fused_loss import HALF_LOG_2PIE
from surefoot.kernels.fused_nets import HALF_LOG_2PI
from surefoot.kernels.fused_products import _bound

CATEGORICAL, BERNOULLI, GAUSSIAN, TANH_GAUSSIAN, BETA = (tl.constexpr(code) for code in range(5))  # as in `heads.py`
LOG_2 = tl.constexpr(0.6931471805599453)
HALF_LOG_2PI_WIDE = tl.constexpr(0.91893853320467274)
# E f(z) ≈ Σ weight·(f(node) + f(−node)) for a standard normal z: 32-point Gauss–Hermite quadrature, without the outer
# ten nodes, whose weights are below float32's rounding of the sum.
NODES = tl.constexpr(11)
NODE = tl.constexpr((
    0.275546419, 0.827284904, 1.3809802, 1.93800491, 2.49984042, 3.06813517, 3.64478125, 4.23202111, 4.83260461,
    5.45003327, 6.08896431,
))  # fmt: skip
WEIGHT = tl.constexpr((
    0.21170557, 0.156538994, 0.0853448083, 0.0341098477, 0.0099034617, 0.00206205105, 0.000302557026, 3.05598031e-05,
    2.0596221e-06, 8.88129071e-08, 2.31251841e-09,
))  # fmt: skip


@triton.jit
def _log1p(x):
    """log(1 + x) for x ≥ −1, to the last digits also where 1 + x is rounded."""
    u = 1.0 + x
    same = u == 1.0
    return tl.where(same, x, tl.log(u) * (x / tl.where(same, 1.0, u - 1.0)))


@triton.jit
def _softplus(x):
    """(softplus, its slope)."""
    small = tl.exp(-tl.abs(x))
    return tl.maximum(x, 0.0) + _log1p(small), tl.where(x >= 0.0, 1.0, small) / (1.0 + small)


@triton.jit
def _spread(logit_at, inside, choices):
    """(the largest logit, log Σ exp of the distances from it)."""
    top = tl.load(logit_at, mask=inside, other=0.0)
    for i in range(1, _bound(choices)):
        top = tl.maximum(top, tl.load(logit_at + i, mask=inside, other=0.0))
    total = top * 0.0
    for i in range(_bound(choices)):
        total += tl.exp(tl.load(logit_at + i, mask=inside, other=0.0) - top)
    return top, tl.log(total)


@triton.jit
def _choice(
    new_at, old_at, action_at, along_at, beside_at, inside, choices, size, beta, bonus, KL: tl.constexpr,
    ENTROPY: tl.constexpr, LEARN: tl.constexpr,
):  # fmt: skip
    """(log π, H, KL) of one of several choices."""
    action = tl.load(action_at, mask=inside, other=0).to(tl.int32)
    top, rest = _spread(new_at, inside, choices)
    log_prob = tl.load(new_at + action, mask=inside, other=0.0) - top - rest
    entropy, kl = top * 0.0, top * 0.0
    old_top, old_rest = top, rest
    if KL:
        old_top, old_rest = _spread(old_at, inside, choices)
    if LEARN:
        for i in range(_bound(choices)):
            log_p = tl.load(new_at + i, mask=inside, other=0.0) - top - rest
            entropy -= tl.exp(log_p) * log_p
            if KL:
                log_old = tl.load(old_at + i, mask=inside, other=0.0) - old_top - old_rest
                kl += tl.exp(log_old) * (log_old - log_p)
        for i in range(_bound(choices)):
            log_p = tl.load(new_at + i, mask=inside, other=0.0) - top - rest
            p = tl.exp(log_p)
            tl.store(along_at + i * size, tl.where(action == i, 1.0, 0.0) - p, mask=inside)
            slope = p * 0.0
            if ENTROPY:
                slope += bonus * p * (log_p + entropy)
            if KL:
                log_old = tl.load(old_at + i, mask=inside, other=0.0) - old_top - old_rest
                slope += beta * (p - tl.exp(log_old))
            if KL or ENTROPY:
                tl.store(beside_at + i * size, slope, mask=inside)
    return log_prob, entropy, kl


@triton.jit
def _bit(logit, old, action, beta, bonus, KL: tl.constexpr, ENTROPY: tl.constexpr):
    """(log π, H, KL, slope of log π, slope of the rest) of one bit."""
    minus_zero, p = _softplus(logit)
    minus_one, q = _softplus(-logit)  # 1 − p, computed directly, so that neither is 1 − 1
    set_ = action > 0.0
    kl, beside = logit * 0.0, logit * 0.0
    if ENTROPY:
        beside += bonus * logit * p * q
    if KL:
        old_zero, old_p = _softplus(old)
        old_one, old_q = _softplus(-old)
        kl = old_p * (minus_one - old_one) + old_q * (minus_zero - old_zero)
        beside += beta * (p - old_p)
    return tl.where(set_, -minus_one, -minus_zero), p * minus_one + q * minus_zero, kl, tl.where(set_, q, -p), beside


@triton.jit
def _dimension(mean, log_std, old_mean, old_log_std, action, beta, bonus, KL: tl.constexpr, ENTROPY: tl.constexpr):
    """(log π, H, KL, both slopes of log π, both slopes of the rest) of one dimension of a Gaussian."""
    inverse = tl.exp(-log_std)
    z = (action - mean) * inverse
    log_prob = -(0.5 * z * z + log_std + HALF_LOG_2PI)
    kl, of_mean, of_std = z * 0.0, z * 0.0, z * 0.0
    if ENTROPY:
        of_std -= bonus
    if KL:
        ratio = tl.exp(2.0 * (old_log_std - log_std))
        off = (mean - old_mean) * inverse
        kl = log_std - old_log_std + 0.5 * (ratio + off * off - 1.0)
        of_mean += beta * off * inverse
        of_std += beta * (1.0 - ratio - off * off)
    return log_prob, log_std + HALF_LOG_2PIE, kl, z * inverse, z * z - 1.0, of_mean, of_std


@triton.jit
def _slope_of_tanh(u):
    """(log(1 − tanh² u), without cancellation at large |u|; tanh u)."""
    small = tl.exp(-2.0 * tl.abs(u))
    tanh = (1.0 - small) / (1.0 + small)
    return 2.0 * (LOG_2 - tl.abs(u) - tl.log(1.0 + small)), tl.where(u < 0.0, -tanh, tanh)


@triton.jit
def _squashed(mean, log_std, old_mean, old_log_std, action, beta, bonus, KL: tl.constexpr, ENTROPY: tl.constexpr):
    """The same of a Gaussian that tanh squashes, up to the log of its scale. `action`: before the tanh."""
    log_prob, entropy, kl, along_mean, along_std, of_mean, of_std = _dimension(
        mean, log_std, old_mean, old_log_std, action, beta, bonus, KL, ENTROPY
    )
    slope, _ = _slope_of_tanh(action)
    std = tl.exp(log_std)
    tanhs, moments = mean * 0.0, mean * 0.0
    for k in tl.static_range(NODES):
        above, tanh_above = _slope_of_tanh(mean + NODE[k] * std)
        below, tanh_below = _slope_of_tanh(mean - NODE[k] * std)
        entropy += WEIGHT[k] * (above + below)
        tanhs += WEIGHT[k] * (tanh_above + tanh_below)
        moments += WEIGHT[k] * NODE[k] * (tanh_above - tanh_below)
    if ENTROPY:  # d log(1 − tanh² u) / du = −2 tanh u
        of_mean += 2.0 * bonus * tanhs
        of_std += 2.0 * bonus * moments * std
    return log_prob - slope, entropy, kl, along_mean, along_std, of_mean, of_std


@triton.jit
def _gammas(x):
    """log Γ and its first two derivatives, for float64 x ≥ 1.

    Stirling's series at 8 or more, then back by Γ(x + 1) = x·Γ(x). Σ 1/x and Σ 1/x² of these steps are kept as
    numerators over the product of the steps and its square: one division instead of seven.
    """
    product = x * 0.0 + 1.0
    first, second = x * 0.0, x * 0.0
    for _ in tl.static_range(7):
        below = x < 8.0
        second = tl.where(below, second * x * x + product * product, second)
        first = tl.where(below, first * x + product, first)
        product = tl.where(below, product * x, product)
        x = tl.where(below, x + 1.0, x)
    i = 1.0 / x
    back = 1.0 / product
    s = i * i
    log_x = tl.log(x)
    tail = i * (1.0 / 12 - s * (1.0 / 360 - s * (1.0 / 1260 - s * (1.0 / 1680 - s * (1.0 / 1188)))))
    of_tail = s * (1.0 / 12 - s * (1.0 / 120 - s * (1.0 / 252 - s * (1.0 / 240 - s * (1.0 / 132)))))
    of_slope = i * s * (1.0 / 6 - s * (1.0 / 30 - s * (1.0 / 42 - s * (1.0 / 30 - s * (5.0 / 66)))))
    return (
        (x - 0.5) * log_x - x + HALF_LOG_2PI_WIDE + tail - tl.log(product),
        log_x - 0.5 * i - of_tail - first * back,
        i + 0.5 * s + of_slope + second * back * back,
    )


@triton.jit
def _shape(raw_a, raw_b):
    """(α − 1, β − 1, log B(α, β), its two slopes, ψ′ of α, β and α + β, the slopes of α and β)."""
    a, slope_a = _softplus(raw_a.to(tl.float64))
    b, slope_b = _softplus(raw_b.to(tl.float64))
    log_a, first_a, second_a = _gammas(1.0 + a)
    log_b, first_b, second_b = _gammas(1.0 + b)
    log_both, both, second = _gammas(2.0 + a + b)
    return a, b, log_a + log_b - log_both, first_a - both, first_b - both, second_a, second_b, second, slope_a, slope_b


@triton.jit
def _between(raw_a, raw_b, old_a, old_b, action, beta, bonus, KL: tl.constexpr, ENTROPY: tl.constexpr):
    """The same of a Beta, up to the log of its scale.

    It computes in float64, because log Γ of a sharp peak would cancel all digits of a float32.
    """
    a, b, log_beta, first_a, first_b, second_a, second_b, both, slope_a, slope_b = _shape(raw_a, raw_b)
    x = action.to(tl.float64)
    log_x, log_rest = tl.log(x), _log1p(-x)
    log_prob = a * log_x + b * log_rest - log_beta
    entropy = log_beta - a * first_a - b * first_b
    kl, of_a, of_b = a * 0.0, a * 0.0, a * 0.0
    if ENTROPY:
        of_a -= bonus * ((a + b) * both - a * second_a)
        of_b -= bonus * ((a + b) * both - b * second_b)
    if KL:
        then_a, then_b, old_log_beta, old_first_a, old_first_b, _, _, _, _, _ = _shape(old_a, old_b)
        kl = log_beta - old_log_beta + (then_a - a) * old_first_a + (then_b - b) * old_first_b
        of_a += beta * (first_a - old_first_a)
        of_b += beta * (first_b - old_first_b)
    return (
        log_prob.to(tl.float32),
        entropy.to(tl.float32),
        kl.to(tl.float32),
        ((log_x - first_a) * slope_a).to(tl.float32),
        ((log_rest - first_b) * slope_b).to(tl.float32),
        (of_a * slope_a).to(tl.float32),
        (of_b * slope_b).to(tl.float32),
    )
