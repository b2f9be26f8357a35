"""An actor-critic of linear layers in C++, with or without a GRU or LSTM before them: acting, values, losses with their
gradients, whole epochs, Fisher products.

Everything works on one flat float32 parameter vector and on rows `[B, width]` of inputs and masks; nothing is copied or
kept. Arrays must be C-contiguous and of the named types, which `address` checks. With a memory, rows are T·n in
time-major order, and `context` is (where episodes begin `[T, n]` bool, the memory before the first row `[n, M]`).
"""

from __future__ import annotations

import math
from ctypes import POINTER, byref, c_double, c_int64, c_void_p
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from surefoot.kernels.arrays import Numbers, address
from surefoot.kernels.calls import Library, Signatures
from surefoot.kernels.description import Description
from surefoot.kernels.exchange import Callbacks, Reduce
from surefoot.kernels.handle import Handle
from surefoot.kernels.library import load
from surefoot.kernels.structs import Batch, Exchange, Inspected, LossSpec, OptimizerSpec, Sums

if TYPE_CHECKING:
    from surefoot.types import Array

Before: TypeAlias = "tuple[Numbers, Numbers] | None"  # (start, memory), for a policy with memory
SUMS = tuple(field[0] for field in Sums._fields_)
HISTORY = ("surrogate", "value_loss", "entropy", "approx_kl", "clip_fraction", "kl", "grad_norm")


_pointer, _whole, _sums, _loss, _batch = c_void_p, c_int64, POINTER(c_double), POINTER(LossSpec), POINTER(Batch)
SIGNATURES: Signatures = {
    "tasks": [_pointer, _whole, _pointer],
    "act": [*[_pointer] * 4, _whole, *[_pointer] * 6],
    "values": [_pointer, _pointer, _batch, _pointer],
    "outputs": [*[_pointer] * 3, _whole, _pointer],
    "outputs_gradient": [*[_pointer] * 4, _whole, _pointer, _pointer],
    "evaluate": [_pointer, _pointer, _loss, _batch, _sums, _pointer],
    "inspect": [_pointer, _pointer, _loss, _batch, _whole, _pointer, _whole, POINTER(Inspected), _pointer, _pointer],
    "gradient_look": [*[_pointer] * 4, _whole, _pointer],
    "gradient": [_pointer, _pointer, _loss, _batch, _pointer, _whole, _whole, _pointer, _sums],
    "epochs": [
        *[_pointer] * 5,
        *(POINTER(c_int64), _loss, POINTER(OptimizerSpec), _batch, _pointer, _pointer, _whole, _whole, _whole),
        *(POINTER(Exchange), _sums, _pointer),
    ],
    "fisher_product": [*[_pointer] * 3, _batch, _pointer],
}


class Share(NamedTuple):
    """This process's samples of the minibatches of several processes, for `epochs`."""

    begins: Array | None  # [minibatches of all epochs + 1] int64: where each begins in the order; None: all
    moments: Array  # [minibatches of all epochs, 3] float64: Σ w·A, Σ w·A², Σ w over all processes
    processes: int


class Network(Handle):
    """The kernels for one description. `threads` share the work of a call; results do not depend on their number."""

    def __init__(self, description: Description, threads: int = 1) -> None:
        super().__init__(description.tables(), threads)
        self.library = Library(load("nn"), "sf_", SIGNATURES)
        self.description = description
        self._history = (c_double * (len(HISTORY) + 1))()
        self._sums = (c_double * len(SUMS))()
        self._dimensions = np.zeros(2 * max(1, description.num_params))

    def tasks(self, samples: int) -> int:
        """The number of tasks that a gradient of this many samples is split into; more threads would be idle."""
        found = c_int64()
        self.library.tasks(self.handle, samples, byref(found))
        return found.value

    def act(
        self,
        theta: Numbers,
        x: Numbers,
        noise: Numbers | None,
        params: Numbers,
        action: Numbers,
        log_prob: Numbers | None,
        context: Before = None,
        after: Numbers | None = None,
    ) -> None:
        """Draw an action for each row of x; without noise, the mode.

        Fills params, action (as float32 rows), log_prob, and `after` `[n, M]` with the new memory.
        """
        samples = len(x)
        assert x.shape[1] == self.width, x.shape
        start, memory = self._checked(context, samples)
        self.library.act(
            self.handle,
            address(theta),
            address(x),
            address(noise),
            samples,
            address(start, np.bool_),
            address(memory),
            address(after),
            address(params),
            address(action),
            address(log_prob),
        )

    def values(self, theta: Numbers, x: Numbers, context: Before = None) -> Tensor:
        out = torch.empty(x.shape[0], dtype=torch.float32, device="cpu")
        self.library.values(self.handle, address(theta), byref(self.batch(x, context=context)), address(out))
        return out

    def _checked(self, context: Before, samples: int) -> tuple[Numbers | None, Numbers | None]:
        """The context, after checking that it fits this network and this many samples."""
        assert (context is None) == (not self.remembered), "a context belongs to a memory, and to nothing else"
        if context is None:
            return None, None
        start, memory = context
        assert memory.shape == (start.shape[-1], self.remembered), memory.shape
        assert math.prod(start.shape) == samples > 0, (start.shape, samples)
        return start, memory

    def outputs(self, theta: Numbers, x: Numbers) -> Tensor:
        """The outputs of actor and critic, concatenated, before the distribution."""
        out = torch.empty((len(x), self.description.columns), dtype=torch.float32, device="cpu")
        self.library.outputs(self.handle, address(theta), address(x), len(x), address(out))
        return out

    def outputs_gradient(
        self, theta: Numbers, x: Numbers, d_out: Numbers, gradient: Numbers, dx: Numbers | None = None
    ) -> None:
        """The gradient of Σ d_out·outputs for the weights and for x. Others (log_std) are untouched."""
        assert d_out.shape == (len(x), self.description.columns), d_out.shape
        self.library.outputs_gradient(
            self.handle, address(theta), address(x), address(d_out), len(x), address(gradient), address(dx)
        )

    def batch(
        self,
        x: Numbers,
        action: Numbers | None = None,
        log_prob: Numbers | None = None,
        params: Numbers | None = None,
        advantage: Numbers | None = None,
        target: Numbers | None = None,
        value: Numbers | None = None,
        weight: Numbers | None = None,
        context: Before = None,
    ) -> Batch:
        """Samples in the kernels' form. Keeps the arrays alive."""
        arrays = (x, action, log_prob, params, advantage, target, value, weight)
        size = x.shape[0]
        for array in arrays:
            assert array is None or array.shape[0] == size, "arrays of one batch must have one length"
        start, memory = self._checked(context, size)
        batch = Batch(size, *[None if array is None else address(array) for array in arrays])
        batch.sequences = 0 if memory is None else len(memory)
        batch.start, batch.memory = address(start, np.bool_), address(memory)
        batch.arrays = (*arrays, start, memory)
        return batch

    def evaluate(self, theta: Numbers, spec: LossSpec, batch: Batch, kl: Numbers | None = None) -> dict[str, float]:
        """The loss's terms as means over the samples, without a gradient; `kl` receives each sample's KL."""
        self.library.evaluate(self.handle, address(theta), byref(spec), byref(batch), self._sums, address(kl))
        return self._means()

    def inspect(
        self, theta: Numbers, spec: LossSpec, batch: Batch, rows: Numbers, *, normalize: bool
    ) -> tuple[Inspected, Tensor, Array]:
        """One look at the whole batch, without a gradient: (what it finds, kl of each sample, dimensions).

        The last are means over the samples at `rows` (sorted): of the entropy of each dimension of the action and, from
        the middle of the array on, of the std of each continuous one.
        """
        found, kl = Inspected(), torch.empty(batch.size, dtype=torch.float32, device="cpu")
        self.library.inspect(
            *(self.handle, address(theta), byref(spec), byref(batch), normalize, address(rows, np.int64), len(rows)),
            *(byref(found), address(kl), address(self._dimensions, np.float64)),
        )
        return found, kl, self._dimensions

    def gradient_look(
        self, total: Numbers, squares: Numbers, start: Numbers, now: Numbers
    ) -> tuple[float, float, float]:
        """(total·(now − start), ‖total‖², Σ squares), in float64."""
        found = (c_double * 3)()
        self.library.gradient_look(
            address(total), address(squares), address(start), address(now), len(total), byref(found)
        )
        return found[0], found[1], found[2]

    def gradient(
        self,
        theta: Numbers,
        spec: LossSpec,
        batch: Batch,
        gradient: Numbers,
        *,
        index: Numbers | None = None,
        normalize: bool = False,
    ) -> dict[str, float]:
        """The loss's gradient over the samples (with a memory: the sequences) at `index`, and its terms as means."""
        samples = (batch.sequences or batch.size) if index is None else len(index)
        self.library.gradient(
            *(self.handle, address(theta), byref(spec), byref(batch), address(index, np.int64), samples, normalize),
            *(address(gradient), self._sums),
        )
        return self._means()

    def _means(self) -> dict[str, float]:
        sums = dict(zip(SUMS, self._sums, strict=True))
        weight = max(sums.pop("weight"), 1.0)
        return {name: x if name == "ratio_error" else x / weight for name, x in sums.items()}

    def epochs(
        self,
        theta: Numbers,
        gradient: Numbers,
        moments: tuple[Numbers, Numbers],
        steps: int,
        spec: LossSpec,
        optimizer: OptimizerSpec,
        batch: Batch,
        order: Numbers | None,
        num_epochs: int,
        num_minibatches: int,
        *,
        normalize: bool,
        reduce: Reduce | None = None,
        total: Numbers | None = None,
        share: Share | None = None,
    ) -> tuple[int, dict[str, float], float]:
        """Gradient steps over `order` `[epochs, B]`; with a memory, `[epochs, n]`.

        Returns (steps so far, sums of the metrics, the first ratio's error). `total` `[2, parameters]` becomes the sum
        of the first epoch's gradients, before they are clipped, and that of their squares.

        `reduce` gets the gradient of every minibatch after the backward pass and before clipping, and may change it in
        place. If it raises, theta has the steps completed so far.

        `share`: several processes learn as one, and this one has some samples of each minibatch; `order` has one after
        the other. `reduce` must then average the gradients. The metrics' averages over all processes are their values;
        `grad_norm` is the same everywhere.
        """
        for at in range(len(self._history)):
            self._history[at] = 0.0
        count, begins = c_int64(steps), None
        call, exchange = self.library.epochs, None
        if share is not None:
            begins = share.begins
            assert len(share.moments) == num_epochs * num_minibatches, share.moments.shape
            assert num_minibatches == 1 if begins is None else len(begins) == len(share.moments) + 1
        if reduce is not None or share is not None:
            callbacks = Callbacks(reduce, *((share.moments, share.processes) if share is not None else ()))
            call, exchange = partial(callbacks.during, call), byref(callbacks.struct)
        call(
            *(self.handle, address(theta), address(gradient), address(moments[0]), address(moments[1]), byref(count)),
            *(byref(spec), byref(optimizer), byref(batch), address(order, np.int64), address(begins, np.int64)),
            *(num_epochs, num_minibatches, normalize, exchange, self._history, address(total)),
        )
        *sums, error = self._history
        return count.value, dict(zip(HISTORY, sums, strict=True)), error

    def fisher_product(self, theta: Numbers, direction: Numbers, batch: Batch, product: Numbers) -> None:
        """F·direction, the batch's mean Fisher matrix; critic columns are untouched."""
        self.library.fisher_product(self.handle, address(theta), address(direction), byref(batch), address(product))
