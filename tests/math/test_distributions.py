import math
from itertools import product

import pytest
import torch
from torch import distributions as reference

from surefoot.math.distributions import (
    Bernoulli,
    Beta,
    Categorical,
    Composite,
    DiagGaussian,
    MultiCategorical,
    Part,
    TanhGaussian,
    mask_logits,
)


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
    action = kind.draw(one, kind.noise((draws, size), generator(1)))
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
    assert torch.equal(Categorical.draw(logits, noise), Categorical.draw(logits + 3.0, noise))


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


SIZES = (3, 1, 4)
LOG_HALF, LOG_WIDTH = 0.7, 0.4  # of two dimensions together
COMPOSITE = [
    Part(Categorical, slice(0, 3), slice(0, 1), slice(0, 3), torch.int64, scalar=True),
    Part(DiagGaussian.from_params, slice(3, 7), slice(1, 3), slice(3, 5), torch.float32, scalar=False),
    Part(Bernoulli, slice(7, 9), slice(3, 5), slice(5, 7), torch.int64, scalar=False),
]


def composite_noise(shape, generator):
    kinds = [(Categorical, 3), (DiagGaussian, 4), (Bernoulli, 2)]
    return torch.cat([kind.noise((*shape[:-1], size), generator) for kind, size in kinds], dim=-1)


def composite_draw(params, noise):
    kinds = zip(COMPOSITE, (Categorical, DiagGaussian, Bernoulli), strict=True)
    drawn = [part.column(kind.draw(params[..., part.params], noise[..., part.noise])) for part, kind in kinds]
    return torch.cat(drawn, dim=-1)


def multi_draw(sizes):
    return lambda params, noise: MultiCategorical.draw(params, noise, sizes)


# name: (from params, number of params, noise for that many params, actions from params and noise)
MAKE = {
    "multi": (lambda p: MultiCategorical(p, SIZES), 8, MultiCategorical.noise, multi_draw(SIZES)),
    "multi of one size": (lambda p: MultiCategorical(p, (4, 4)), 8, MultiCategorical.noise, multi_draw((4, 4))),
    "bernoulli": (Bernoulli, 4, Bernoulli.noise, Bernoulli.draw),
    "tanh": (lambda p: TanhGaussian.from_params(p, LOG_HALF), 4, TanhGaussian.noise, TanhGaussian.draw),
    "beta": (lambda p: Beta(p, LOG_WIDTH), 4, Beta.noise, Beta.draw),
    "composite": (lambda p: Composite(p, COMPOSITE), 9, composite_noise, composite_draw),
}
EVERY = pytest.mark.parametrize("name", MAKE)


@EVERY
def test_every_kl_is_zero_to_itself_with_zero_gradient_and_a_positive_curvature(name):
    make, size, *_ = MAKE[name]
    params = torch.randn(8, size, generator=generator(), dtype=torch.float64, requires_grad=True)
    kl = make(params.detach()).kl_to(make(params))
    torch.testing.assert_close(kl, torch.zeros_like(kl))
    (gradient,) = torch.autograd.grad(kl.sum(), params, create_graph=True)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))
    direction = torch.randn(params.shape, generator=generator(1), dtype=torch.float64)
    (image,) = torch.autograd.grad((gradient * direction).sum(), params)  # as TRPO does
    assert ((image * direction).sum(-1) > 0).all()


@EVERY
def test_every_kl_is_what_sampling_says(name):
    make, size, noise, draw = MAKE[name]
    draws = 200_000
    one, other = torch.randn(2, size, generator=generator(3))
    p, q = make(one.expand(draws, size)), make(other.expand(draws, size))
    action = draw(one.expand(draws, size), noise((draws, size), generator(1)))
    log_ratio = p.log_prob(action) - q.log_prob(action)
    kl = make(one).kl_to(make(other))
    assert kl > 0.01
    assert (log_ratio.mean() - kl).abs() < 4 * log_ratio.std() / draws**0.5


@EVERY
def test_every_entropy_is_what_sampling_says(name):
    make, size, noise, draw = MAKE[name]
    draws = 200_000
    params = torch.randn(size, generator=generator(4))
    p = make(params.expand(draws, size))
    surprise = -p.log_prob(draw(params.expand(draws, size), noise((draws, size), generator(1))))
    assert (surprise.mean() - make(params).entropy()).abs() < 4 * surprise.std() / draws**0.5 + 1e-4


@EVERY
def test_every_score_has_mean_zero(name):
    # E[∇ log π(a)] = 0: sampling and log_prob are of one distribution
    make, size, noise, draw = MAKE[name]
    draws = 100_000
    params = torch.randn(size, generator=generator(5)).expand(draws, size).clone().requires_grad_()
    action = draw(params.detach(), noise((draws, size), generator(2)))
    (score,) = torch.autograd.grad(make(params).log_prob(action).sum(), params)
    assert (score.mean(0).abs() <= 4.5 * score.std(0) / draws**0.5 + 1e-7).all()


@EVERY
def test_every_distribution_has_the_batchs_shape_and_stays_of_its_kind(name):
    make, size, noise, draw = MAKE[name]
    params = torch.randn(5, 3, size, generator=generator())
    d = make(params)
    action = draw(params, noise((5, 3, size), generator(1)))
    assert action.shape == d.mode().shape
    assert action.shape[:-1] == (5, 3)
    assert d.log_prob(action).shape == d.entropy().shape == d.kl_to(d).shape == (5, 3)
    assert d.log_prob(action).dtype == d.entropy().dtype == d.kl_to(d).dtype == torch.float32
    again = d.with_params(params)
    assert type(again) is type(d)
    assert torch.equal(again.log_prob(action), d.log_prob(action))


@EVERY
def test_every_distribution_stays_finite_at_extreme_parameters(name):
    make, size, noise, draw = MAKE[name]
    for scale in (30.0, -30.0):
        params = (scale * torch.tensor([1.0, -1.0]).repeat(10)[:size]).requires_grad_()
        if name in ("tanh", "composite"):
            params = params.clamp(-20.0, 5.0)
        d = make(params)
        action = draw(params, noise((size,), generator())).detach()
        results = [d.entropy(), d.kl_to(make(params.detach())), d.log_prob(action), d.log_prob(d.mode().detach())]
        gradients = torch.autograd.grad(sum(results), params)
        assert all(x.isfinite().all() for x in (*results, *gradients))


@EVERY
def test_every_noise_repeats_with_its_generator(name):
    _, size, noise, _ = MAKE[name]
    assert torch.equal(noise((6, size), generator(1)), noise((6, size), generator(1)))
    assert not torch.equal(noise((6, size), generator(1)), noise((6, size), generator(2)))


def chi_square(action, probability):
    """Of whole actions `[draws, K]` against {action: probability}, over its degrees of freedom."""
    draws = len(action)
    seen, counts = action.unique(dim=0, return_counts=True)
    count = {tuple(row): n for row, n in zip(seen.tolist(), counts.tolist(), strict=True)}
    assert set(count) <= set(probability)
    return sum((count.get(a, 0) - draws * p) ** 2 / (draws * p) for a, p in probability.items())


def test_multi_categorical_by_hand():
    # softmax(log 1, log 3) = ¼, ¾ and softmax(0, 0, log 2) = ¼, ¼, ½
    d = MultiCategorical(torch.tensor([[0.0, math.log(3), 0.0, 0.0, math.log(2)]]), (2, 3))
    assert d.log_prob(torch.tensor([[1, 2]])).item() == pytest.approx(math.log(0.75 * 0.5))
    by_hand = 0.25 * math.log(4) + 0.75 * math.log(4 / 3) + 2 * 0.25 * math.log(4) + 0.5 * math.log(2)
    assert d.entropy().item() == pytest.approx(by_hand)
    even = MultiCategorical(torch.zeros(1, 5), (2, 3))
    # KL to even: Σ log sizes − H
    assert d.kl_to(even).item() == pytest.approx(math.log(6) - by_hand, rel=1e-5)
    assert d.mode().tolist() == [[1, 2]]


@pytest.mark.parametrize("sizes", [(3, 1, 4), (2, 2, 2), (5,)])
def test_multi_categorical_sums_to_one_and_is_drawn_as_it_says(sizes):
    logits = torch.randn(sum(sizes), generator=generator(1))
    d = MultiCategorical(logits, sizes)
    actions = list(product(*(range(n) for n in sizes)))
    probability = {a: d.log_prob(torch.tensor(a)).exp().item() for a in actions}
    assert sum(probability.values()) == pytest.approx(1.0, abs=1e-6)
    draws = 100_000
    noise = MultiCategorical.noise((draws, sum(sizes)), generator(2))
    action = MultiCategorical.draw(logits.expand(draws, -1), noise, sizes)
    assert action.dtype == torch.int64
    freedom = len(actions) - 1
    assert chi_square(action, probability) < freedom + 4 * (2 * freedom) ** 0.5


def test_multi_categorical_is_its_categoricals():
    logits, others = torch.randn(2, 7, 8, generator=generator(1), dtype=torch.float64)
    p, q = MultiCategorical(logits, SIZES), MultiCategorical(others, SIZES)
    each = [Categorical(part) for part in logits.split(SIZES, -1)]
    them = [Categorical(part) for part in others.split(SIZES, -1)]
    action = torch.stack([d.mode() for d in each], -1)
    torch.testing.assert_close(p.log_prob(action), sum(d.log_prob(d.mode()) for d in each))
    torch.testing.assert_close(p.entropy(), sum(d.entropy() for d in each))
    torch.testing.assert_close(p.kl_to(q), sum(a.kl_to(b) for a, b in zip(each, them, strict=True)))


def test_bernoulli_by_hand():
    # σ(log 3) = ¾, σ(0) = ½
    d = Bernoulli(torch.tensor([[math.log(3), 0.0]]))
    assert d.log_prob(torch.tensor([[1, 0]])).item() == pytest.approx(math.log(0.75 * 0.5))
    assert d.log_prob(torch.tensor([[0, 1]])).item() == pytest.approx(math.log(0.25 * 0.5))
    entropy = 0.25 * math.log(4) + 0.75 * math.log(4 / 3) + math.log(2)
    assert d.entropy().item() == pytest.approx(entropy)
    assert d.kl_to(Bernoulli(torch.zeros(1, 2))).item() == pytest.approx(2 * math.log(2) - entropy, rel=1e-5)
    assert d.mode().tolist() == [[1, 0]]
    # log σ(−30) ≈ −30, and log σ(30) = −e⁻³⁰ is not lost
    sure = Bernoulli(torch.tensor([[30.0]]))
    assert sure.log_prob(torch.tensor([[0]])).item() == pytest.approx(-30)
    assert sure.log_prob(torch.tensor([[1]])).item() == pytest.approx(-math.exp(-30), rel=1e-5)


def test_bernoulli_is_drawn_as_it_says():
    logits, draws = torch.tensor([-1.5, 0.3, 2.0]), 100_000
    d = Bernoulli(logits)
    probability = {a: d.log_prob(torch.tensor(a)).exp().item() for a in product((0, 1), repeat=3)}
    assert sum(probability.values()) == pytest.approx(1.0, abs=1e-6)
    action = Bernoulli.draw(logits.expand(draws, 3), Bernoulli.noise((draws, 3), generator(4)))
    assert action.dtype == torch.int64
    assert chi_square(action, probability) < 24.3  # the 99.9 % point with 7 degrees of freedom


def test_logistic_noise_is_finite_at_the_ends_of_the_uniform(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor([0.0, 1 - 2**-24, 1.0]))
    assert Bernoulli.noise((3,), generator()).isfinite().all()


def integrate(density, low, high, points=200_001):
    """Of a function on a grid, float64."""
    x = torch.linspace(low, high, points, dtype=torch.float64)
    return torch.trapezoid(density(x), x).item()


def test_tanh_gaussian_is_a_density_of_the_envs_action():
    # One dimension, a = 3 + 2·tanh(u): ∫ exp(log_prob) da = 1 over the bounds
    d = TanhGaussian(*torch.tensor([[0.4], [-0.5]], dtype=torch.float64), math.log(2.0))

    def density(a):
        return d.log_prob(torch.atanh((a - 3) / 2).unsqueeze(-1)).exp()

    assert integrate(density, 1 + 1e-9, 5 - 1e-9) == pytest.approx(1.0, abs=1e-6)
    # at u = 0.4: N = 1/(σ√2π), |da/du| = 2·(1 − tanh² 0.4)
    by_hand = 0.5 - 0.5 * math.log(2 * math.pi) - math.log(2 * (1 - math.tanh(0.4) ** 2))
    assert d.log_prob(torch.tensor([0.4], dtype=torch.float64)).item() == pytest.approx(by_hand)
    assert d.mode().tolist() == [0.4]


@pytest.mark.parametrize(("std", "tolerance"), [(0.05, 1e-9), (0.5, 1e-9), (1.0, 1e-6), (2.0, 2e-4), (5.0, 0.03)])
@pytest.mark.parametrize("mean", [0.0, 0.7, -3.0])
def test_the_entropy_of_a_tanh_gaussian_is_its_integral(mean, std, tolerance):
    d = TanhGaussian(*torch.tensor([[mean], [math.log(std)]], dtype=torch.float64), math.log(2.0))

    def surprise(u):  # ∫ −p(a) log p(a) da = ∫ −N(u) log p(a(u)) du
        return -d.gaussian.log_prob(u.unsqueeze(-1)).exp() * d.log_prob(u.unsqueeze(-1))

    assert d.entropy().item() == pytest.approx(integrate(surprise, mean - 12 * std, mean + 12 * std), abs=tolerance)


def test_the_log_prob_of_a_tanh_gaussian_far_outside_is_exact():
    # 1 − tanh² 50 = 4e⁻¹⁰⁰ is 0 in float32: −½·50² − ½ log 2π − log 4 + 100
    d = TanhGaussian(torch.zeros(1), torch.zeros(1), 0.0)
    expected = -1250 - 0.5 * math.log(2 * math.pi) - math.log(4) + 100
    for sign in (1, -1):
        assert d.log_prob(torch.tensor([sign * 50.0])).item() == pytest.approx(expected)


def test_the_bounds_of_a_squashed_action_cancel_in_a_ratio_and_a_kl():
    params, others = torch.randn(2, 9, 4, generator=generator(2), dtype=torch.float64)
    action = torch.randn(9, 2, generator=generator(3), dtype=torch.float64)
    tanh = [TanhGaussian.from_params(p, 3.0) for p in (params, others)]
    plain = [DiagGaussian.from_params(p) for p in (params, others)]
    ratio = plain[0].log_prob(action) - plain[1].log_prob(action)
    torch.testing.assert_close(tanh[0].log_prob(action) - tanh[1].log_prob(action), ratio)
    torch.testing.assert_close(tanh[0].kl_to(tanh[1]), plain[0].kl_to(plain[1]))


def raw(*shapes):
    """Raw parameters of these α and β: softplus⁻¹(x − 1)."""
    return torch.tensor([math.log(math.expm1(x - 1)) for x in shapes], dtype=torch.float64)


def test_beta_by_hand():
    # Beta(2, 3): p(x) = 12 x (1 − x)²; on a range of 2, half of that
    d = Beta(raw(2, 3), math.log(2.0))
    assert d.log_prob(torch.tensor([0.5])).item() == pytest.approx(math.log(12 * 0.125 / 2))
    # the peak at (2 − 1)/(2 + 3 − 2)
    assert d.mode().item() == pytest.approx(1 / 3)
    # Beta(2, 2): H = log B(2, 2) − 2ψ(2) + 2ψ(4) = −log 6 + 2·(½ + ⅓)
    assert Beta(raw(2, 2), 0.0).entropy().item() == pytest.approx(-math.log(6) + 5 / 3)
    # KL(Beta(2, 2)‖Beta(2, 3)) = log B(2, 3)/B(2, 2) + ψ(4) − ψ(2) = log ½ + ⅚
    assert Beta(raw(2, 2), 5.0).kl_to(d).item() == pytest.approx(math.log(0.5) + 5 / 6)


def test_beta_agrees_with_torch_and_with_its_integrals():
    p_params, q_params = torch.randn(2, 50, 2, generator=generator(1), dtype=torch.float64) * 3
    p, q = Beta(p_params, 0.3), Beta(q_params, 0.3)
    ours = reference.Beta(p.alpha[..., 0], p.beta[..., 0])
    x = torch.rand(50, 1, generator=generator(2), dtype=torch.float64)
    torch.testing.assert_close(p.log_prob(x), ours.log_prob(x[..., 0]) - 0.3)
    torch.testing.assert_close(p.entropy(), ours.entropy() + 0.3)
    kl = reference.kl_divergence(ours, reference.Beta(q.alpha[..., 0], q.beta[..., 0]))
    torch.testing.assert_close(p.kl_to(q), kl)
    one, other = Beta(raw(1.7, 4.2), 0.0), Beta(raw(3.0, 1.2), 0.0)

    def density(y):
        return one.log_prob(y.unsqueeze(-1)).exp()

    def divergence(y):
        return density(y) * (one.log_prob(y.unsqueeze(-1)) - other.log_prob(y.unsqueeze(-1)))

    assert integrate(density, 1e-9, 1 - 1e-9) == pytest.approx(1.0, abs=1e-6)
    assert integrate(divergence, 1e-9, 1 - 1e-9) == pytest.approx(one.kl_to(other).item(), abs=1e-5)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0001, 1.0001), (1.69, 1.69), (1.1, 6.0), (40.0, 3.0), (5e4, 5e4)])
def test_beta_is_drawn_as_it_says(alpha, beta):
    draws = 100_000
    params = raw(alpha, beta).float() if alpha < 100 else torch.tensor([alpha - 1, beta - 1])
    noise = Beta.noise((draws, 2), generator(6))
    x = Beta.draw(params.expand(draws, 2), noise)
    x = x.double().squeeze(-1).sort().values
    mean, total = alpha / (alpha + beta), alpha + beta
    variance = mean * (1 - mean) / (total + 1)
    assert x.mean().item() == pytest.approx(mean, abs=4.5 * (variance / draws) ** 0.5)
    assert x.var().item() == pytest.approx(variance, rel=0.03)
    # Kolmogorov–Smirnov against the integrated density
    low, high = max(1e-9, mean - 12 * variance**0.5), min(1 - 1e-9, mean + 12 * variance**0.5)
    grid = torch.linspace(low, high, 200_001, dtype=torch.float64)
    density = Beta(params, 0.0).log_prob(grid.unsqueeze(-1)).double().exp()
    cdf = torch.cumulative_trapezoid(density, grid) / torch.trapezoid(density, grid)
    at = cdf[torch.searchsorted(grid[1:], x).clamp(max=len(cdf) - 1)]
    empirical = torch.arange(draws, dtype=torch.float64) / draws
    assert (at - empirical).abs().max().item() < 1.95 / draws**0.5  # the 99.9 % point


def test_the_dimensions_of_a_beta_are_independent_and_in_order():
    params = torch.cat([raw(2, 8), raw(6, 3)]).float().expand(100_000, 4)  # α of both, then β of both
    x = Beta.draw(params, Beta.noise((100_000, 4), generator(7)))
    torch.testing.assert_close(x.mean(0), torch.tensor([2 / 8, 8 / 11]), atol=0.003, rtol=0)
    assert torch.corrcoef(x.T)[0, 1].abs() < 0.015


def test_a_flat_beta_has_its_mode_in_the_middle_and_actions_stay_off_the_ends():
    flat = Beta(torch.full((2,), -1e4), 0.0)
    assert flat.mode().item() == 0.5
    assert flat.entropy().item() == pytest.approx(0.0, abs=1e-6)
    steep = torch.tensor([[1e6, -1e4], [-1e4, 1e6]])
    for x in (Beta.draw(steep, Beta.noise((2, 2), generator())), Beta(steep, 0.0).mode()):
        assert x.min() >= 0.99e-6
        assert x.max() <= 1 - 0.99e-6
        assert Beta(steep, 0.0).log_prob(x).isfinite().all()


def test_a_sharp_beta_keeps_its_ratio_in_float32():
    # A wiggle of the last bit moves the log-probability by what calculus says, not by the rounding of log Γ(50000)
    params = torch.full((1000, 2), 5e4)
    nudged = params + torch.linspace(-0.1, 0.1, 1000).unsqueeze(-1)
    x = torch.full((1000, 1), 0.5)
    change = Beta(nudged, 0.0).log_prob(x) - Beta(params, 0.0).log_prob(x)
    assert change.abs().max() < 1e-5


def test_a_composite_is_the_sum_of_its_parts():
    params, others = torch.randn(2, 6, 9, generator=generator(1))
    d, other = Composite(params, COMPOSITE), Composite(others, COMPOSITE)
    noise = composite_noise((6, 9), generator(2))
    action = composite_draw(params, noise)
    assert (action.shape, action.dtype) == ((6, 5), torch.float32)
    c, g, b = (lambda p: (Categorical(p[:, :3]), DiagGaussian.from_params(p[:, 3:7]), Bernoulli(p[:, 7:])))(params)
    log_prob = c.log_prob(action[:, 0].long()) + g.log_prob(action[:, 1:3]) + b.log_prob(action[:, 3:].long())
    torch.testing.assert_close(d.log_prob(action), log_prob)
    torch.testing.assert_close(d.entropy(), c.entropy() + g.entropy() + b.entropy())
    kl = c.kl_to(Categorical(others[:, :3])) + g.kl_to(DiagGaussian.from_params(others[:, 3:7]))
    torch.testing.assert_close(d.kl_to(other), kl + b.kl_to(Bernoulli(others[:, 7:])))


MASKS = [[True, False, True, False], [False, True, False, False], [True] * 4]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e30])
def test_illegal_actions_are_never_drawn(mask, scale):
    legal, draws = torch.tensor(mask), 100_000
    # as tempting as can be: the illegal ones have the highest logits
    logits = torch.where(legal, -scale, scale) + torch.randn(4, generator=generator(1))
    masked = mask_logits(logits, legal).expand(draws, 4)
    noise = Categorical.noise((draws, 4), generator(2))
    for action in (Categorical.draw(masked, noise), Categorical(masked).mode()):
        assert legal[action].all()
    both = torch.cat([masked, masked[:, :3]], -1)
    if legal[:3].any():
        drawn = MultiCategorical.draw(both, Categorical.noise((draws, 7), generator(3)), (4, 3))
        assert legal[drawn].all()


@pytest.mark.parametrize("mask", MASKS)
def test_a_masked_categorical_is_the_one_over_the_legal_actions(mask):
    legal = torch.tensor(mask)
    params, others = torch.randn(2, 6, 4, generator=generator(1)).requires_grad_()
    p, q = Categorical(mask_logits(params, legal)), Categorical(mask_logits(others, legal))
    small, other = Categorical(params[:, legal]), Categorical(others[:, legal])
    assert (p.log_probs.exp()[:, ~legal] == 0).all()
    torch.testing.assert_close(p.log_probs[:, legal], small.log_probs)
    torch.testing.assert_close(p.entropy(), small.entropy())
    torch.testing.assert_close(p.kl_to(q), small.kl_to(other))
    assert (p.entropy() <= math.log(sum(mask)) + 1e-6).all()
    action = p.mode()
    for result in (p.entropy(), p.kl_to(q), p.log_prob(action), q.kl_to(p)):
        (gradient,) = torch.autograd.grad(result.sum(), params, retain_graph=True)
        assert gradient.isfinite().all()
        assert (gradient[:, ~legal] == 0).all()


def test_a_mask_keeps_the_curvature_of_a_kl_finite():
    params = torch.randn(5, 8, generator=generator(1)).requires_grad_()
    legal = torch.tensor([False, True, False, True, True, False, False, True])
    d = MultiCategorical(mask_logits(params, legal), SIZES)
    kl = d.with_params(mask_logits(params, legal).detach()).kl_to(d)
    (gradient,) = torch.autograd.grad(kl.sum(), params, create_graph=True)
    (image,) = torch.autograd.grad((gradient * params.detach()).sum(), params)
    assert image.isfinite().all()
    assert (image[:, ~legal] == 0).all()
    assert (image[:, 4:][:, legal[4:]] != 0).any()
