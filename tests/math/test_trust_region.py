import math

import pytest
import torch
from torch import nn

from surefoot.math.distributions import Categorical, DiagGaussian
from surefoot.math.trust_region import (
    backtrack,
    conjugate_gradient,
    fisher_vector_product,
    flat_gradient,
    step_scale,
)


def symmetric(size, seed=0, condition=10.0):
    """A positive definite matrix with eigenvalues from 1 to `condition`."""
    g = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(size, size, generator=g, dtype=torch.float64))
    return q @ torch.diag(torch.linspace(1.0, condition, size, dtype=torch.float64)) @ q.T


def random_vector(size, seed=1):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_flat_gradient_by_hand():
    x = torch.tensor([[1.0, 2.0]], requires_grad=True)
    y = torch.tensor(3.0, requires_grad=True)
    unused = torch.tensor([5.0, 5.0], requires_grad=True)
    # ∂(x0² + x0·x1·y) = 2x0 + x1·y, x0·y, x0·x1
    gradient = flat_gradient(x[0, 0] ** 2 + x[0, 0] * x[0, 1] * y, [x, unused, y])
    assert gradient.tolist() == [8.0, 3.0, 0.0, 0.0, 2.0]


@pytest.fixture
def small_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4)).double()


def explicit_fisher(net, inputs, kind):
    """E_s E_a[∇log π ∇log πᵀ], the expectation over actions exact.

    Categorical: a sum over the actions. DiagGaussian: Σ_d over the Fisher information of (mean, log σ), which is
    diag(1/σ², 2), pulled back through the Jacobian of the network.
    """
    parameters = list(net.parameters())
    total = 0.0
    for x in inputs:
        params = net(x)
        rows = torch.stack([flat_gradient(out, parameters, retain_graph=True) for out in params])
        if kind is Categorical:
            p = torch.softmax(params, -1).detach()
            for action in range(len(p)):
                score = rows[action] - p @ rows  # ∇log p_a = ∇z_a − Σ_b p_b ∇z_b
                total = total + p[action] * torch.outer(score, score)
        else:
            log_std = params[2:].detach()
            information = torch.cat([torch.exp(-2 * log_std), torch.full((2,), 2.0)])
            total = total + rows.T @ torch.diag(information.double()) @ rows
    return total / len(inputs)


@pytest.mark.parametrize("kind", [Categorical, DiagGaussian])
@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_fisher_vector_product_is_the_explicit_fisher_matrix(small_net, kind, damping):
    inputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    make = Categorical if kind is Categorical else DiagGaussian.from_params
    parameters = list(small_net.parameters())
    params = small_net(inputs)
    product = fisher_vector_product(make(params.detach()).kl_to(make(params)).mean(), parameters, damping)
    size = sum(p.numel() for p in parameters)
    matrix = torch.stack([product(e) for e in torch.eye(size, dtype=torch.float64)])
    expected = explicit_fisher(small_net, inputs, kind) + damping * torch.eye(size, dtype=torch.float64)
    torch.testing.assert_close(matrix, expected, atol=1e-10, rtol=1e-8)


def test_explicit_fisher_of_a_gaussian_is_that_of_its_sampled_scores():
    mean, log_std = torch.tensor([0.5], requires_grad=True), torch.tensor([0.4], requires_grad=True)
    action = 0.5 + math.exp(0.4) * torch.randn(200_000, generator=torch.Generator().manual_seed(2))
    z = (action - 0.5) / math.exp(0.4)
    scores = torch.stack([z / math.exp(0.4), z**2 - 1])  # ∂/∂mean, ∂/∂log σ of log π
    d = DiagGaussian(mean, log_std)
    product = fisher_vector_product(DiagGaussian(mean.detach(), log_std.detach()).kl_to(d), [mean, log_std])
    matrix = torch.stack([product(e) for e in torch.eye(2)])
    torch.testing.assert_close(matrix, scores @ scores.T / 200_000, atol=0.05, rtol=0)
    torch.testing.assert_close(matrix, torch.diag(torch.tensor([math.exp(-0.8), 2.0])))


@pytest.mark.parametrize("size", [1, 5, 20])
def test_conjugate_gradient_solves_in_as_many_steps_as_dimensions(size):
    a, b = symmetric(size), random_vector(size)
    x = conjugate_gradient(lambda v: a @ v, b, iterations=size, tolerance=0.0)
    torch.testing.assert_close(x, torch.linalg.solve(a, b), atol=1e-9, rtol=1e-7)


def test_conjugate_gradient_by_hand():
    a, b = torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([2.0, 2.0])
    # one step: α = bᵀb / bᵀAb = 8 / 24 = ⅓, x = ⅓·b;  two steps: the solution 1, ½
    assert conjugate_gradient(lambda v: a @ v, b, iterations=1).tolist() == pytest.approx([2 / 3, 2 / 3])
    assert conjugate_gradient(lambda v: a @ v, b, iterations=2).tolist() == pytest.approx([1.0, 0.5])


def test_conjugate_gradient_stops_when_the_residual_is_small():
    a, b, calls = symmetric(30, condition=1.5), random_vector(30), []

    def product(v):
        calls.append(v)
        return a @ v

    x = conjugate_gradient(product, b, iterations=30, tolerance=1e-4)
    assert len(calls) < 10
    assert (b - a @ x).norm() ** 2 <= 1e-4 * b.norm() ** 2 * 1.001


def test_conjugate_gradient_of_zero_is_zero_without_a_product():
    def never(_):
        raise AssertionError

    assert conjugate_gradient(never, torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("b", [[1.0, 1.0], [float("nan"), 1.0]])
def test_conjugate_gradient_stops_at_a_direction_that_is_not_positive(b):
    assert conjugate_gradient(lambda v: -v, torch.tensor(b)).tolist() == [0.0, 0.0]


def test_conjugate_gradient_leaves_b_alone():
    b = torch.ones(3)
    conjugate_gradient(lambda v: 2 * v, b)
    assert b.tolist() == [1.0, 1.0, 1.0]


def test_step_scale_by_hand():
    # x = (1, 2), F = diag(2, 3):  xᵀFx = 2 + 12 = 14;  √(2·0.07/14) = 0.1
    scale = step_scale(torch.tensor([1.0, 2.0]), lambda v: torch.tensor([2.0, 3.0]) * v, max_kl=0.07)
    assert scale == pytest.approx(0.1)


def test_curvature_is_summed_in_float64():
    # 10⁸ + 1 − 10⁸ = 1, and 0 in float32:  √(2·0.5/1) = 1
    scale = step_scale(torch.tensor([1e4, 1.0, 1e4]), lambda v: torch.tensor([1.0, 1.0, -1.0]) * v, max_kl=0.5)
    assert scale == pytest.approx(1.0)


def test_scaled_step_reaches_the_kl_bound_of_the_quadratic_model():
    f, x = symmetric(6), random_vector(6)
    step = step_scale(x, lambda v: f @ v, 0.01) * x
    assert (0.5 * step @ f @ step).item() == pytest.approx(0.01)


@pytest.mark.parametrize("curvature", [0.0, -1.0, float("nan")])
def test_step_scale_is_zero_where_the_curvature_is_not_positive(curvature):
    assert step_scale(torch.ones(2), lambda v: curvature * v, 0.01) == 0.0


def test_backtrack_takes_the_whole_step_where_it_may():
    assert backtrack(lambda fraction: True) == 1.0


def test_backtrack_returns_the_first_accepted_fraction():
    asked = []

    def accept(fraction):
        asked.append(fraction)
        return fraction < 0.6

    assert backtrack(accept, factor=0.8) == pytest.approx(0.8**3)
    assert asked == pytest.approx([1.0, 0.8, 0.64, 0.512])


def test_backtrack_gives_up_after_its_tries():
    asked = []
    assert backtrack(lambda fraction: bool(asked.append(fraction)), factor=0.5, tries=4) is None
    assert asked == [1.0, 0.5, 0.25, 0.125]


def test_backtrack_may_accept_on_its_last_try():
    assert backtrack(lambda fraction: fraction == 0.25, factor=0.5, tries=3) == 0.25
