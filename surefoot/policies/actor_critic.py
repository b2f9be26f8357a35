"""An MLP actor and critic, apart or on one trunk."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.errors import UsageError
from surefoot.policies.actions import BoxActions, build_actions
from surefoot.policies.normalizer import ObservationNormalizer
from surefoot.types import Outputs

if TYPE_CHECKING:
    from surefoot.policies.config import PolicyConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": F.relu, "elu": F.elu, "silu": F.silu}
LOG_STD_RANGE = (-20.0, 5.0)  # beyond it a density overflows float32 long before it means anything


class MLP(nn.Module):
    """Linear layers with the activation between them and, for a trunk, after the last."""

    def __init__(self, sizes: Sequence[int], activation: str, *, activate_last: bool = False) -> None:
        super().__init__()
        self._linears = tuple(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.layers = nn.ModuleList(self._linears)
        self.activation, self.activate_last = ACTIVATIONS[activation], activate_last

    @property
    def head(self) -> nn.Linear:
        """The last layer."""
        return self._linears[-1]

    def forward(self, x: Tensor) -> Tensor:
        last = len(self.layers) - 1
        for i, layer in enumerate(self._linears):  # a module's own call costs as much as a small product
            x = F.linear(x, layer.weight, layer.bias)
            if i < last or self.activate_last:
                x = self.activation(x)
        return x


class ActorCritic(nn.Module):
    """π(a|s) and V(s). `critic=False` (REINFORCE) builds no critic: V ≡ 0.

    Methods take observations that went through `normalize`; a rollout is normalised once, not per minibatch.
    """

    log_std: nn.Parameter | None
    mean_centre: Tensor
    mean_half: Tensor

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: PolicyConfig,
        *,
        critic: bool = True,
    ) -> None:
        super().__init__()
        self.config, self.has_critic = config, critic
        self.obs_shape = flat_box(observation_space)
        self.actions = build_actions(action_space)
        self.normalizer = ObservationNormalizer(self.obs_shape) if config.normalize_observations else None
        inputs, hidden = int(np.prod(self.obs_shape)), list(config.hidden_sizes)
        outputs = self.actions.num_params
        self.continuous = isinstance(self.actions, BoxActions)
        self.log_std = None
        if self.continuous and config.std == "parameter":
            outputs //= 2  # the network gives the mean only
            self.log_std = nn.Parameter(torch.full((outputs,), config.log_std_init))
        if config.tanh_mean:
            centre, half = mean_range(action_space)
            self.register_buffer("mean_centre", centre, persistent=False)
            self.register_buffer("mean_half", half, persistent=False)
        if config.shared_trunk:
            if not hidden:
                raise UsageError("shared_trunk needs at least one hidden layer; set hidden_sizes")
            self.trunk = MLP([inputs, *hidden], config.activation, activate_last=True)
            inputs, actor_hidden, critic_hidden = hidden[-1], [], []
        else:
            actor_hidden, critic_hidden = hidden, list(config.critic_hidden_sizes or hidden)
        self.actor = MLP([inputs, *actor_hidden, outputs], config.activation)
        if critic:
            self.critic = MLP([inputs, *critic_hidden, 1], config.activation)
        if config.init == "orthogonal":
            self._orthogonal()

    def _orthogonal(self) -> None:
        heads = {self.actor.head: 0.01}
        if self.has_critic:
            heads[self.critic.head] = 1.0
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.orthogonal_(module.weight, heads.get(module, math.sqrt(2.0)))
                nn.init.zeros_(module.bias)
        if self.continuous and self.config.std == "state":
            # softplus⁻¹ of the wanted std, in the half of the head's bias that makes it
            std = math.exp(self.config.log_std_init)
            with torch.no_grad():
                self.actor.head.bias.chunk(2)[1].fill_(std + math.log(-math.expm1(-std)))

    def actor_parameters(self) -> list[nn.Parameter]:
        """Everything that π depends on, the shared trunk included. Chosen by module, never by name."""
        own = list(self.trunk.parameters()) if self.config.shared_trunk else []
        return [*own, *self.actor.parameters(), *([] if self.log_std is None else [self.log_std])]

    def critic_parameters(self) -> list[nn.Parameter]:
        """What belongs to V alone."""
        return list(self.critic.parameters()) if self.has_critic else []

    def normalize(self, obs: Tensor) -> Tensor:
        """Raw observations `[..., *obs_shape]` as flat float32 network inputs `[..., inputs]`."""
        x = obs if obs.dtype == torch.float32 else obs.float()
        if self.normalizer is not None:
            x = self.normalizer(x)
        return x if len(self.obs_shape) == 1 else x.flatten(-len(self.obs_shape)) if self.obs_shape else x[..., None]

    def _trunk(self, x: Tensor) -> Tensor:
        features: Tensor = self.trunk(x) if self.config.shared_trunk else x
        return features

    def _params(self, features: Tensor) -> Tensor:
        out: Tensor = self.actor(features)
        if not self.continuous:
            return out
        if self.log_std is not None:
            mean, log_std = out, self.log_std.clamp(*LOG_STD_RANGE).expand_as(out)
        else:
            mean, raw = out.chunk(2, dim=-1)
            log_std = F.softplus(raw).clamp(min=math.exp(LOG_STD_RANGE[0])).log()
        if self.config.tanh_mean:
            mean = self.mean_centre + self.mean_half * torch.tanh(mean)
        return torch.cat([mean, log_std], dim=-1)

    def action_params(self, x: Tensor) -> Tensor:
        """Parameters of π(·|s), `[..., A]`."""
        return self._params(self._trunk(x))

    def value(self, x: Tensor) -> Tensor:
        """V(s), `[...]`."""
        if not self.has_critic:
            return x.new_zeros(x.shape[:-1])
        value: Tensor = self.critic(self._trunk(x)).squeeze(-1)
        return value

    def evaluate(self, x: Tensor, action: Tensor) -> Outputs:
        """Everything a loss needs, in one pass."""
        features = self._trunk(x)
        distribution = self.actions.distribution(self._params(features))
        value = self.critic(features).squeeze(-1) if self.has_critic else x.new_zeros(x.shape[:-1])
        return Outputs(distribution.log_prob(action), distribution, value)


def flat_box(space: spaces.Space[Any]) -> tuple[int, ...]:
    """The shape of a Box of numbers that an MLP can read, or an error that says why not."""
    if not isinstance(space, spaces.Box):
        raise UsageError(
            f"observations of {type(space).__name__} are not supported yet; supported: Box. "
            "Wrap the env, for example with --wrappers FlattenObservation."
        )
    if 0 in space.shape:
        raise UsageError(f"the observation space {space} is empty")
    if len(space.shape) >= 3 or (len(space.shape) == 2 and space.dtype == np.uint8):
        raise UsageError(
            f"observations of shape {space.shape} look like images, which are not supported yet "
            "(and never silently flattened); wrap the env with --wrappers FlattenObservation to flatten them"
        )
    return tuple(space.shape)


def mean_range(space: spaces.Space[Any]) -> tuple[Tensor, Tensor]:
    """Centre and half-width of a bounded Box, flat, for a tanh-scaled mean."""
    if not isinstance(space, spaces.Box):
        raise UsageError(
            f"tanh_mean needs continuous actions, but this env has {space}; drop it (--no-tanh-mean) or use a Box env"
        )
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise UsageError(f"tanh_mean needs a Box bounded on all sides, but this env has {space}; drop it")
    low, high = (torch.from_numpy(side.astype(np.float32).reshape(-1)) for side in (space.low, space.high))
    return (low + high) / 2, (high - low) / 2
