"""What the parts of an action say of it, by the kernel, at parameters that training rarely reaches, and row by row."""

import os

import pytest
import torch

from surefoot.kernels.heads import BERNOULLI, BETA, CATEGORICAL, GAUSSIAN, TANH_GAUSSIAN, KernelPart
from surefoot.math.distributions import Bernoulli, Beta, Categorical, DiagGaussian, TanhGaussian
from surefoot.math.distributions.discrete import masked_fill_value

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
pytest.importorskip("triton")

FORBIDDEN = masked_fill_value(torch.float32)
SCALE = 0.3  # the log of an action's scale
# (distribution, part, parameters, old parameters, actions), a row each
EXTREMES = {
    "a choice that is certain, and forbidden ones": (
        Categorical,
        KernelPart(CATEGORICAL, 4),
        [[1e4, -1e4, 0.0, 3.0], [FORBIDDEN, 2.0, FORBIDDEN, -50.0], [0.0, 0.0, 0.0, FORBIDDEN], [1e-6, 0.0, 0.0, 0.0]],
        [[9e3, -1e4, 1.0, 3.0], [FORBIDDEN, 2.5, FORBIDDEN, -49.0], [0.5, 0.0, 0.0, FORBIDDEN], [0.0, 0.0, 0.0, 0.0]],
        [0, 3, 2, 1],
    ),
    "bits that are certain": (
        Bernoulli,
        KernelPart(BERNOULLI, 3),
        [[200.0, -200.0, 20.0], [0.0, 1e-7, -20.0], [-90.0, 90.0, 5.0]],
        [[190.0, -200.0, 21.0], [0.0, 1e-3, -20.0], [-80.0, 90.0, 4.0]],
        [[1, 1, 1], [0, 1, 0], [0, 0, 1]],
    ),
    "narrow and wide Gaussians": (
        DiagGaussian.from_params,
        KernelPart(GAUSSIAN, 2),
        [[0.5, -1e3, -20.0, 5.0], [100.0, 0.0, -5.0, 0.0]],
        [[0.50000006, -1.1e3, -20.0, 4.0], [100.01, 0.0, -4.9, 0.0]],
        [[0.5000001, 700.0], [100.003, -9.0]],
    ),
    "tanh at its bounds": (
        lambda params: TanhGaussian.from_params(params, SCALE),
        KernelPart(TANH_GAUSSIAN, 2, SCALE),
        [[50.0, -50.0, -3.0, 5.0], [0.0, 1e-4, 0.0, -8.0], [2.0, -300.0, 3.0, -20.0]],
        [[49.9, -51.0, -3.0, 4.9], [0.0, 1e-4, 0.1, -8.0], [2.5, -300.0, 3.0, -20.0]],
        [[50.1, 200.0], [0.0, 3e-4], [-30.0, -300.0]],
    ),
    "flat and sharp Betas": (
        lambda params: Beta(params, SCALE),
        KernelPart(BETA, 2, SCALE),
        [[1e4, -100.0, 3e4, -100.0], [-30.0, 7.0, 40.0, 6.99], [0.0, 1e6, 0.5, 1e6]],
        [[1.01e4, -90.0, 3e4, -100.0], [-30.0, 7.1, 41.0, 6.9], [0.0, 1.001e6, 0.4, 1e6]],
        [[0.2501, 1e-6], [1e-6, 0.4], [1.0 - 1e-6, 0.5]],
    ),
}


def measured(part, params, old, action):
    """(log π, H, KL, the slopes of log π, the slopes of KL − H), of a part that is alone."""
    from surefoot.kernels.fused_parts import parts_of
    from surefoot.kernels.fused_update import Terms

    terms, numbers = Terms("ratio", beta=0, entropy=1), torch.ones(2)
    parts = parts_of([part], torch.device("cpu"))
    found, along, beside = parts.measured(params, old, action, terms, numbers)
    assert torch.equal(parts.log_prob(params, action), found[0])  # scored as it is learned, to the bit
    return *found, along.T, beside.T


def assert_close(found, truth):
    assert found.isfinite().all()
    torch.testing.assert_close(found.double(), truth, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("case", EXTREMES)
def test_extreme_parameters_are_those_of_float64(case):
    make, part, params, old, action = EXTREMES[case]
    params, old, action = torch.tensor(params), torch.tensor(old), torch.tensor(action)
    found = measured(part, params, old, action)
    wide = params.double().requires_grad_()
    now, then = make(wide), make(old.double())
    log_prob = now.log_prob(action.double() if action.is_floating_point() else action)
    entropy, kl = now.entropy(), then.kl_to(now)
    (along,) = torch.autograd.grad(log_prob.sum(), wide, retain_graph=True)
    (beside,) = torch.autograd.grad((kl - entropy).sum(), wide)
    for ours, truth in zip(found, (log_prob, entropy, kl, along, beside), strict=True):
        assert_close(ours, truth.detach())


def test_a_row_does_not_depend_on_its_batch():
    from surefoot.kernels.fused_parts import parts_of

    kinds = (CATEGORICAL, BERNOULLI, GAUSSIAN, TANH_GAUSSIAN, BETA)
    parts = parts_of([KernelPart(kind, size) for kind in kinds for size in (3, 2)], torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    params = torch.randn(150, parts.params, generator=generator)
    action = torch.randint(0, 2, (150, parts.actions), generator=generator).float().clamp(0.1, 0.9)
    action[:, :2] = action[:, :2].round()
    whole = parts.log_prob(params, action)
    assert torch.equal(parts.log_prob(params[97:], action[97:]), whole[97:])
    assert torch.equal(parts.log_prob(params.flip(0), action.flip(0)), whole.flip(0))
    assert torch.equal(parts.log_prob(params.view(3, 50, -1), action.view(3, 50, -1)), whole.view(3, 50))


def test_no_rows_have_no_score():
    from surefoot.kernels.fused_parts import parts_of

    parts = parts_of([KernelPart(BERNOULLI, 2)], torch.device("cpu"))
    assert parts.log_prob(torch.zeros(4, 0, 2), torch.zeros(4, 0, 2)).shape == (4, 0)
