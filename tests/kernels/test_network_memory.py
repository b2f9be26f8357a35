"""The compiled actor-critic behind a GRU or LSTM against autograd in float64: losses, sequences, threads, acting."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from surefoot.engine.native.describe import as_rows, describe
from surefoot.engine.torch.flat import FlatParameters
from surefoot.kernels import library
from surefoot.kernels.network import Network
from surefoot.kernels.specs import loss_spec, optimizer_spec
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.types import Context

BOX = spaces.Box(-np.inf, np.inf, (5,), np.float32)
SQUARE = spaces.Box(-1.0, 1.0, (3,), np.float32)
CASES = {
    "discrete": (spaces.Discrete(4), {}),
    "masked": (spaces.MultiDiscrete([3, 1, 4]), {"memory_size": 20}),
    "box": (SQUARE, {"activation": "silu", "memory_size": 16}),
    "state-std": (SQUARE, {"std": "state", "memory_size": 7}),
    "shared": (spaces.Dict(a=spaces.Discrete(3), b=SQUARE), {"shared_trunk": True, "memory_size": 33}),
    "no-hidden": (spaces.Discrete(3), {"hidden_sizes": (), "memory_size": 1}),
}
LOSSES = {
    "log_prob": {},
    "clip": {"clip_ratio": 0.2, "value_clip": 0.3},
    "spo": {"clip_ratio": 0.2},
    "ratio": {"kl_coef": 0.7, "huber": True},
}
TOLERANCE = {"spo": 1e-5 / LOSSES["spo"]["clip_ratio"]}  # its slope has the ratio's rounding over ε; others: 1e-5
KINDS = ("gru", "lstm")


class Sample:
    """A policy with memory, its float64 twin, and T steps of n sequences with all that a loss may ask for."""

    def __init__(
        self, case="discrete", kind="gru", *, steps=19, sequences=3, threads=1, first_trained=0, weighted=False
    ):
        space, settings = CASES[case]
        torch.manual_seed(3)
        self.masked = case == "masked"
        config = PolicyConfig(memory=kind, **settings)
        self.policy = ActorCritic(BOX, space, config, masked=self.masked)
        self.flat = FlatParameters(self.policy)
        with torch.no_grad():
            self.flat.vector.add_(0.3 * torch.randn_like(self.flat.vector))
        self.oracle = ActorCritic(BOX, space, config, masked=self.masked).double()
        self.exact = FlatParameters(self.oracle)
        self.exact.vector.copy_(self.flat.vector)
        self.net = Network(describe(self.policy, first_trained), threads)
        self.theta = self.flat.vector
        size = steps * sequences
        self.steps, self.sequences = steps, sequences
        self.x = torch.randn(size, self.net.width)
        if self.masked:
            self.x[:, 5:] = (torch.rand(size, self.net.width - 5) > 0.4).float()
            self.x[:, [5, 8, 9]] = 1.0
        self.start = torch.rand(steps, sequences) < 0.15
        self.memory = torch.randn(sequences, self.policy.memory.size)
        actions = self.policy.actions
        self.noise = actions.noise((size,), torch.Generator().manual_seed(1)).reshape(size, -1)
        with torch.no_grad():
            params = self.policy.action_params(self.x, self.context)
            self.action = actions.draw(params, self.noise)
            self.params = params + 0.1 * torch.randn_like(params)
            if self.masked:
                self.params = actions.masked(self.params, self.x[:, 5:] > 0.5)
            self.log_prob = actions.distribution(self.params).log_prob(self.action)
            self.advantage, self.target = torch.randn(size), 2.0 * torch.randn(size)
            self.value = self.policy.value(self.x, self.context) + 0.3 * torch.randn(size)
        self.weight = (torch.rand(size) > 0.3).float() if weighted else None

    @property
    def context(self):
        return Context(self.start, self.memory)

    def batch(self, sequences=None):
        """All of them, or a copy of some, in the given order."""
        take = (lambda t: t) if sequences is None else self._taker(sequences)
        numbers = (self.log_prob, self.params, self.advantage, self.target, self.value, self.weight)
        start = self.start if sequences is None else self.start[:, sequences].contiguous()
        memory = self.memory if sequences is None else self.memory[sequences]
        arrays = [None if t is None else take(t) for t in numbers]
        return self.net.batch(take(self.x), as_rows(take(self.action)), *arrays, context=(start, memory))

    def _taker(self, sequences):
        return lambda t: t.unflatten(0, (self.steps, self.sequences))[:, sequences].flatten(0, 1).contiguous()

    def outputs(self):
        context = Context(self.start, self.memory.double())
        action = self.action.double() if self.action.is_floating_point() else self.action
        return self.oracle.evaluate(self.x.double(), action, context)

    def mean(self, x):
        return x.mean() if self.weight is None else (x * self.weight).sum() / self.weight.sum()

    def exact_gradient(self, kind, *, clip_ratio=0.0, kl_coef=0.0, value_clip=None, huber=False):
        outputs = self.outputs()
        advantage, ratio = self.advantage.double(), (outputs.log_prob - self.log_prob.double()).exp()
        gain = {
            "log_prob": outputs.log_prob * advantage,
            "ratio": ratio * advantage,
            "clip": (ratio * advantage).minimum(ratio.clamp(1 - clip_ratio, 1 + clip_ratio) * advantage),
            "spo": ratio * advantage - advantage.abs() * (ratio - 1) ** 2 / (2 * (clip_ratio or 1.0)),
        }[kind]
        kl = self.oracle.actions.distribution(self.params.double()).kl_to(outputs.distribution)

        def distance(v):
            error = v - self.target.double()
            return torch.where(error.abs() < 1, 0.5 * error**2, error.abs() - 0.5) if huber else error**2

        value_loss, old = distance(outputs.value), self.value.double()
        if value_clip is not None:
            value_loss = value_loss.maximum(distance(old + (outputs.value - old).clamp(-value_clip, value_clip)))
        loss = -self.mean(gain) + kl_coef * self.mean(kl) - 0.01 * self.mean(outputs.distribution.entropy())
        self.exact.gradient.zero_()
        (loss + 0.5 * self.mean(value_loss)).backward()
        return self.exact.gradient

    def gradient(self, kind, batch=None, **settings):
        own = [settings.pop("clip_ratio")] if "clip_ratio" in settings else []
        spec = loss_spec(kind, *own, value_coef=0.5, entropy_coef=0.01, with_value=True, **settings)
        found = torch.zeros_like(self.theta)
        self.net.gradient(self.theta, spec, self.batch() if batch is None else batch, found)
        return found


def relative(found, exact):
    return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("loss", "weighted"), [("log_prob", False), ("clip", True), ("ratio", True), ("spo", True)])
def test_gradients_are_those_of_autograd_in_float64(case, kind, loss, weighted):
    sample = Sample(case, kind, weighted=weighted)
    exact = sample.exact_gradient(loss, **LOSSES[loss])
    assert relative(sample.gradient(loss, **LOSSES[loss]), exact) < 1e-5
    own = sum(p.numel() for p in sample.policy.memory.parameters())  # they stand first
    assert relative(sample.gradient(loss, **LOSSES[loss])[:own], exact[:own]) < 5e-5  # of its own, smaller norm


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("steps", "sequences"), [(1, 1), (40, 1), (3, 2), (130, 2), (17, 7), (33, 13), (9, 37), (16, 70)]
)
def test_any_number_of_sequences_and_steps(kind, steps, sequences):
    sample = Sample("discrete", kind, steps=steps, sequences=sequences, weighted=steps > 1)
    assert relative(sample.gradient("log_prob"), sample.exact_gradient("log_prob")) < 1e-5


def test_a_minibatch_is_made_of_whole_sequences():
    """As if the others had never been there."""
    sample = Sample("masked", "lstm", sequences=9, weighted=True)
    spec = loss_spec("clip", 0.2, value_coef=0.5, with_value=True, entropy_coef=0.01)
    for chosen in (torch.tensor([7, 0, 3, 8]), torch.arange(9).flip(0)):
        found, alone = torch.zeros_like(sample.theta), torch.zeros_like(sample.theta)
        told = sample.net.gradient(sample.theta, spec, sample.batch(), found, index=chosen, normalize=True)
        assert told == sample.net.gradient(sample.theta, spec, sample.batch(chosen), alone, normalize=True)
        assert torch.equal(found, alone)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("sequences", [3, 21])
def test_acting_step_by_step_gives_the_same_bits_as_learning(case, kind, sequences):
    sample = Sample(case, kind, sequences=sequences)
    size, width = len(sample.x), sequences
    params, chosen = torch.empty_like(sample.params), torch.empty(size)
    rows, memory = torch.empty_like(as_rows(sample.action)), sample.memory.clone()
    for t in range(sample.steps):
        at = slice(t * width, (t + 1) * width)
        outputs, context = (params[at], rows[at], chosen[at]), (sample.start[t], memory)
        sample.net.act(sample.theta, sample.x[at], sample.noise[at], *outputs, context, memory)
    with torch.no_grad():
        expected = sample.policy.action_params(sample.x, sample.context)
    torch.testing.assert_close(params, expected, rtol=1e-4, atol=1e-4)
    batch = sample.net.batch(sample.x, rows, chosen, params, sample.advantage, context=(sample.start, sample.memory))
    told = sample.net.evaluate(sample.theta, loss_spec("ratio", with_kl=True), batch)
    assert told["ratio_error"] == 0.0
    assert abs(told["kl"]) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_exact_kl(kind):
    sample = Sample("box", kind, sequences=18)
    outputs = sample.outputs()
    values = sample.net.values(sample.theta, sample.x, (sample.start, sample.memory))
    torch.testing.assert_close(values.double(), outputs.value.detach(), rtol=1e-5, atol=1e-5)
    exact = sample.oracle.actions.distribution(sample.params.double()).kl_to(outputs.distribution).detach()
    kl = torch.empty(len(sample.x))
    told = sample.net.evaluate(sample.theta, loss_spec("none", with_kl=True), sample.batch(), kl)
    torch.testing.assert_close(kl.double(), exact, rtol=1e-4, atol=1e-5)
    assert told["kl"] == pytest.approx(float(exact.mean()), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("sequences", [3, 14])
def test_fisher_products_are_second_derivatives_of_the_kl(case, kind, sequences):
    sample = Sample(case, kind, sequences=sequences, steps=9, weighted=True)
    parameters = sample.oracle.actor_parameters()
    distribution = sample.outputs().distribution
    context = Context(sample.start, sample.memory.double())
    fixed = sample.oracle.actions.distribution(sample.oracle.action_params(sample.x.double(), context).detach())
    kl = sample.mean(fixed.kl_to(distribution))
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(kl, parameters, create_graph=True)])
    direction = torch.randn(len(sample.theta))
    along = (gradient * direction[: len(gradient)].double()).sum()
    exact = torch.cat([g.reshape(-1) for g in torch.autograd.grad(along, parameters)])
    found = torch.zeros_like(sample.theta)
    sample.net.fisher_product(sample.theta, direction, sample.batch(), found)
    assert relative(found[: len(exact)], exact) < 1e-4


@pytest.mark.parametrize(("steps", "sequences"), [(3, 2), (30, 4), (40, 48)])
def test_no_bit_depends_on_the_number_of_threads(steps, sequences):
    found = []
    for threads in (1, 2, 3):
        sample = Sample("box", "lstm", steps=steps, sequences=sequences, threads=threads, weighted=True)
        order = torch.stack([torch.randperm(sequences, generator=torch.Generator().manual_seed(i)) for i in range(3)])
        spec = loss_spec("clip", 0.2, value_coef=0.5, with_value=True, entropy_coef=0.01)
        moments = (torch.zeros_like(sample.theta), torch.zeros_like(sample.theta))
        optimizer = optimizer_spec("adam", [(0, 90, 1e-3), (90, len(sample.theta), 3e-3)], 0.5)
        told = sample.net.epochs(
            *(sample.theta, torch.zeros_like(sample.theta), moments, 0, spec, optimizer, sample.batch(), order, 3, 2),
            normalize=True,
        )
        values = sample.net.values(sample.theta, sample.x, (sample.start, sample.memory))
        product = torch.zeros_like(sample.theta)
        sample.net.fisher_product(sample.theta, moments[0], sample.batch(), product)
        found.append((*(t.numpy().tobytes() for t in (sample.theta, moments[1], values, product)), str(told)))
    assert found[0] == found[1] == found[2]


def test_a_critic_by_itself_leaves_the_memory_as_it_is():
    """NPG fits V with the critic's own parameters; the norm is theirs alone."""
    sample = Sample("discrete", "gru")
    split = sample.flat.actor_size
    sample.net = Network(describe(sample.policy, split), 1)
    spec = loss_spec("none", value_coef=1.0, with_value=True)
    gradient, moments = torch.zeros_like(sample.theta), (torch.zeros_like(sample.theta), torch.zeros_like(sample.theta))
    before = sample.theta.clone()
    optimizer = optimizer_spec("adam", [(split, len(sample.theta), 1e-2)], 0.5)
    _, told, _ = sample.net.epochs(
        *(sample.theta, gradient, moments, 0, spec, optimizer, sample.batch(), None, 1, 1), normalize=False
    )
    value = sample.outputs().value
    sample.exact.gradient.zero_()
    ((value - sample.target.double()) ** 2).mean().backward()
    assert told["grad_norm"] == pytest.approx(float(sample.exact.gradient[split:].norm()), rel=1e-5)
    assert torch.equal(sample.theta[:split], before[:split])
    assert not torch.equal(sample.theta[split:], before[split:])


def test_a_nan_is_not_hidden_and_does_not_outlive_its_episode():
    sample = Sample("discrete", "gru", sequences=20)
    sample.start[:] = False
    sample.start[8] = True
    sample.x.view(sample.steps, sample.sequences, -1)[3, 2] = float("nan")
    values = sample.net.values(sample.theta, sample.x, (sample.start, sample.memory)).view(sample.steps, -1)
    expected = torch.zeros(sample.steps, sample.sequences, dtype=torch.bool)
    expected[3:8, 2] = True
    assert torch.equal(values.isnan(), expected)
    assert sample.gradient("log_prob").isnan().any()


@pytest.mark.parametrize("kind", KINDS)
def test_every_variant_that_this_processor_runs_agrees(kind, monkeypatch):
    monkeypatch.delenv(library.FORCED, raising=False)
    able, found = library.features(), {}
    for variant, needed in library.VARIANTS.items():
        if not needed <= able or not list(library.Path(library.__file__).parent.glob(f"_nn_{variant}.*")):
            continue
        monkeypatch.setattr(library, "VARIANTS", {variant: needed})
        library.load.cache_clear()
        sample = Sample("shared", kind, sequences=11)
        product = torch.zeros_like(sample.theta)
        sample.net.fisher_product(sample.theta, torch.ones_like(sample.theta), sample.batch(), product)
        found[variant] = (sample.gradient("clip", **LOSSES["clip"]), product)
    library.load.cache_clear()
    assert found
    first = next(iter(found.values()))
    for variant, other in found.items():
        for ours, theirs in zip(other, first, strict=True):
            assert relative(ours, theirs) < 1e-5, variant
