"""Which policies the compiled kernels support, and their description for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from surefoot.kernels.description import Cell, Description, HeadPart, Linear
from surefoot.kernels.network import Network
from surefoot.kernels.outputs import CompiledMLPs

if TYPE_CHECKING:
    from surefoot.engine.torch.flat import FlatParameters
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.policies.encoders import Encoder
    from surefoot.policies.memory import Memory
    from surefoot.policies.mlp import MLP
    from surefoot.policies.user_encoder import CustomEncoder
    from surefoot.types import Array, Context


class NotServed(Exception):
    """The kernels cannot run this policy; the message says why."""


def require_known_head(policy: ActorCritic) -> None:
    """NotServed if the kernels do not know what the head computes."""
    if policy.sde:
        raise NotServed("its exploration depends on the state")


def parts_to_compile(policy: ActorCritic) -> list[MLP]:
    """The MLPs that the kernels can compute for a policy that they support only in part; NotServed if none."""
    require_known_head(policy)
    if policy.critic_encoder is not None:
        raise NotServed("its critic has an encoder of its own")
    return [part for part in (policy.trunk, policy.actor, policy.critic if policy.has_critic else None) if part]


def compile_mlps(policy: ActorCritic, flat: FlatParameters, threads: int) -> CompiledMLPs:
    """The MLPs of a policy in the kernels, with the parameters of `flat`."""
    parts = parts_to_compile(policy)
    parameters = [parameter for part in parts for parameter in part.parameters()]
    offsets = _offsets([*flat.actor_list, *flat.critic_list])
    inputs = parts[0].layers[0].in_features
    assert isinstance(inputs, int)
    net = Network(_mlps(policy, inputs, offsets), threads)
    return CompiledMLPs(net, flat.vector, parameters, [offsets[id(p)] for p in parameters])


def _mlps(policy: ActorCritic, inputs: int, offsets: dict[int, int]) -> Description:
    return Description(
        inputs=inputs,
        masks=0,
        activation=policy.config.activation,
        trunk=[] if policy.trunk is None else _layers(policy.trunk, offsets),
        actor=_layers(policy.actor, offsets),
        critic=_layers(policy.critic, offsets) if policy.has_critic else [],
        parts=[],
        size=sum(p.numel() for p in policy.parameters()),
        actor_size=sum(p.numel() for p in policy.actor_parameters()),
        first_trained=0,
    )


def describe(policy: ActorCritic, first_trained: int = 0) -> Description:
    """The policy's description for the kernels; raises NotServed. Parameters are laid out as in `FlatParameters`."""
    require_known_head(policy)
    learned = (part.parameters() for part in (policy.encoder, policy.critic_encoder) if part is not None)
    if any(True for parameters in learned for _ in parameters):
        raise NotServed("its observations go through an encoder that learns")
    offsets = _offsets([*policy.actor_parameters(), *policy.critic_parameters()])
    encoder, memory = widest_encoder(policy), None
    inputs = policy.layout.numbers if encoder is None else encoder.size
    if policy.memory is not None:
        inputs, memory = policy.memory.hidden, _cell(policy.memory, offsets)
    return replace(
        _mlps(policy, inputs, offsets),
        masks=policy.layout.mask_size,
        parts=_parts(policy, offsets),
        first_trained=first_trained,
        memory=memory,
    )


def _cell(memory: Memory, offsets: dict[int, int]) -> Cell:
    of_input, of_hidden, input_bias, hidden_bias = memory.net.parameters()  # in PyTorch's order
    layers = [
        Linear(weight.shape[1], weight.shape[0], offsets[id(weight)], offsets[id(bias)], False)
        for weight, bias in ((of_input, input_bias), (of_hidden, hidden_bias))
    ]
    return Cell(memory.is_lstm, *layers)


def _offsets(parameters: Sequence[nn.Parameter]) -> dict[int, int]:
    """The offset of each parameter in the flat vector."""
    found, offset = {}, 0
    for parameter in parameters:
        found[id(parameter)] = offset
        offset += parameter.numel()
    return found


def _layers(mlp: MLP, offsets: dict[int, int]) -> list[Linear]:
    layers, last = [], len(mlp.layers) - 1
    for at, layer in enumerate(mlp.layers):
        assert isinstance(layer, nn.Linear)
        activated = at < last or mlp.activate_last
        where = (offsets[id(layer.weight)], offsets[id(layer.bias)])
        norm = None
        if activated and len(mlp.norms):
            gain, shift = mlp.norms[at].parameters()  # in PyTorch's order
            norm = (offsets[id(gain)], offsets[id(shift)])
        layers.append(Linear(layer.in_features, layer.out_features, *where, activated, norm))
    return layers


def _parts(policy: ActorCritic, offsets: dict[int, int]) -> list[HeadPart]:
    """The head's parts, in the order of the action space, each with its first columns."""
    parts = list[HeadPart]()
    output = param = action = noise = mask = gaussian = 0
    log_std = None if policy.log_std is None else offsets[id(policy.log_std)]
    for part in policy.actions.kernel_parts:
        kind, size = part.kind, part.size
        own_std = kind.gaussian and log_std is not None
        parts.append(
            HeadPart(
                kind,
                size,
                output,
                param,
                action,
                noise,
                mask=mask if kind.chooses and policy.layout.mask_size else -1,
                log_std=log_std + gaussian if kind.gaussian and log_std is not None else -1,
                mean_range=_mean_range(policy, slice(gaussian, gaussian + size)) if kind.gaussian else None,
                log_scale=part.log_scale,
            )
        )
        output += size if own_std else size * kind.params
        param, noise = param + size * kind.params, noise + size * kind.noises
        action, mask = action + kind.actions(size), mask + (size if kind.chooses else 0)
        gaussian += size if kind.gaussian else 0
    return parts


def _mean_range(policy: ActorCritic, own: slice) -> tuple[Array, Array] | None:
    """Centre and half-width of the range that the means of these Gaussian dimensions are squashed into."""
    if not policy.config.tanh_mean:
        return None
    return policy.mean_centre[own].numpy().copy(), policy.mean_half[own].numpy().copy()


def widest_encoder(policy: ActorCritic) -> Encoder | CustomEncoder | None:
    """The encoder of everything that actor or critic see; the critic may see more."""
    return policy.critic_encoder if policy.config.critic_obs and policy.has_critic else policy.encoder


def rows_of(policy: ActorCritic, x: Tensor) -> Tensor:
    """Inputs `[B, ...]` in the kernels' form: the MLPs' inputs, then the action mask.

    The actor's first layer may take fewer columns than there are: the first ones.
    """
    encoder = widest_encoder(policy)
    if encoder is None:
        return x.contiguous()
    seen: Tensor = encoder(x)  # for example one-hot: it has no parameters
    mask = policy.layout.mask
    return seen if mask is None else torch.cat([seen, x[..., mask]], -1)


def kernel_context(context: Context | None) -> tuple[Tensor, Tensor] | None:
    """The context in the kernels' form."""
    return None if context is None else (context.start.contiguous(), context.memory.contiguous())


def as_rows(action: Tensor) -> Tensor:
    """Stored actions `[B]` or `[B, D]` in the kernels' form: contiguous float32 rows."""
    return action.reshape(len(action), -1).to(torch.float32).contiguous()
