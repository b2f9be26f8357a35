"""The compiled actor-critic against autograd in float64: every head, activation, loss; threads; saturation."""

import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces

from surefoot.engine.native.describe import as_rows, describe
from surefoot.engine.torch.flat import FlatParameters
from surefoot.kernels import library
from surefoot.kernels.network import Network
from surefoot.kernels.specs import loss_spec, optimizer_spec, surrogates
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig

BOX = spaces.Box(-np.inf, np.inf, (5,), np.float32)
SQUARE = spaces.Box(-1.0, 1.0, (3,), np.float32)
HYBRID = spaces.Dict(a=spaces.Discrete(3), b=SQUARE, c=spaces.MultiBinary(2), d=spaces.MultiDiscrete([2, 4]))
CASES = {
    "discrete": (spaces.Discrete(4), {}),
    "one-choice": (spaces.Discrete(1), {}),
    "multi-discrete": (spaces.MultiDiscrete([3, 1, 5]), {"activation": "relu"}),
    "multi-binary": (spaces.MultiBinary(5), {"activation": "elu"}),
    "box": (SQUARE, {"activation": "silu", "log_std_init": -0.5}),
    "box-state-std": (SQUARE, {"std": "state", "hidden_sizes": (16,)}),
    "box-tanh-mean": (SQUARE, {"tanh_mean": True}),
    "box-tanh": (SQUARE, {"action_bounds": "tanh", "log_std_init": -0.5}),
    "box-tanh-state-std": (SQUARE, {"action_bounds": "tanh", "std": "state"}),
    "box-beta": (spaces.Box(-1.0, 3.0, (2,), np.float32), {"action_bounds": "beta"}),
    "hybrid-beta": (HYBRID, {"action_bounds": "beta", "hidden_sizes": (16,)}),
    "hybrid": (HYBRID, {"shared_trunk": True}),
    "odd-widths": (spaces.Discrete(3), {"hidden_sizes": (33, 1, 17), "critic_hidden_sizes": (7,)}),
    "wide": (SQUARE, {"hidden_sizes": (300, 110)}),  # no block of the product holds it all
    "no-hidden": (spaces.Discrete(3), {"hidden_sizes": ()}),
    "normed": (SQUARE, {"layer_norm": True, "hidden_sizes": (33, 18)}),
    "normed-trunk": (spaces.Discrete(3), {"layer_norm": True, "shared_trunk": True, "activation": "relu"}),
    "deep-trunk": (spaces.Discrete(3), {"hidden_sizes": (20, 20, 20), "shared_trunk": True, "activation": "relu"}),
}
MASKED = ("discrete", "multi-discrete", "hybrid")
LOSSES = {
    "log_prob": {},
    "clip": {"clip_ratio": 0.2, "value_clip": 0.3},
    "spo": {"clip_ratio": 0.2},
    "ratio": {"kl_coef": 0.7, "huber": True},
}
TOLERANCE = {"spo": 1e-5 / LOSSES["spo"]["clip_ratio"]}  # its slope has the ratio's rounding over ε; others: 1e-5


class Sample:
    """A policy, its float64 twin, and a batch of everything that a loss may ask for."""

    def __init__(self, case, *, masked=False, size=45, scale=0.3, threads=1, critic=True, weighted=False):
        space, settings = CASES[case]
        torch.manual_seed(3)
        self.policy = ActorCritic(BOX, space, PolicyConfig(**settings), masked=masked, critic=critic)
        self.flat = FlatParameters(self.policy)
        with torch.no_grad():
            self.flat.vector.add_(scale * torch.randn_like(self.flat.vector))
        self.oracle = ActorCritic(BOX, space, PolicyConfig(**settings), masked=masked, critic=critic).double()
        self.exact = FlatParameters(self.oracle)
        self.exact.vector.copy_(self.flat.vector)
        self.net = Network(describe(self.policy), threads)
        self.theta = self.flat.vector.numpy()
        self.x = torch.randn(size, self.net.width)
        if masked:
            self.x[:, 5:] = self._masks(size)
        actions = self.policy.actions
        self.noise = actions.noise((size,), torch.Generator().manual_seed(1)).reshape(size, -1)
        with torch.no_grad():
            params = self.policy.action_params(self.x)
            self.action = actions.draw(params, self.noise)
            self.params = params + 0.1 * torch.randn_like(params)  # of a policy that is a little older
            if masked:
                self.params = actions.masked(self.params, self.x[:, 5:] > 0.5)
            self.log_prob = actions.distribution(self.params).log_prob(self.action)
            self.advantage, self.target = torch.randn(size), 2.0 * torch.randn(size)
            self.value = self.policy.value(self.x) + 0.3 * torch.randn(size)
        self.weight = (torch.rand(size) > 0.3).float() if weighted else None

    def _masks(self, size):
        mask = (torch.rand(size, self.net.width - 5) > 0.4).float()
        for part in describe(self.policy).parts:
            if part.mask >= 0:
                mask[:, part.mask] = 1.0
        return mask

    def batch(self):
        numbers = (self.log_prob, self.params, self.advantage, self.target, self.value, self.weight)
        arrays = (None if t is None else t.numpy() for t in numbers)
        return self.net.batch(self.x.numpy(), as_rows(self.action), *arrays)

    def outputs(self):
        x = self.x.double()
        action = self.action.double() if self.action.is_floating_point() else self.action
        found = self.oracle.evaluate(x, action)
        return found.distribution, found.log_prob, found.value

    def mean(self, x):
        return x.mean() if self.weight is None else (x * self.weight).sum() / self.weight.sum()

    def loss(self, kind, *, clip_ratio=0.0, kl_coef=0.0, value_clip=None, huber=False):
        """In float64, as the algorithms write it."""
        distribution, log_prob, value = self.outputs()
        advantage, ratio = self.advantage.double(), (log_prob - self.log_prob.double()).exp()
        gain = {
            "log_prob": log_prob * advantage,
            "ratio": ratio * advantage,
            "clip": (ratio * advantage).minimum(ratio.clamp(1 - clip_ratio, 1 + clip_ratio) * advantage),
            "spo": ratio * advantage - advantage.abs() * (ratio - 1) ** 2 / (2 * (clip_ratio or 1.0)),
        }[kind]
        kl = self.oracle.actions.distribution(self.params.double()).kl_to(distribution)

        def distance(v):
            error = v - self.target.double()
            return torch.where(error.abs() < 1, 0.5 * error**2, error.abs() - 0.5) if huber else error**2

        value_loss, old = distance(value), self.value.double()
        if value_clip is not None:
            value_loss = value_loss.maximum(distance(old + (value - old).clamp(-value_clip, value_clip)))
        entropy = self.mean(distribution.entropy())
        loss = -self.mean(gain) + kl_coef * self.mean(kl) - 0.01 * entropy
        return loss + 0.5 * self.mean(value_loss), {"surrogate": self.mean(gain), "entropy": entropy}

    def exact_gradient(self, kind, **settings):
        loss, terms = self.loss(kind, **settings)
        self.exact.gradient.zero_()
        loss.backward()
        return self.exact.gradient.numpy(), terms

    def gradient(self, kind, **settings):
        own = [settings.pop("clip_ratio")] if "clip_ratio" in settings else []
        spec = loss_spec(kind, *own, value_coef=0.5, entropy_coef=0.01, with_value=True, **settings)
        found = np.zeros_like(self.theta)
        return found, self.net.gradient(self.theta, spec, self.batch(), found)


def relative(found, exact):
    return np.linalg.norm(found - exact) / np.linalg.norm(exact)


def combinations():
    for case, kind in itertools.product(CASES, LOSSES):
        yield pytest.param(case, kind, False, id=f"{case}-{kind}")
        if case in MASKED:
            yield pytest.param(case, kind, True, id=f"{case}-{kind}-masked")


@pytest.mark.parametrize(("case", "kind", "masked"), list(combinations()))
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_gradients_are_those_of_autograd_in_float64(case, kind, masked, weighted):
    sample = Sample(case, masked=masked, weighted=weighted)
    exact, terms = sample.exact_gradient(kind, **LOSSES[kind])
    found, means = sample.gradient(kind, **LOSSES[kind])
    assert relative(found, exact) < TOLERANCE.get(kind, 1e-5)
    for name, value in terms.items():
        assert means[name] == pytest.approx(value.item(), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("size", [1, 17, 512, 513, 1100])
@pytest.mark.parametrize("case", ["wide", "hybrid", "odd-widths"])
def test_gradients_of_any_number_of_samples(case, size):
    """Whole groups of tiles and what is left of them, in one shard and in several."""
    sample = Sample(case, size=size)
    exact, _ = sample.exact_gradient("clip", **LOSSES["clip"])
    assert relative(sample.gradient("clip", **LOSSES["clip"])[0], exact) < 1e-5


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu"])
@pytest.mark.parametrize("scale", [2.0, 6.0])
def test_saturated_units_keep_their_small_gradients(activation, scale):
    """Float32's own 1 − tanh² is a multiple of 6e-8; ours has its own digits."""
    CASES["saturated"] = (spaces.Discrete(3), {"activation": activation})
    sample = Sample("saturated", scale=scale, size=64)
    if activation == "tanh":
        pre = torch.nn.functional.linear(sample.x, sample.policy.actor.layers[0].weight)
        assert pre.abs().median() > scale  # most of them are far out
    exact, _ = sample.exact_gradient("log_prob")
    assert relative(sample.gradient("log_prob")[0], exact) < 1e-5


def test_a_network_that_is_nothing_but_saturated():
    CASES["saturated"] = (spaces.Discrete(3), {})
    sample = Sample("saturated", size=32)
    layers = (sample.policy.actor.layers[0], sample.oracle.actor.layers[0])
    with torch.no_grad():
        for layer in layers:
            layer.bias.fill_(9.0)  # 1 − tanh²(9) = 6e-8: one unit of float32's rounding, or none
            layer.weight.mul_(0.1)
    exact, _ = sample.exact_gradient("log_prob")
    found, _ = sample.gradient("log_prob")
    first = slice(0, layers[0].weight.numel())
    assert np.linalg.norm(exact[first]) > 0.0
    assert relative(found[first], exact[first]) < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_draws_and_parameters_are_the_policy_s(case):
    masked = case in MASKED
    sample = Sample(case, masked=masked)
    size, actions = len(sample.x), sample.policy.actions
    params = np.empty((size, actions.num_params), np.float32)
    rows, chosen = np.empty_like(as_rows(sample.action).numpy()), np.empty(size, np.float32)
    sample.net.act(sample.theta, sample.x.numpy(), sample.noise.numpy(), params, rows, chosen)
    with torch.no_grad():
        expected = sample.policy.action_params(sample.x)
        np.testing.assert_allclose(params, expected.numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(rows, as_rows(sample.action).numpy(), rtol=1e-5, atol=1e-5)
        log_prob = actions.distribution(expected).log_prob(sample.action)
        np.testing.assert_allclose(chosen, log_prob.numpy(), rtol=1e-4, atol=1e-4)
        sample.net.act(sample.theta, sample.x.numpy(), None, params, rows, None)
        np.testing.assert_allclose(rows, as_rows(actions.distribution(expected).mode()).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("size", "acted"), [(50, 7), (600, 77)])
def test_the_first_ratio_is_exactly_one(case, size, acted):
    """Whatever the batch that a sample was acted in, and whatever the one that it is learned from."""
    sample = Sample(case, size=size)
    actions = sample.policy.actions
    params = np.empty((size, actions.num_params), np.float32)
    rows, chosen = np.empty_like(as_rows(sample.action).numpy()), np.empty(size, np.float32)
    for begin in range(0, size, acted):
        at = slice(begin, begin + acted)
        arrays = (sample.x.numpy()[at], sample.noise.numpy()[at], params[at], rows[at], chosen[at])
        sample.net.act(sample.theta, *arrays)
    batch = sample.net.batch(sample.x.numpy(), rows, chosen, params, sample.advantage.numpy())
    assert sample.net.evaluate(sample.theta, loss_spec("ratio", with_kl=True), batch)["ratio_error"] == 0.0


@pytest.mark.parametrize("case", CASES)
def test_fisher_products_are_second_derivatives_of_the_kl(case):
    sample = Sample(case, masked=case in MASKED, weighted=True)
    parameters = sample.oracle.actor_parameters()
    distribution, _, _ = sample.outputs()
    x = sample.x.double()
    fixed = sample.oracle.actions.distribution(sample.oracle.action_params(x).detach())
    kl = sample.mean(fixed.kl_to(distribution))
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(kl, parameters, create_graph=True)])
    direction = torch.randn(len(sample.theta))
    along = (gradient * direction[: len(gradient)].double()).sum()
    exact = torch.cat([g.reshape(-1) for g in torch.autograd.grad(along, parameters)]).numpy()
    found = np.zeros_like(sample.theta)
    batch = sample.net.batch(sample.x.numpy(), weight=sample.weight.numpy())
    sample.net.fisher_product(sample.theta, direction.numpy(), batch, found)
    if np.linalg.norm(exact) < 1e-12:  # a single choice has nothing to measure
        assert np.linalg.norm(found[: len(exact)]) < 1e-6
    else:
        assert relative(found[: len(exact)], exact) < 1e-4


@pytest.mark.parametrize("case", ["hybrid", "discrete", "odd-widths"])
def test_any_loss_on_the_outputs_sends_its_gradient_to_weights_and_inputs(case):
    sample = Sample(case)
    columns = sample.policy.actor.head.out_features + 1
    wanted = torch.randn(len(sample.x), columns)
    x = sample.x.double().requires_grad_()
    actor, value = sample.oracle.networks.both(x)
    outputs = torch.cat([actor, value[:, None]], -1)
    sample.exact.gradient.zero_()
    (outputs * wanted).sum().backward()
    np.testing.assert_allclose(
        sample.net.outputs(sample.theta, sample.x.numpy()), outputs.detach(), rtol=1e-4, atol=1e-5
    )
    gradient, dx = np.zeros_like(sample.theta), np.zeros((len(x), 5), np.float32)
    sample.net.outputs_gradient(sample.theta, sample.x.numpy(), wanted.numpy(), gradient, dx)
    assert relative(gradient, sample.exact.gradient.numpy()) < 1e-5
    assert relative(dx, x.grad.numpy()) < 1e-5


@pytest.mark.parametrize(
    ("case", "size"), [("box", 1), ("box", 16), ("box", 100), ("box", 700), ("wide", 3000), ("hybrid", 3000)]
)
def test_no_bit_depends_on_the_number_of_threads(case, size):
    found = []
    for threads in (1, 2, 3):
        sample = Sample(case, size=size, threads=threads, weighted=size > 1)
        order = np.stack([np.random.default_rng(i).permutation(size) for i in range(3)])
        spec = loss_spec("clip", 0.2, value_coef=0.5, with_value=True, entropy_coef=0.01)
        moments = (np.zeros_like(sample.theta), np.zeros_like(sample.theta))
        optimizer = optimizer_spec("adam", [(0, 90, 1e-3), (90, len(sample.theta), 3e-3)], 0.5)
        parts = 1 if size == 1 else 2 if size == 16 else 4
        told = sample.net.epochs(
            *(sample.theta, np.zeros_like(sample.theta), moments, 0, spec, optimizer, sample.batch(), order, 3, parts),
            normalize=True,
        )
        values = sample.net.values(sample.theta, sample.x.numpy())
        means = sample.net.evaluate(sample.theta, spec, sample.batch())
        numbers = (sample.theta, moments[1], values.numpy())
        found.append((*(n.tobytes() for n in numbers), str(told), str(means)))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
def test_an_optimizer_step_is_the_flat_optimizer_s(kind):
    from surefoot.engine.torch.optimizers import FlatOptimizer

    sample = Sample("discrete", size=64)
    spec = loss_spec("log_prob", value_coef=0.5, with_value=True)
    oracle = sample.flat.vector.clone()
    gradient, found = torch.zeros_like(oracle), np.zeros_like(sample.theta)
    slices = [(0, len(oracle), 1e-3)]
    optimizer = FlatOptimizer(kind, oracle, gradient, slices)
    moments, steps = (np.zeros_like(sample.theta), np.zeros_like(sample.theta)), 0
    for _ in range(5):
        sample.net.gradient(oracle.numpy(), spec, sample.batch(), gradient.numpy())
        norm = gradient.norm()
        gradient.mul_((0.5 / (norm + 1e-6)).clamp(max=1.0))
        optimizer.step()
        steps, told, _ = sample.net.epochs(
            *(sample.theta, found, moments, steps, spec, optimizer_spec(kind, slices, 0.5), sample.batch(), None, 1, 1),
            normalize=False,
        )
        assert told["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
    assert steps == optimizer.steps == 5
    np.testing.assert_allclose(sample.theta, oracle.numpy(), rtol=1e-5, atol=2e-7)


def test_the_surrogates_and_their_parameters_are_the_library_s():
    assert list(surrogates()) == ["none", *sorted(LOSSES, key=lambda name: surrogates()[name].number)]
    assert {name: len(LOSSES[name].keys() & {"clip_ratio"}) for name in LOSSES} == {
        name: known.parameters for name, known in surrogates().items() if name != "none"
    }
    with pytest.raises(ValueError, match="no surrogate 'clop'; they have none, log_prob"):
        loss_spec("clop")
    with pytest.raises(ValueError, match="'clip' takes 1 parameters, not 0"):
        loss_spec("clip")


def test_without_a_surrogate_advantages_do_not_count():
    sample = Sample("discrete")
    spec, found = loss_spec("none", kl_coef=0.7), np.zeros_like(sample.theta)
    told = sample.net.gradient(sample.theta, spec, sample.batch(), found)
    assert told["surrogate"] == 0.0
    distribution, _, _ = sample.outputs()
    sample.exact.gradient.zero_()
    (0.7 * sample.oracle.actions.distribution(sample.params.double()).kl_to(distribution).mean()).backward()
    assert relative(found, sample.exact.gradient.numpy()) < 1e-5


def test_spo_counts_ratios_beyond_its_bound():
    sample = Sample("discrete")
    sample.log_prob += 0.3 * torch.randn(len(sample.log_prob))
    _, log_prob, _ = sample.outputs()
    beyond = ((log_prob - sample.log_prob.double()).exp() - 1.0).abs() > 0.2
    assert 0 < beyond.sum() < len(beyond)
    assert sample.gradient("spo", clip_ratio=0.2)[1]["clipped"] == pytest.approx(float(beyond.double().mean()))


def test_a_nan_is_not_hidden():
    sample = Sample("discrete")
    sample.x[3, 2] = float("nan")
    found, means = sample.gradient("log_prob")
    assert np.isnan(found).any()
    assert np.isnan(means["surrogate"])


def test_every_variant_that_this_processor_runs_agrees(monkeypatch):
    monkeypatch.delenv(library.FORCED, raising=False)
    able, found = library.features(), {}
    for variant, needed in library.VARIANTS.items():
        if not needed <= able or not list(library.Path(library.__file__).parent.glob(f"_nn_{variant}.*")):
            continue
        monkeypatch.setattr(library, "VARIANTS", {variant: needed})
        library.load.cache_clear()
        found[variant] = Sample("hybrid").gradient("clip", **LOSSES["clip"])[0]
    library.load.cache_clear()
    assert found
    first = next(iter(found.values()))
    for variant, gradient in found.items():
        assert relative(gradient, first) < 1e-5, variant


def test_what_is_said_where_nothing_was_built(monkeypatch, tmp_path):
    monkeypatch.delenv(library.FORCED, raising=False)
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    with pytest.raises(library.NotBuilt, match=r"C\+\+ compiler"):
        library.find("nn")
    (tmp_path / "_nn_v4.so").touch()
    monkeypatch.setattr(library, "features", lambda: frozenset())
    with pytest.raises(library.NotBuilt, match="other processors"):
        library.find("nn")
