"""What computes a policy's memory and MLPs: PyTorch's modules, unless an engine brings something faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.types import Context


class Networks(Protocol):
    """A policy has exactly one (`ActorCritic.compute_with`). All of them compute the same, up to rounding.

    Features are those of the encoder, or those that the memory made of them.
    """

    @property
    def reference(self) -> PlainNetworks:
        """The same in PyTorch's operations, which can be differentiated twice."""
        ...

    def remember(self, features: Tensor, memory: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """One step of n envs through the memory: (remembered features, the new state)."""
        ...

    def recall(self, features: Tensor, context: Context) -> Tensor:
        """T·n time-major features through the memory."""
        ...

    def outputs(self, features: Tensor) -> Tensor:
        """The outputs of the actor's last layer, `[..., O]`."""
        ...

    def value(self, features: Tensor) -> Tensor:
        """V, `[...]`, of a policy with a critic."""
        ...

    def both(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        """(the actor's outputs, V) in one pass; V is None without a critic."""
        ...


class PlainNetworks:
    """PyTorch's modules, as they are. Only these give the actor's last hidden features (gSDE, instruments)."""

    def __init__(self, policy: ActorCritic) -> None:
        self.memory, self.trunk, self.actor = policy.memory, policy.trunk, policy.actor
        self.critic = policy.critic if policy.has_critic else None

    @property
    def reference(self) -> PlainNetworks:
        return self

    def remember(self, features: Tensor, memory: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        assert self.memory is not None
        return self.memory.step(features, memory, start)

    def recall(self, features: Tensor, context: Context) -> Tensor:
        assert self.memory is not None
        recalled: Tensor = self.memory(features, context)
        return recalled

    def shared(self, features: Tensor) -> Tensor:
        """What actor and critic both begin with."""
        return features if self.trunk is None else self.trunk(features)

    def hidden(self, shared: Tensor) -> Tensor:
        """What the actor's last layer is given."""
        return self.actor.hidden(shared)

    def value_of(self, shared: Tensor) -> Tensor | None:
        """V after `shared`; None without a critic."""
        return None if self.critic is None else self.critic(shared).squeeze(-1)

    def outputs(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.actor(self.shared(features))
        return outputs

    def value(self, features: Tensor) -> Tensor:
        value = self.value_of(self.shared(features))
        assert value is not None
        return value

    def both(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        shared = self.shared(features)
        return self.actor(shared), self.value_of(shared)
