"""A policy that acts through compiled kernels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from surefoot.engine.native.describe import kernel_context, rows_of

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.kernels.network import Network
    from surefoot.policies.actor_critic import ActorCritic, Noise
    from surefoot.types import Context


class NativeActor:
    """An `Actor` whose rows do not depend on their batch. `theta`: the policy's parameters in one vector."""

    independent_rows = True
    fills_log_prob = True

    def __init__(self, policy: ActorCritic, net: Network, theta: Tensor) -> None:
        self.policy, self.net, self.theta = policy, net, theta
        self._rows = torch.empty((0, math.prod(policy.actions.shape)), dtype=torch.float32, device="cpu")

    def act(
        self, obs: Tensor, noise: Noise, start: Tensor | None, memory: Tensor | None, out: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        params, action, log_prob = out
        if len(self._rows) < len(obs):  # buffer for the kernels' actions: float32 rows
            self._rows = self._rows.new_empty((len(obs), self._rows.shape[1]))
        rows = self._rows[: len(obs)]
        context = None if memory is None or start is None else (start, memory)
        inputs = rows_of(self.policy, self.policy.normalize(obs))
        self.net.act(self.theta, inputs, noise.rows, params, rows, log_prob, context, memory)
        action.view(rows.shape).copy_(rows)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return self.policy.actions.distribution(params).log_prob(action)

    def value(self, inputs: Tensor, context: Context | None = None) -> Tensor:
        if not self.policy.has_critic:
            return inputs.new_zeros(len(inputs))
        return self.net.values(self.theta, rows_of(self.policy, inputs), kernel_context(context))
