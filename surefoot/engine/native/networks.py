"""A policy's MLPs and memory in the kernels, for heads and encoders that PyTorch computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional as F

from surefoot.engine.native.describe import compile_mlps
from surefoot.kernels.recurrent import recurrence
from surefoot.policies.networks import PlainNetworks

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.torch.flat import FlatParameters
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.types import Context


class CompiledNetworks:
    """`Networks` in C++, differentiable once. The reference is `PlainNetworks`."""

    def __init__(self, policy: ActorCritic, flat: FlatParameters, threads: int) -> None:
        """`flat` has the policy's parameters in one vector. Raises NotServed."""
        self.reference, self.memory = PlainNetworks(policy), policy.memory
        self.both = compile_mlps(policy, flat, threads)

    def remember(self, features: Tensor, memory: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        return self._run(features[None], memory, start[None])

    def recall(self, features: Tensor, context: Context) -> Tensor:
        return self._run(features.view(*context.start.shape, -1), context.memory, context.start)[0]

    def _run(self, features: Tensor, memory: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """(`[L·n, H]`, the states after) from features `[L, n, F]`; the memory is reset where `start` is true."""
        assert self.memory is not None
        of_input, of_hidden, input_bias, hidden_bias = self.memory.net.parameters()  # in PyTorch's order
        inputs = F.linear(features, of_input, input_bias)
        out, after = recurrence(self.memory.is_lstm, inputs, memory, of_hidden, hidden_bias, start)
        return out.flatten(0, 1), after

    def outputs(self, features: Tensor) -> Tensor:
        return self.both(features)[0]

    def value(self, features: Tensor) -> Tensor:
        value = self.both(features)[1]
        assert value is not None
        return value
