"""An actor-critic of linear layers in C++, with a GRU or LSTM before them or without: acting, values, losses with their
gradients, whole epochs, Fisher products.

Everything works on one flat float32 parameter vector and on rows `[B, width]` of inputs and masks; nothing is copied or
kept. Arrays must be C-contiguous and of the named types; `address` checks it. With a memory the rows are T·n time-major
ones, and `context` is (where episodes begin `[T, n]` bool, the memory before the first row `[n, M]`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import POINTER, byref, c_double, c_int64, c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from surefoot.kernels.calls import Library
from surefoot.kernels.heads import HeadKind
from surefoot.kernels.library import load
from surefoot.kernels.structs import Batch as _Batch
from surefoot.kernels.structs import LossSpec as _LossSpec
from surefoot.kernels.structs import OptimizerSpec as _OptimizerSpec
from surefoot.kernels.structs import Sums

if TYPE_CHECKING:
    from surefoot.types import Array

Numbers: TypeAlias = "Array | Tensor"
Before: TypeAlias = "tuple[Numbers, Numbers] | None"  # (start, memory) of a policy with memory
ACTIVATIONS = {"tanh": 0, "relu": 1, "elu": 2, "silu": 3}
SURROGATES = {"none": 0, "log_prob": 1, "ratio": 2, "clip": 3}
SUMS = tuple(field[0] for field in Sums._fields_)
TORCH_TYPES = {np.float32: torch.float32, np.int64: torch.int64, np.bool_: torch.bool}
HISTORY = ("surrogate", "value_loss", "entropy", "approx_kl", "clip_fraction", "kl", "grad_norm")


@dataclass(frozen=True, slots=True)
class Linear:
    """A layer: its sizes, and where weight `[outputs, inputs]` and bias stand in the parameter vector."""

    inputs: int
    outputs: int
    weight: int
    bias: int
    activated: bool


@dataclass(frozen=True, slots=True)
class HeadPart:
    """One independent part of the action's distribution and its first column among outputs, parameters, …"""

    kind: HeadKind
    size: int
    output: int
    param: int
    action: int
    noise: int
    mask: int = -1
    log_std: int = -1  # in the parameter vector; −1: the network gives it
    mean_range: tuple[Array, Array] | None = None
    log_scale: float = 0.0  # Σ log of what stretches an action into its bounds


@dataclass(frozen=True, slots=True)
class Cell:
    """A GRU or LSTM: what it sees, and what of it and of its own last output makes its gates (in PyTorch's order)."""

    lstm: bool
    of_input: Linear
    of_hidden: Linear


@dataclass(frozen=True, slots=True)
class Description:
    """A network and its head, as the kernels see them."""

    inputs: int  # of the MLPs: what the memory gives, where there is one
    masks: int
    activation: str
    trunk: Sequence[Linear]
    actor: Sequence[Linear]
    critic: Sequence[Linear]
    parts: Sequence[HeadPart]
    size: int  # of the parameter vector
    actor_size: int
    first_trained: int  # parameters before it have no optimizer
    memory: Cell | None = None


_pointer, _whole, _sums, _loss, _batch = c_void_p, c_int64, POINTER(c_double), POINTER(_LossSpec), POINTER(_Batch)
SIGNATURES: dict[str, list[Any]] = {
    "create": [_pointer, _whole, _pointer, *[_whole] * 5, _pointer],
    "destroy": [_pointer],
    "threads": [_pointer, _pointer],
    "tasks": [_pointer, _whole, _pointer],
    "act": [*[_pointer] * 4, _whole, *[_pointer] * 6],
    "values": [_pointer, _pointer, _batch, _pointer],
    "outputs": [*[_pointer] * 3, _whole, _pointer],
    "outputs_gradient": [*[_pointer] * 4, _whole, _pointer, _pointer],
    "evaluate": [_pointer, _pointer, _loss, _batch, _sums, _pointer],
    "gradient": [_pointer, _pointer, _loss, _batch, _pointer, _whole, _whole, _pointer, _sums],
    "epochs": [
        *(*[_pointer] * 5, POINTER(c_int64), _loss, POINTER(_OptimizerSpec), _batch),
        *(_pointer, _whole, _whole, _whole, _sums, _sums),
    ],
    "fisher_product": [*[_pointer] * 3, _batch, _pointer],
}


def loss_spec(
    surrogate: str,
    *,
    clip_ratio: float = 0.0,
    kl_coef: float = 0.0,
    with_kl: bool = False,
    value_coef: float = 0.0,
    value_clip: float | None = None,
    huber: bool = False,
    with_value: bool = False,
    entropy_coef: float = 0.0,
) -> _LossSpec:
    """−E[surrogate − kl_coef·KL] + value_coef·E[value loss] − entropy_coef·E[entropy]."""
    clip = -1.0 if value_clip is None else value_clip
    with_kl = with_kl or kl_coef != 0.0
    return _LossSpec(
        SURROGATES[surrogate], huber, with_kl, with_value, clip_ratio, kl_coef, value_coef, clip, entropy_coef
    )


def optimizer_spec(kind: str, slices: Sequence[tuple[int, int, float]], max_grad_norm: float | None) -> _OptimizerSpec:
    """`slices`: (begin, end, learning rate), at most two."""
    assert 1 <= len(slices) <= 2, slices
    spec = _OptimizerSpec(kind == "adam", len(slices))
    for at, (begin, end, rate) in enumerate(slices):
        spec.begin[at], spec.end[at], spec.rate[at] = begin, end, rate
    spec.max_grad_norm = -1.0 if max_grad_norm is None else max_grad_norm
    return spec


class Network:
    """The kernels of one description. `threads` share the work of a call; no result depends on their number.

    In a forked child it works as in its parent, with threads of its own.
    """

    def __init__(self, description: Description, threads: int = 1) -> None:
        self.handle: int | None = None
        self.library = Library(load("nn"), "sf_", SIGNATURES)
        self.description, self.asked = description, threads
        d = description
        self.width = (d.inputs if d.memory is None else d.memory.of_input.inputs) + d.masks
        numbers: list[int] = [d.inputs, d.masks, ACTIVATIONS[d.activation]]
        numbers += [0, 0] if d.memory is None else [2, d.memory.lstm]
        for layer in () if d.memory is None else (d.memory.of_input, d.memory.of_hidden):
            numbers += [layer.inputs, layer.outputs, layer.weight, layer.bias]
        for chain in (d.trunk, d.actor, d.critic):
            numbers.append(len(chain))
            for layer in chain:
                numbers += [layer.inputs, layer.outputs, layer.weight, layer.bias, layer.activated]
        numbers.append(len(d.parts))
        ranges: list[Array] = []
        for part in d.parts:
            numbers += [part.kind.code, part.size, part.output, part.param, part.action, part.noise, part.mask]
            numbers += [part.log_std, part.mean_range is not None]
            ranges += [np.array([part.log_scale], np.float32), *(part.mean_range or ())]
        table = np.asarray(numbers, np.int64)
        flat = np.concatenate([np.zeros(0, np.float32), *(np.asarray(r, np.float32) for r in ranges)])
        arrays = (table.ctypes.data, len(table), flat.ctypes.data, len(flat))
        made = c_void_p()
        self.library.create(*arrays, d.size, d.actor_size, d.first_trained, threads, byref(made))
        self.handle = made.value
        self._history = (c_double * len(HISTORY))()
        self._sums = (c_double * len(SUMS))()

    def tasks(self, samples: int) -> int:
        """Pieces that a gradient of so many samples is made of: more threads than that have nothing to do."""
        found = c_int64()
        self.library.tasks(self.handle, samples, byref(found))
        return found.value

    @property
    def threads(self) -> int:
        """That share the work of a call: as many as were asked for, or as the system lets this process have."""
        found = c_int64()
        self.library.threads(self.handle, byref(found))
        return found.value

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.library.destroy(self.handle)

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
        """Draw for each row of x; without noise, the mode.

        Fills params, action (as float32 rows), log_prob, and with what is remembered now `after` `[n, M]`.
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
        out = torch.empty(len(x), dtype=torch.float32, device="cpu")
        self.library.values(self.handle, address(theta), byref(self.batch(x, context=context)), address(out))
        return out

    def _checked(self, context: Before, samples: int) -> tuple[Numbers | None, Numbers | None]:
        """The context, if it is one for so many samples of this network."""
        cell = self.description.memory
        assert (context is None) == (cell is None), "a context belongs to a memory, and to nothing else"
        if context is None or cell is None:
            return None, None
        start, memory = context
        size = (2 if cell.lstm else 1) * cell.of_hidden.inputs
        assert memory.shape == (start.shape[-1], size), memory.shape
        assert math.prod(start.shape) == samples > 0, (start.shape, samples)
        return start, memory

    def outputs(self, theta: Numbers, x: Numbers) -> Tensor:
        """Of actor and critic side by side, before any distribution is made of them."""
        out = torch.empty((len(x), self._columns), dtype=torch.float32, device="cpu")
        self.library.outputs(self.handle, address(theta), address(x), len(x), address(out))
        return out

    def outputs_gradient(
        self, theta: Numbers, x: Numbers, d_out: Numbers, gradient: Numbers, dx: Numbers | None = None
    ) -> None:
        """The weights' gradient of Σ d_out·outputs, and that of x. What is not a layer (log_std) is left as it is."""
        assert d_out.shape == (len(x), self._columns), d_out.shape
        self.library.outputs_gradient(
            self.handle, address(theta), address(x), address(d_out), len(x), address(gradient), address(dx)
        )

    @property
    def _columns(self) -> int:
        return self.description.actor[-1].outputs + (1 if self.description.critic else 0)

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
    ) -> Any:
        """Samples as the kernels take them. Keeps the arrays alive."""
        arrays = (x, action, log_prob, params, advantage, target, value, weight)
        size = x.shape[0]
        for array in arrays:
            assert array is None or array.shape[0] == size, "arrays of one batch must have one length"
        start, memory = self._checked(context, size)
        batch = _Batch(size, *(address(array) for array in arrays))
        batch.sequences = 0 if memory is None else len(memory)
        batch.start, batch.memory = address(start, np.bool_), address(memory)
        batch.arrays = (*arrays, start, memory)
        return batch

    def evaluate(self, theta: Numbers, spec: _LossSpec, batch: Any, kl: Numbers | None = None) -> dict[str, float]:
        """The loss's terms as means over the samples, without a gradient; kl gets each sample's."""
        self.library.evaluate(self.handle, address(theta), byref(spec), byref(batch), self._sums, address(kl))
        return self._means()

    def gradient(
        self,
        theta: Numbers,
        spec: _LossSpec,
        batch: Any,
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
        spec: _LossSpec,
        optimizer: _OptimizerSpec,
        batch: Any,
        order: Numbers | None,
        num_epochs: int,
        num_minibatches: int,
        *,
        normalize: bool,
    ) -> tuple[int, dict[str, float], float]:
        """Gradient steps over `order` `[epochs, B]`; with a memory, `[epochs, n]`.

        Returns (steps so far, sums of the metrics, the first ratio's error).
        """
        for at in range(len(HISTORY)):
            self._history[at] = 0.0
        count, error = c_int64(steps), c_double(0.0)
        self.library.epochs(
            *(self.handle, address(theta), address(gradient), address(moments[0]), address(moments[1]), byref(count)),
            *(
                byref(spec),
                byref(optimizer),
                byref(batch),
                address(order, np.int64),
                num_epochs,
                num_minibatches,
                normalize,
            ),
            *(self._history, byref(error)),
        )
        return count.value, dict(zip(HISTORY, self._history, strict=True)), error.value

    def fisher_product(self, theta: Numbers, direction: Numbers, batch: Any, product: Numbers) -> None:
        """F·direction, the batch's mean Fisher matrix; critic columns are untouched."""
        self.library.fisher_product(self.handle, address(theta), address(direction), byref(batch), address(product))


def address(array: Array | Tensor | None, dtype: Any = np.float32) -> int | None:
    """Of the first number; None for None."""
    if array is None:
        return None
    if isinstance(array, Tensor):
        assert array.dtype is TORCH_TYPES[dtype], f"{array.dtype}, not {dtype}"
        assert array.is_cpu, f"a tensor on {array.device}, where the kernels cannot read"
        assert array.is_contiguous(), "a contiguous tensor is needed"
        return array.data_ptr()
    assert array.dtype == dtype, f"{array.dtype} where {dtype} is needed"
    assert array.flags.c_contiguous, "a contiguous array is needed"
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]
