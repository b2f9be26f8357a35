"""All parameters of a policy in one vector, so that a norm, clip, optimizer step or snapshot is one operation."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from surefoot.policies.actor_critic import ActorCritic


class FlatParameters:
    """Parameters are views of `vector` and gradients views of `gradient`: the actor's first, then the critic's."""

    def __init__(self, policy: ActorCritic) -> None:
        self.actor_list, self.critic_list = policy.actor_parameters(), policy.critic_parameters()
        parameters = [*self.actor_list, *self.critic_list]
        assert {id(p) for p in parameters} == {id(p) for p in policy.parameters()}, (
            "actor_parameters() and critic_parameters() must cover the policy, each parameter once"
        )
        self.vector = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.gradient = torch.zeros_like(self.vector)
        self._places: list[tuple[torch.nn.Parameter, Tensor]] = []  # each parameter's place in `gradient`
        self._foreign = policy.config.own_encoder
        offset = 0
        for parameter in parameters:
            end = offset + parameter.numel()
            parameter.data = self.vector[offset:end].view_as(parameter)
            parameter.grad = self.gradient[offset:end].view_as(parameter)
            self._places.append((parameter, parameter.grad))
            offset = end
        self.actor_size = _numel(self.actor_list)

    def with_vector(self, vector: Tensor) -> FlatParameters:
        """The same of several equal policies, whose parameters are in `vector` `[policies, P]`."""
        both = copy(self)
        both.vector, both.gradient = vector, torch.zeros_like(vector)
        return both

    def differentiate(self, loss: Tensor) -> None:
        """`gradient` becomes that of this loss. `backward` would add to each parameter's place by a kernel of its own;
        here they are copied together. A user's encoder may need it: for sparse gradients, hooks or checkpointing.
        """
        if self._foreign:
            self.gradient.zero_()
            loss.backward()  # type: ignore[no-untyped-call]
            return
        trained = [(parameter, place) for parameter, place in self._places if parameter.requires_grad]
        found = torch.autograd.grad(loss, [parameter for parameter, _ in trained], allow_unused=True)
        pairs = [(place, own) for (_, place), own in zip(trained, found, strict=True) if own is not None]
        if len(pairs) < len(self._places):
            self.gradient.zero_()
        torch._foreach_copy_([place for place, _ in pairs], [own for _, own in pairs])

    @property
    def actor(self) -> Tensor:
        return self.vector[..., : self.actor_size]


def _numel(parameters: Sequence[Tensor]) -> int:
    return sum(p.numel() for p in parameters)
