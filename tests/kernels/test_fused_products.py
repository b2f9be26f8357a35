"""Products of bfloat16 parts against float64, in Triton's interpreter."""

import os

import pytest
import torch

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
triton = pytest.importorskip("triton")


def run(a, b, number=3):
    """(the parts of a, added in float64; a·b)."""
    import triton.language as tl

    from surefoot.kernels.fused_products import _parts, _product

    @triton.jit
    def kernel(a_at, b_at, parts_at, found_at, PARTS: tl.constexpr, PRODUCT: tl.constexpr, P: tl.constexpr):
        i = tl.arange(0, 16)
        at = i[:, None] * 16 + i[None, :]
        parts = PARTS(tl.load(a_at + at), P)
        for k in tl.static_range(3):
            tl.store(parts_at + k * 256 + at, parts[k].to(tl.float32))
        tl.store(found_at + at, PRODUCT(parts, PARTS(tl.load(b_at + at), P), P))

    parts, found = torch.zeros(3, 16, 16), torch.zeros(16, 16)
    kernel[(1,)](a, b, parts, found, PARTS=_parts, PRODUCT=_product, P=number)
    return parts, found


@pytest.fixture(params=(1e-3, 1.0, 1e4))
def matrices(request):
    generator = torch.Generator().manual_seed(0)
    return [request.param * torch.randn(16, 16, generator=generator) for _ in range(2)]


def test_three_parts_are_the_number(matrices):
    parts, _ = run(*matrices)
    assert torch.equal(parts.double().sum(0), matrices[0].double())
    assert torch.equal(parts.bfloat16().float(), parts)


def test_a_product_is_as_exact_as_that_of_float32(matrices):
    a, b = matrices
    truth = a.double() @ b.double()
    error, usual = (float((found - truth).norm() / truth.norm()) for found in (run(a, b)[1], a @ b))
    assert error < max(3e-7, 2 * usual)


@pytest.mark.parametrize(("number", "most"), [(2, 4e-5), (1, 1e-2)])
def test_fewer_parts_are_less_exact(number, most, matrices):
    """Two parts are more exact than TensorFloat-32, whose rounding gives 3e-4; one part is bfloat16."""
    a, b = matrices
    truth = a.double() @ b.double()
    error = float((run(a, b, number)[1] - truth).norm() / truth.norm())
    assert most / 50 < error < most
