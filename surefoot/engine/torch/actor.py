"""A policy that acts in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from surefoot.engine.torch.modes import own_modes

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.policies.actor_critic import ActorCritic, Noise
    from surefoot.types import Context


class TorchActor:
    """An `Actor` on the policy's device. PyTorch may round a row differently in another batch."""

    independent_rows = False
    fills_log_prob = False

    def __init__(self, policy: ActorCritic) -> None:
        self.policy = policy

    def act(
        self, obs: Tensor, noise: Noise, start: Tensor | None, memory: Tensor | None, out: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        device = self.policy.device
        with own_modes(gradients=False):
            inputs = self.policy.normalize(obs.to(device))
            begins = None if start is None else start.to(device)
            params, action, after = self.policy.act(inputs, noise, memory, begins)
            out[0].copy_(params)
            out[1].copy_(action)
            if memory is not None and after is not None:
                memory.copy_(after)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return self.policy.actions.distribution(params).log_prob(action)

    def value(self, inputs: Tensor, context: Context | None = None) -> Tensor:
        return self.policy.value(inputs, context)
