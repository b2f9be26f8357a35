"""The seam in compiled epochs where several processes make one gradient of theirs; here they are threads."""

import threading

import numpy as np
import pytest
import torch

from surefoot.kernels.network import Share
from surefoot.kernels.specs import loss_spec, optimizer_spec
from tests.kernels.every_call import SEQUENCES, EveryCall

SPEC = {"value_coef": 0.5, "with_value": True, "entropy_coef": 0.01}


class Training:
    """Epochs over some sequences of the data of an `EveryCall`; without a memory their samples are a batch like any."""

    def __init__(self, memory="none", threads=1, sequences=slice(None), *, weighted=False):
        self.calls = calls = EveryCall(memory, threads)
        self.theta, self.gradient = calls.theta.clone(), torch.zeros_like(calls.theta)
        self.moments = (torch.zeros_like(self.theta), torch.zeros_like(self.theta))
        self.memory, self.sequences = memory, sequences
        weight = (torch.rand(calls.size, generator=torch.Generator().manual_seed(5)) > 0.4).float()
        columns = (*calls.columns[:1], calls.params, *calls.columns[1:4], weight if weighted else None)
        arrays = (calls.x, calls.action, *columns)
        context = None
        if calls.context is not None:
            context = (calls.context[0][:, sequences].contiguous(), calls.context[1][sequences].contiguous())
        self.batch = calls.net.batch(*(None if a is None else self._some(a) for a in arrays), context=context)

    def _some(self, array):
        return array.unflatten(0, (self.calls.steps, SEQUENCES))[:, self.sequences].flatten(0, 1).contiguous()

    def run(self, minibatches=1, epochs=2, *, normalize=True, spec=None, max_grad_norm=0.5, rate=1e-3, **more):
        units = self.batch.sequences or self.batch.size
        order = more.pop("order", None)
        order = torch.stack([torch.arange(units) for _ in range(epochs)]) if order is None else order
        return self.calls.net.epochs(
            *(self.theta, self.gradient, self.moments, 0, loss_spec("clip", 0.2, **SPEC) if spec is None else spec),
            *(optimizer_spec("adam", [(0, len(self.theta), rate)], max_grad_norm), self.batch, order),
            *(epochs, minibatches),
            normalize=normalize,
            **more,
        )

    def sums(self, index):
        """Σ w·A, Σ w·A², Σ w over the units at `index`."""
        _, _, _, _, advantage, _, _, weight, *_ = self.batch.arrays
        units = self.batch.sequences or self.batch.size
        a = advantage.double().reshape(-1, units)[:, index]
        w = torch.ones_like(a) if weight is None else weight.double().reshape(-1, units)[:, index]
        return [float((w * a).sum()), float((w * a * a).sum()), float(w.sum())]

    def bytes(self):
        return b"".join(tensor.numpy().tobytes() for tensor in (self.theta, self.gradient, *self.moments))


def nothing(numbers):
    pass


@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_callback_that_does_nothing_changes_no_byte(memory, threads):
    plain, asked, seen = Training(memory), Training(memory, threads), []
    told = plain.run(minibatches=3)
    assert asked.run(minibatches=3, reduce=lambda gradient: seen.append(gradient.copy())) == told
    assert asked.bytes() == plain.bytes()
    assert len(seen) == 6
    assert seen[-1].tobytes() == asked.gradient.numpy().tobytes()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_doubled_gradient_is_that_of_twice_the_loss(threads):
    """As the optimizer gets it: its norm is clipped and reported after the callback."""
    doubled, whole = Training("none", threads), Training()
    twice = loss_spec("ratio", value_coef=1.0, with_value=True, entropy_coef=0.02)
    # A surrogate is twice as large where the advantages are.
    whole.calls.columns[1] *= 2.0
    whole.batch = whole.calls.batch()

    def double(gradient):
        gradient *= 2.0

    once = loss_spec("ratio", value_coef=0.5, with_value=True, entropy_coef=0.01)
    _, told, _ = doubled.run(epochs=1, normalize=False, spec=once, reduce=double)
    _, expected, _ = whole.run(epochs=1, normalize=False, spec=twice)
    assert expected["grad_norm"] > 0.5  # so that it is clipped
    assert told["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-6)
    np.testing.assert_allclose(doubled.gradient, whole.gradient, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(doubled.moments[0], whole.moments[0], rtol=1e-5, atol=1e-9)


def test_what_a_callback_writes_is_what_the_optimizer_gets():
    training = Training()
    _, told, _ = training.run(epochs=1, max_grad_norm=None, reduce=lambda gradient: gradient.fill(3.0))
    assert told["grad_norm"] == pytest.approx(3.0 * len(training.theta) ** 0.5, rel=1e-6)
    np.testing.assert_allclose(training.moments[0], 0.3, rtol=1e-6)


def averaging(size):
    """For each member of a group, here a thread: replaces its numbers by the average of all."""
    parts, barrier = [None] * size, threading.Barrier(size, timeout=60)

    def of(index):
        def reduce(numbers):
            parts[index] = numbers.copy()
            barrier.wait()
            numbers[...] = np.mean(parts, axis=0)
            barrier.wait()

        return reduce

    return [of(index) for index in range(size)]


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize(("memory", "threads"), [("none", 1), ("none", 2), ("gru", 1), ("lstm", 2)])
@pytest.mark.parametrize("minibatches", [1, 3])
def test_two_halves_learn_as_the_whole(memory, threads, weighted, minibatches):
    """Both make the steps of one process with all the samples, though their minibatches are of unlike size; one is
    empty in one of them.
    """
    whole, epochs = Training(memory, weighted=weighted), 3
    units = whole.batch.sequences or whole.batch.size
    each = units // minibatches
    order = torch.stack([torch.arange(each * minibatches) for _ in range(epochs)])
    _, expected, _ = whole.run(minibatches, epochs, order=order)
    at = SEQUENCES // 3
    halves = [Training(memory, threads, part, weighted=weighted) for part in (slice(at), slice(at, None))]
    numbers = torch.arange(units) % SEQUENCES  # the sequence of each unit
    own = [[(numbers < at).nonzero().flatten(), (numbers >= at).nonzero().flatten()][half] for half in range(2)]
    rows = [[unit for unit in range(each * minibatches) if unit in set(mine.tolist())] for mine in own]
    moments = np.array([whole.sums(torch.arange(k * each, (k + 1) * each)) for k in range(minibatches)] * epochs)
    reduces, told = averaging(2), [None, None]

    def work(half):
        position = {int(unit): place for place, unit in enumerate(own[half])}
        taken = [[position[unit] for unit in rows[half] if unit // each == k] for k in range(minibatches)] * epochs
        begins = np.cumsum([0, *map(len, taken)])
        index = torch.tensor([place for part in taken for place in part], dtype=torch.int64)
        share = Share(begins, moments, 2)
        told[half] = halves[half].run(minibatches, epochs, order=index, reduce=reduces[half], share=share)[1]

    workers = [threading.Thread(target=work, args=(half,)) for half in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert halves[0].theta.equal(halves[1].theta)
    assert told[0]["grad_norm"] == told[1]["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
    for name in ("surrogate", "value_loss", "entropy", "kl"):
        both = (told[0][name] + told[1][name]) / 2
        assert both == pytest.approx(expected[name], rel=1e-3, abs=1e-4)
    scale = float(whole.gradient.abs().max())
    np.testing.assert_allclose(halves[0].gradient, whole.gradient, rtol=1e-3, atol=2e-4 * scale)
    np.testing.assert_allclose(halves[0].theta, whole.theta, rtol=1e-4, atol=1e-4)


def test_moments_of_its_own_change_nothing():
    plain, asked = Training(weighted=True), Training(weighted=True)
    plain.run(minibatches=2)
    half = asked.batch.size // 2
    moments = np.array([asked.sums(torch.arange(half)), asked.sums(torch.arange(half, 2 * half))] * 2)
    asked.run(minibatches=2, order=torch.arange(2 * half).repeat(2), share=Share(np.arange(5) * half, moments, 1))
    np.testing.assert_allclose(asked.theta, plain.theta, rtol=1e-5, atol=1e-6)


class Stop(Exception):
    pass


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("failure", [Stop("enough"), KeyboardInterrupt()], ids=["exception", "interrupt"])
def test_an_exception_in_a_callback_is_raised_as_itself(memory, threads, failure):
    """The steps before it are kept, and the next call is as good as ever."""
    training, calls = Training(memory, threads), []

    def fail(numbers):
        calls.append(len(numbers))
        if len(calls) == 3:
            raise failure

    with pytest.raises(type(failure)) as raised:
        training.run(minibatches=4, reduce=fail)
    assert raised.value is failure
    assert raised.value.__context__ is None
    assert len(calls) == 3
    steps = Training(memory)
    steps.run(minibatches=4, epochs=1, reduce=nothing)
    assert not training.theta.equal(training.calls.theta)  # two steps of four
    assert not training.theta.equal(steps.theta)
    again, plain = Training(memory), Training(memory)
    again.calls.net = training.calls.net
    again.run(minibatches=4, reduce=nothing)
    plain.run(minibatches=4)
    assert again.bytes() == plain.bytes()
