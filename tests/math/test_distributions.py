import math

import pytest
import torch
from torch import distributions as reference

from surefoot.math.distributions import Categorical, DiagGaussian


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_pair(kind, seed=0):
    """Two distributions of one kind over a batch [5, 3], ours and torch's."""
    g = generator(seed)
    shape = (5, 3, 4) if kind is Categorical else (5, 3, 6)
    params = [torch.randn(shape, generator=g, dtype=torch.float64) for _ in range(2)]
    if kind is Categorical:
        return [Categorical(p) for p in params], [reference.Categorical(logits=p) for p in params]
    ours = [DiagGaussian.from_params(p) for p in params]
    return ours, [reference.Independent(reference.Normal(o.mean, o.log_std.exp()), 1) for o in ours]


KINDS = pytest.mark.parametrize("kind", [Categorical, DiagGaussian])


def test_categorical_by_hand():
    # softmax(log 1, log 3) = ¼, ¾
    d = Categorical(torch.tensor([[0.0, math.log(3.0)]]))
    assert d.log_prob(torch.tensor([1])).item() == pytest.approx(math.log(0.75))
    # H = ¼ log 4 + ¾ log 4/3
    assert d.entropy().item() == pytest.approx(0.25 * math.log(4) + 0.75 * math.log(4 / 3))
    even = Categorical(torch.zeros(1, 2))
    # KL(d‖even) = ¼ log ½ + ¾ log 3/2;  KL(even‖d) = ½ log 2 + ½ log ⅔
    assert d.kl_to(even).item() == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5), rel=1e-5)
    assert even.kl_to(d).item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), rel=1e-5)


def test_gaussian_by_hand():
    d = DiagGaussian(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, math.log(2.0)]]))
    # dim 1: −½·2² − 0 − ½ log 2π;  dim 2: −½·(4/2)² − log 2 − ½ log 2π
    assert d.log_prob(torch.tensor([[3.0, 4.0]])).item() == pytest.approx(-4 - math.log(2) - math.log(2 * math.pi))
    # log 1 + log 2 + 2·½(1 + log 2π): a sum over the dimensions, not a mean
    assert d.entropy().item() == pytest.approx(math.log(2) + 1 + math.log(2 * math.pi))


def test_kl_of_gaussians_goes_from_self_to_other():
    narrow = DiagGaussian(torch.tensor([[0.0]]), torch.tensor([[0.0]]))
    wide = DiagGaussian(torch.tensor([[1.0]]), torch.tensor([[math.log(2.0)]]))
    # KL(narrow‖wide) = log 2 + (1 + 1)/(2·4) − ½ = log 2 − ¼
    assert narrow.kl_to(wide).item() == pytest.approx(math.log(2) - 0.25)
    # KL(wide‖narrow) = −log 2 + (4 + 1)/2 − ½ = 2 − log 2
    assert wide.kl_to(narrow).item() == pytest.approx(2 - math.log(2))


@KINDS
def test_log_prob_entropy_and_kl_agree_with_torch(kind):
    (p, q), (ref_p, ref_q) = random_pair(kind)
    action = ref_q.sample()
    torch.testing.assert_close(p.log_prob(action), ref_p.log_prob(action))
    torch.testing.assert_close(p.entropy(), ref_p.entropy())
    torch.testing.assert_close(p.kl_to(q), reference.kl_divergence(ref_p, ref_q))
    assert p.log_prob(action).shape == p.entropy().shape == p.kl_to(q).shape == (5, 3)


@KINDS
def test_kl_to_itself_is_zero_with_zero_gradient(kind):
    params = torch.randn(8, 4, generator=generator(), dtype=torch.float64, requires_grad=True)
    make = Categorical if kind is Categorical else DiagGaussian.from_params
    kl = make(params.detach()).kl_to(make(params))
    torch.testing.assert_close(kl, torch.zeros_like(kl))
    (gradient,) = torch.autograd.grad(kl.sum(), params)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))


@KINDS
def test_kl_is_what_sampling_says(kind):
    size, draws = 4, 200_000
    one, other = torch.randn(2, size, generator=generator(3)).unsqueeze(1).expand(2, draws, size)
    make = Categorical if kind is Categorical else DiagGaussian.from_params
    p, q = make(one), make(other)
    action = p.sample(kind.noise((draws, size), generator(1)))
    log_ratio = p.log_prob(action) - q.log_prob(action)
    assert (log_ratio.mean() - p.kl_to(q)[0]).abs() < 4 * log_ratio.std() / draws**0.5


@KINDS
def test_with_params_makes_the_same_kind(kind):
    params = torch.randn(5, 4, generator=generator())
    base = Categorical(params) if kind is Categorical else DiagGaussian.from_params(params)
    other = base.with_params(params)
    assert type(other) is kind
    assert torch.equal(other.kl_to(base), torch.zeros(5))


def test_categorical_sampling_follows_its_probabilities():
    probabilities = torch.tensor([0.05, 0.15, 0.3, 0.5], dtype=torch.float64)
    draws = 100_000
    noise = Categorical.noise((draws, 4), generator(5))
    action = Categorical.draw(probabilities.log().float().expand(draws, 4), noise)
    counts = torch.bincount(action, minlength=4).double()
    chi_square = ((counts - draws * probabilities) ** 2 / (draws * probabilities)).sum().item()
    assert chi_square < 16.27  # the 99.9 % point with 3 degrees of freedom


def test_categorical_sampling_does_not_depend_on_a_shift_of_the_logits():
    logits, noise = torch.randn(1000, 3, generator=generator(1)), Categorical.noise((1000, 3), generator(2))
    assert torch.equal(Categorical.draw(logits, noise), Categorical(logits + 3.0).sample(noise))


def test_gumbel_noise_is_finite_and_of_the_right_mean():
    noise = Categorical.noise((400_000,), generator(7))
    assert noise.isfinite().all()
    # Euler's constant and π²/6; the standard error of the mean is 1.28/√400000 = 0.002
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.008)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, rel=0.02)


def test_gumbel_noise_is_finite_at_the_ends_of_the_uniform(monkeypatch):
    ends = torch.tensor([0.0, 1 - 2**-24, 1.0])
    monkeypatch.setattr(torch, "rand", lambda *_, **__: ends.clone())
    assert Categorical.noise((3,), generator()).isfinite().all()


def test_gaussian_sampling_has_its_mean_and_std_and_independent_dimensions():
    mean, log_std = torch.tensor([1.0, -2.0]), torch.tensor([math.log(0.5), math.log(3.0)])
    params = torch.cat([mean, log_std]).expand(200_000, 4)
    noise = DiagGaussian.noise((200_000, 4), generator(8))
    action = DiagGaussian.draw(params, noise)
    assert action.shape == (200_000, 2)
    torch.testing.assert_close(action.mean(0), mean, atol=0.03, rtol=0)
    torch.testing.assert_close(action.std(0), log_std.exp(), atol=0, rtol=0.01)
    assert torch.corrcoef(action.T)[0, 1].abs() < 0.01
    assert torch.equal(action, DiagGaussian.from_params(params).sample(noise))


@KINDS
def test_the_same_generator_state_gives_the_same_noise(kind):
    assert torch.equal(kind.noise((3, 4), generator(1)), kind.noise((3, 4), generator(1)))
    assert not torch.equal(kind.noise((3, 4), generator(1)), kind.noise((3, 4), generator(2)))


def test_the_mode_is_the_likeliest_action():
    assert Categorical(torch.tensor([[0.0, 2.0, 1.0]])).mode().tolist() == [1]
    assert DiagGaussian(torch.tensor([[1.5]]), torch.tensor([[0.3]])).mode().tolist() == [[1.5]]


@KINDS
def test_extreme_parameters_stay_finite(kind):
    params = torch.tensor([[1000.0, -1000.0, 0.0, 3.0]]) if kind is Categorical else torch.tensor([[1e3, -1e3, 5, -20]])
    d = Categorical(params) if kind is Categorical else DiagGaussian.from_params(params)
    for result in (d.entropy(), d.kl_to(d), d.log_prob(d.mode())):
        assert result.isfinite().all()


def test_gaussian_refuses_a_log_std_that_would_broadcast():
    with pytest.raises(AssertionError):
        DiagGaussian(torch.zeros(5, 2), torch.zeros(2))
