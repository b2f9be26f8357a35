"""Actor and critic, separate or on one trunk, for any observation and action space, with or without memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.errors import UsageError
from surefoot.math.constants import LOG_STD_RANGE
from surefoot.math.exploration import sde_log_std, sde_noise
from surefoot.policies.actions import ActionModel, build_actions
from surefoot.policies.encoder_choice import encoder_makers
from surefoot.policies.memory import Memory
from surefoot.policies.mlp import MLP
from surefoot.policies.networks import Networks, PlainNetworks
from surefoot.policies.normalizer import build_normalizer
from surefoot.policies.plans import shares_trunk
from surefoot.policies.user_encoder import EncoderClass
from surefoot.spaces.layout import Layout
from surefoot.spaces.masks import ActionMasks
from surefoot.types import Context, Outputs

if TYPE_CHECKING:
    from surefoot.policies.config import PolicyConfig
    from surefoot.types import GymSpace

Acted: TypeAlias = tuple[Tensor, Tensor, Tensor | None]


@dataclass(frozen=True, slots=True)
class Noise:
    """The random numbers for one step of n envs."""

    rows: Tensor  # [n, num_noise]
    matrix: Tensor | None = None  # [n, F + 1, num_gaussian]: gSDE noise, which replaces the Gaussian noise

    def of(self, own: slice) -> Noise:
        """The noise for these envs only."""
        return Noise(self.rows[own], None if self.matrix is None else self.matrix[own])


@dataclass(frozen=True, slots=True)
class NoiseRows:
    """The random numbers for the T steps of a rollout."""

    rows: Tensor  # [T, N, num_noise]
    matrices: Tensor | None = None  # [S, N, F + 1, num_gaussian], one for each stretch of steps
    stretch: int = 1

    def __len__(self) -> int:
        return len(self.rows)

    def of_envs(self, own: slice) -> NoiseRows:
        """The numbers of some of the envs."""
        matrices = None if self.matrices is None else self.matrices[:, own].contiguous()
        return NoiseRows(self.rows[:, own].contiguous(), matrices, self.stretch)

    def __getitem__(self, t: int) -> Noise:
        return Noise(self.rows[t], None if self.matrices is None else self.matrices[t // self.stretch])


class ActorCritic(nn.Module):
    """π(a|s) and V(s). `critic=False` (REINFORCE) builds no critic: V ≡ 0.

    Methods take rows that went through `normalize`; a rollout is normalised once, not per minibatch. With a memory, B
    rows are T·n in time-major order, and `context` says where episodes begin and has the memory before the first row.
    """

    log_std: nn.Parameter | None  # [num_gaussian]; gSDE: [F, num_gaussian]
    mean_centre: Tensor
    mean_half: Tensor

    def __init__(
        self,
        observation_space: GymSpace,
        action_space: GymSpace,
        config: PolicyConfig,
        *,
        critic: bool = True,
        masked: bool = False,
        encoder: EncoderClass | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """`encoder`: the class that `config.encoder` names, if it is a user's own.

        `generator`: draws the initial weights; None: PyTorch's global one.
        """
        super().__init__()
        self.config, self.has_critic, self.action_space = config, critic, action_space
        self.layout = Layout(observation_space, ActionMasks(action_space).size if masked else 0)
        self.actions = build_actions(action_space, config.action_bounds)
        self.normalizer = build_normalizer(self.layout) if config.normalize_observations else None
        self.shared = shares_trunk(config, self.layout)
        # A single Box keeps its shape if something other than an MLP processes it; an image also keeps its dtype.
        self.raw_inputs = self.layout.plain and self.layout.leaves[0].kind == "image"
        self.shaped_inputs = self.raw_inputs or (self.layout.plain and config.own_encoder)
        inputs = self._build_encoders(encoder, generator)
        self.log_std = None
        if self.actions.num_gaussian and config.std == "parameter":
            self.log_std = _filled((self.actions.num_gaussian,), config.log_std_init)
        if config.tanh_mean:
            centre, half = mean_range(self.actions, action_space)
            self.register_buffer("mean_centre", centre, persistent=False)
            self.register_buffer("mean_half", half, persistent=False)
        self._build_networks(inputs, generator)
        self.sde = bool(self.actions.num_gaussian) and config.std == "gsde"
        if self.sde:
            width = self.actor.head.in_features
            initial = config.log_std_init - 0.5 * math.log(width)
            self.log_std = _filled((width, self.actions.num_gaussian), initial)
        if config.init == "orthogonal":
            self._orthogonal(generator)
        self.networks: Networks = PlainNetworks(self)

    def _build_encoders(self, own: EncoderClass | None, generator: torch.Generator | None) -> int:
        """Build everything before the MLPs; returns their number of inputs."""
        config, layout = self.config, self.layout
        makers = encoder_makers(layout, config, own, generator)
        self.encoder = None if makers is None else makers[0]()
        inputs = self.encoder.size if self.encoder is not None else layout.numbers
        cell = partial(Memory, config.memory, inputs, config.memory_size, generator)
        self.memory = None if config.memory == "none" else cell()
        apart = self.has_critic and not self.shared and self.memory is None
        self.critic_encoder = makers[1]() if makers is not None and apart else None
        return inputs if self.memory is None else config.memory_size

    def _build_networks(self, inputs: int, generator: torch.Generator | None) -> None:
        config = self.config
        mlp = partial(MLP, activation=config.activation, layer_norm=config.layer_norm, generator=generator)
        actor_hidden, critic_hidden = list(config.hidden_sizes), list(config.critic_hidden_sizes or config.hidden_sizes)
        self.trunk = None
        if self.shared:
            if config.critic_hidden_sizes is not None:
                raise UsageError("images share a trunk, so critic_hidden_sizes has no effect; set --no-shared-trunk")
            if not actor_hidden and self.encoder is None and self.memory is None:
                raise UsageError("shared_trunk needs at least one hidden layer; set hidden_sizes")
            if actor_hidden:
                self.trunk = mlp([inputs, *actor_hidden], activate_last=True)
                inputs = actor_hidden[-1]
            actor_hidden, critic_hidden = [], []
        self.actor = mlp([inputs, *actor_hidden, self.actions.num_outputs(config.std)])
        if self.has_critic:
            seen = inputs if self.critic_encoder is None else self.critic_encoder.size
            self.critic = mlp([seen, *critic_hidden, 1])

    def _orthogonal(self, generator: torch.Generator | None) -> None:
        for part in (self.encoder, self.memory, self.critic_encoder):
            if part is not None:
                part.orthogonal(generator)
        heads = {self.actor.head: 0.01}
        networks = [self.trunk, self.actor]
        if self.has_critic:
            heads[self.critic.head] = 1.0
            networks.append(self.critic)
        for module in (layer for network in networks if network is not None for layer in network.layers):
            assert isinstance(module, nn.Linear)
            nn.init.orthogonal_(module.weight, heads.get(module, math.sqrt(2.0)), generator)
            nn.init.zeros_(module.bias)
        if self.actions.num_gaussian and self.config.std == "state":
            # softplus⁻¹ of the initial std, in the part of the head's bias that controls it
            std = math.exp(self.config.log_std_init)
            with torch.no_grad():
                for columns in self.actions.log_std_slices:
                    self.actor.head.bias[columns].fill_(std + math.log(-math.expm1(-std)))

    def actor_parameters(self) -> list[nn.Parameter]:
        """Everything that π depends on, including what it shares with the critic. Chosen by module, never by name."""
        parts = (self.encoder, self.memory, self.trunk, self.actor)
        own = [parameter for part in parts if part is not None for parameter in part.parameters()]
        return [*own, *([] if self.log_std is None else [self.log_std])]

    def critic_parameters(self) -> list[nn.Parameter]:
        """The parameters that only V depends on."""
        own = [] if self.critic_encoder is None else list(self.critic_encoder.parameters())
        return [*own, *(self.critic.parameters() if self.has_critic else ())]

    def describe(self) -> list[str]:
        """Lines about the encoders between observation and MLPs, for the start of a run; empty for plain numbers."""
        lines = [] if self.encoder is None else self.encoder.describe()
        if self.config.critic_obs:
            lines.append(f"only the critic sees: {', '.join(self.config.critic_obs)}")
        if self.layout.mask_size:
            lines.append(f"action mask: {self.layout.mask_size} choices")
        if self.memory is not None:
            lines.append(f"memory: {self.config.memory} → {self.config.memory_size}")
        if self.sde:
            steps = self.config.sde_resample
            lines.append(f"exploration: gSDE, redrawn {f'every {steps} steps' if steps else 'for each rollout'}")
        return lines

    def normalize(self, obs: Tensor) -> Tensor:
        """Raw rows `[..., *layout.shape]` as network inputs: flat float32, unless an encoder needs the shape."""
        if self.raw_inputs:
            return obs
        x = obs if obs.dtype == torch.float32 else obs.float()
        if self.normalizer is not None:
            x = self.normalizer(x)
        shape = self.layout.shape
        return x if len(shape) == 1 or self.shaped_inputs else x.flatten(-len(shape)) if shape else x[..., None]

    @property
    def device(self) -> torch.device:
        return self.actor.head.weight.device  # faster than looking for the first parameter

    def initial_memory(self, num_envs: int) -> Tensor | None:
        """`[n, M]` zeros; None for a policy without memory."""
        if self.memory is None:
            return None
        return torch.zeros((num_envs, self.memory.size), dtype=torch.float32, device=self.device)

    def compute_with(self, networks: Networks) -> None:
        """Let these networks, which have this policy's weights, compute its memory and MLPs from now on."""
        self.networks = networks

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        """Use only PyTorch's operations inside, like a policy that was loaded from a file."""
        networks, self.networks = self.networks, self.networks.reference
        try:
            yield
        finally:
            self.networks = networks

    def _recall(self, x: Tensor, context: Context | None) -> Tensor:
        """Features after encoder and memory: everything before the MLPs."""
        features = self._encode(x)
        if self.memory is not None:
            assert context is not None, "a policy with memory needs to know what was before"
            features = self.networks.recall(features, context)
        return features

    def _encode(self, x: Tensor) -> Tensor:
        if self.encoder is not None:
            features: Tensor = self.encoder(x)
            return features
        return x[..., self.layout.learned] if self.layout.mask_size else x

    def _params_of(self, hidden: Tensor, x: Tensor) -> Tensor:
        """The distribution's parameters from the actor's last hidden features."""
        head = self.actor.head
        # gSDE learns the features through the mean alone.
        log_std = sde_log_std(hidden.detach(), self._sde_log_std) if self.sde else self.log_std
        return self.params_from(F.linear(hidden, head.weight, head.bias), log_std, x)

    def params_from(self, outputs: Tensor, log_std: Tensor | None, x: Tensor) -> Tensor:
        """The distribution's parameters from the actor's outputs."""
        if self.actions.num_gaussian:
            squash = (self.mean_centre, self.mean_half) if self.config.tanh_mean else None
            outputs = self.actions.params_from(outputs, log_std, squash)
        mask = self.layout.mask
        return outputs if mask is None else self.actions.masked(outputs, x[..., mask] > 0.5)

    def action_params(self, x: Tensor, context: Context | None = None) -> Tensor:
        """Parameters of π(·|s), `[..., A]`. PyTorch computes them from the features, whatever the networks are."""
        return self.last_hidden(x, context)[1]

    @property
    def has_hidden(self) -> bool:
        """Whether anything stands between the observation's numbers and the actor's last layer."""
        before = (self.encoder, self.memory, self.trunk)
        return len(self.actor.layers) > 1 or any(part is not None for part in before)

    def last_hidden(self, x: Tensor, context: Context | None = None) -> tuple[Tensor, Tensor]:
        """(what the actor's last layer is given, parameters of π), `[B, …]` each."""
        hidden = self._hidden(self._recall(x, context))
        return hidden, self._params_of(hidden, x)

    def _hidden(self, features: Tensor) -> Tensor:
        reference = self.networks.reference
        return reference.hidden(reference.shared(features))

    def step(self, x: Tensor, memory: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """One step of n envs with memory: (parameters of π, the new memory)."""
        features, memory = self.networks.remember(self._encode(x), memory, start)
        return self._params_of(self._hidden(features), x), memory

    @property
    def _sde_log_std(self) -> Tensor:
        assert self.log_std is not None
        return self.log_std.clamp(*LOG_STD_RANGE)

    @property
    def matrix_shape(self) -> tuple[int, ...]:
        """The shape of one env's gSDE noise matrix; () if there is none."""
        return (self.actor.head.in_features + 1, self.actions.num_gaussian) if self.sde else ()

    def noise(self, steps: int, num_envs: int, generator: torch.Generator) -> NoiseRows:
        """The noise that `act` needs for each step; steps of one stretch share their gSDE matrices."""
        device = self.device
        rows = self.actions.noise((steps, num_envs), generator).to(device)
        if not self.sde:
            return NoiseRows(rows)
        stretch = self.config.sde_resample or steps
        shape = (-(-steps // stretch), num_envs, *self.matrix_shape)
        matrices = torch.randn(shape, generator=generator, dtype=torch.float32, device=generator.device).to(device)
        return NoiseRows(rows, matrices, stretch)

    def act(self, x: Tensor, noise: Noise, memory: Tensor | None, start: Tensor | None) -> Acted:
        """One step of n envs: (parameters of π, the actions drawn with this noise, the new memory)."""
        features = self._encode(x)
        if self.memory is not None:
            assert memory is not None
            assert start is not None
            features, memory = self.networks.remember(features, memory, start)
        if not self.sde:
            params = self.params_from(self.networks.outputs(features), self.log_std, x)
            return params, self.actions.draw(params, noise.rows), memory
        hidden = self._hidden(features)
        params = self._params_of(hidden, x)
        return params, self.actions.draw(params, self._sde_rows(hidden, noise)), memory

    def _sde_rows(self, hidden: Tensor, noise: Noise) -> Tensor:
        """The noise with gSDE's in place of the Gaussian one."""
        if noise.matrix is None:
            return noise.rows
        rows, gaussian = noise.rows.clone(), sde_noise(hidden, self._sde_log_std, noise.matrix)
        sizes = [columns.stop - columns.start for columns in self.actions.gaussian_noise]
        for columns, own in zip(self.actions.gaussian_noise, torch.split(gaussian, sizes, -1), strict=True):
            rows[:, columns] = own
        return rows

    def value(self, x: Tensor, context: Context | None = None) -> Tensor:
        """V(s), `[...]`."""
        if not self.has_critic:
            return x.new_zeros(x.shape[: x.dim() - self.input_dims], dtype=torch.float32)
        own = self.critic_encoder
        return self.networks.value(self._recall(x, context) if own is None else own(x))

    @property
    def input_dims(self) -> int:
        """The number of axes of one row of inputs."""
        return len(self.layout.shape) if self.shaped_inputs else 1

    def last_outputs(self, x: Tensor, context: Context | None = None) -> tuple[Tensor, Tensor | None]:
        """(what the actor's last layer says `[B, O]`, before any mask; V `[B]`), in one pass."""
        features, own = self._recall(x, context), self.critic_encoder
        if own is None:
            return self.networks.both(features)
        return self.networks.outputs(features), self.networks.reference.value_of(own(x))

    def evaluate(self, x: Tensor, action: Tensor, context: Context | None = None) -> Outputs:
        """Everything a loss needs, in one pass."""
        if not self.sde:
            outputs, value = self.last_outputs(x, context)
            params = self.params_from(outputs, self.log_std, x)
        else:  # it needs more than the networks' outputs
            features, own, reference = self._recall(x, context), self.critic_encoder, self.networks.reference
            shared = reference.shared(features)
            params = self._params_of(reference.hidden(shared), x)
            value = reference.value_of(shared if own is None else own(x))
        distribution = self.actions.distribution(params)
        value = params.new_zeros(params.shape[:-1]) if value is None else value
        return Outputs(distribution.log_prob(action), distribution, value)


def _filled(shape: tuple[int, ...], value: float) -> nn.Parameter:
    return nn.Parameter(torch.full(shape, value, dtype=torch.float32, device="cpu"))


def mean_range(actions: ActionModel, space: GymSpace) -> tuple[Tensor, Tensor]:
    """Centre and half-width of the bounds of every Gaussian dimension, for a tanh-scaled mean."""
    if not actions.num_gaussian:
        raise UsageError(
            f"tanh_mean needs continuous actions, but this env has {space}; drop it (--no-tanh-mean) or use a Box env"
        )
    low, high = (torch.from_numpy(side) for side in actions.gaussian_bounds())
    if not (low.isfinite().all() and high.isfinite().all()):
        raise UsageError(f"tanh_mean needs a Box bounded on all sides, but this env has {space}; drop it")
    return (low + high) / 2, (high - low) / 2
