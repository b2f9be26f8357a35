"""Products of float32 matrices on tensor cores, for fused kernels. Import it late: it needs Triton.

A number is the sum of three bfloat16 parts of 8 bits each, which is all that float32 holds. Six of the nine products of
parts are added, the smallest first; the other three are below float32's rounding. Results of such a product can be an
operand of the next one without leaving the registers, which TensorFloat-32 does not allow. Two parts (P = 2) have 16
bits, more than the 11 of TensorFloat-32, and need three products; one part is a bfloat16 number.
"""

from __future__ import annotations

import triton
import triton.language as tl

FAST = tl.constexpr(not triton.knobs.runtime.interpret)  # the interpreter knows no assembly, nor products of bfloat16


@triton.jit
def _bound(n):
    """A loop's bound that is not known at compile time. The interpreter's numbers are arrays, which `range` refuses."""
    if FAST:
        return n
    else:  # noqa: RET505 # Triton compiles what follows a return
        return n.handle.data.item()


@triton.jit
def _cut(x):
    """The upper 16 bits of each number, as bfloat16 and as float32. Integer operations: conversions are slower."""
    bits = x.to(tl.int32, bitcast=True)
    short = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return short, (bits & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _parts(x, P: tl.constexpr):
    """The first P parts of each number. The sum of three is exact."""
    if P == 1:
        high = x.to(tl.bfloat16)
        middle, low = high, high
    else:
        high, upper = _cut(x)
        middle, inner = _cut(x - upper)
        low = middle
        if P == 3:
            low, _ = _cut(x - upper - inner)
    return high, middle, low


@triton.jit
def _transposed(parts):
    return tl.trans(parts[0]), tl.trans(parts[1]), tl.trans(parts[2])


@triton.jit
def _plus(found, a, b):
    """found + a·b."""
    if not FAST:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, found)


@triton.jit
def _product(a, b, P: tl.constexpr):
    """a·b from the parts of both."""
    found = tl.zeros((a[0].shape[0], b[0].shape[1]), tl.float32)
    if P == 3:
        found = _plus(found, a[2], b[0])
        found = _plus(found, a[1], b[1])
        found = _plus(found, a[0], b[2])
    if P >= 2:
        found = _plus(found, a[1], b[0])
        found = _plus(found, a[0], b[1])
    return _plus(found, a[0], b[0])


@triton.jit
def _row_sums(a, ones, P: tl.constexpr):
    """The sum of each row of a, in every column, from its parts; `ones`: a matrix of them."""
    found = tl.zeros((a[0].shape[0], ones.shape[1]), tl.float32)
    if P == 3:
        found = _plus(found, a[2], ones)
    if P >= 2:
        found = _plus(found, a[1], ones)
    return _plus(found, a[0], ones)
