"""Estimates a run's memory from its settings and spaces alone, before anything large is allocated.

Every term is what some line allocates, in bytes; `benchmarks/footprint.py` compares the sum with what processes really
use. The rollout, the networks and learning are counted separately, so that an error can say which setting to change.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from surefoot.policies.actions import build_actions
from surefoot.policies.images import CNNS, outputs_of
from surefoot.policies.plans import chosen, geometry, is_embedded, shares_trunk

if TYPE_CHECKING:
    from surefoot.policies.actions import ActionModel
    from surefoot.policies.config import PolicyConfig
    from surefoot.spaces.layout import Layout, Leaf
    from surefoot.types import GymSpace

F = 4  # bytes of a float32
COLUMNS = 64  # bytes per step for scalars: log π, reward, values, advantage, target, KL, and their copies
SHARED = 17  # bytes per step of scalars in memory that workers share: log π, reward and flags
GROUP = 512  # samples that a kernel thread takes through a layer together
SHARDS = 8  # partial gradients of a minibatch that the kernels sum
LIVE, BACKUP, SAVING = 4, 4, 9  # copies of the weights: live with gradient and moments; backup; checkpoint
AT_ONCE = 2**22  # shuffled indices per kernel call


@dataclass(frozen=True)
class Footprint:
    """Bytes."""

    rollout: int
    networks: int
    learning: int

    @property
    def total(self) -> int:
        return self.rollout + self.networks + self.learning


@dataclass(frozen=True)
class Part:
    """The size of an encoder, or of one part of it."""

    features: int
    parameters: int = 0
    forward: int = 0  # numbers per sample that are alive at once in the forward pass
    kept: int = 0  # numbers per sample that the backward pass needs


@dataclass(frozen=True)
class Plan:
    """Everything that the size of a run depends on."""

    layout: Layout
    action_space: GymSpace
    policy: PolicyConfig
    critic: bool
    steps: int  # rows of the rollout
    num_envs: int
    minibatches: int = 1  # per epoch; each is one gradient
    shuffled: int = 0  # epochs with shuffled samples
    twice: bool = False  # second derivatives are needed
    native: bool = True  # use the kernels if they support the policy
    threads: int = 1  # at most
    measured: bool = False  # the number of threads will be measured
    workers: bool = False  # worker processes step the envs, and may play whole rollouts

    @property
    def actions(self) -> ActionModel:
        return build_actions(self.action_space, self.policy.action_bounds)

    @property
    def samples(self) -> int:
        return self.steps * self.num_envs

    @property
    def shared_trunk(self) -> bool:
        return shares_trunk(self.policy, self.layout)

    @property
    def served(self) -> bool:
        """Whether the kernels will be used, as far as can be told before the policy exists."""
        learned = any(_encoded(leaf, self.policy).parameters for leaf in self.layout.leaves)
        gsde = self.policy.std == "gsde" and bool(self.actions.num_gaussian)
        return self.native and not learned and not gsde and not self.policy.own_encoder


def footprint(plan: Plan) -> Footprint:
    """The memory of a run that collects and learns on one device."""
    chains, encoder, parameters = _chains(plan), _encoder(plan), num_parameters(plan)
    networks = F * parameters * (LIVE + max(BACKUP, SAVING))
    learning = _learning(plan, chains, encoder)
    if plan.served:
        shards, workspace = F * SHARDS * parameters, _workspace(plan, chains)
        working = F * parameters * (LIVE + max(BACKUP, SAVING)) + shards + plan.threads * workspace
        # Measuring the number of threads takes a second network with twice the threads, and a copy of the weights.
        trying = F * parameters * 2 * LIVE + 2 * shards + 3 * plan.threads * workspace // 2
        networks = max(working, trying) if plan.measured and plan.threads > 1 else working
    return Footprint(_rollout(plan, encoder), networks, learning)


def num_parameters(plan: Plan) -> int:
    """Parameters of the policy, without a user's own encoder and a few numbers (log σ)."""
    encoder = _encoder(plan)
    layers = sum((a + 1) * b for chain in _chains(plan) for a, b in pairwise(chain))
    if plan.policy.layer_norm:  # gain and bias of every hidden unit
        outputs = plan.actions.num_outputs(plan.policy.std) + plan.critic
        layers += 2 * (sum(sum(chain[1:]) for chain in _chains(plan)) - outputs)
    return layers + encoder.parameters + _memory_parameters(plan, encoder.features)


def stored_bytes(plan: Plan) -> int:
    """Bytes of a rollout that is collected on the host and learned from on another device."""
    return _rollout(plan, _encoder(plan))


def _row(layout: Layout) -> int:
    """Bytes of one observation."""
    return int(np.prod(layout.shape, dtype=np.int64)) * np.dtype(layout.dtype).itemsize


def _rollout(plan: Plan, encoder: Part) -> int:
    """The stored steps, and the copies of observations that are made for the whole rollout."""
    actions, layout = plan.actions, plan.layout
    numbers = int(np.prod(layout.shape, dtype=np.int64))
    action = int(np.prod(actions.shape, dtype=np.int64)) * actions.dtype.itemsize
    each = _row(layout) + 2 * action + 2 * F * actions.num_params + COLUMNS
    each += 2 * F * actions.num_noise  # noise is drawn for the whole rollout
    if plan.workers and plan.served:  # what they play is in shared memory first
        each += _row(layout) + action + F * (actions.num_params + actions.num_noise) + SHARED
    if plan.policy.std == "gsde":
        each += F * _sde_numbers(plan, encoder) // min(plan.policy.sde_resample or plan.steps, plan.steps)
    raw = layout.plain and any(leaf.kind == "image" for leaf in layout.leaves)
    if plan.policy.normalize_observations and not raw:  # the result, an intermediate copy, and the statistics' copy
        each += 3 * F * numbers
    elif layout.plain and not raw and layout.dtype != np.float32:
        each += F * numbers
    if not raw:  # the critic's input: the final observations of truncated episodes are appended
        each += F * numbers
    return each * (plan.samples + plan.num_envs)


def _sde_numbers(plan: Plan, encoder: Part) -> int:
    """Numbers of one gSDE exploration matrix."""
    return ((plan.policy.hidden_sizes or (encoder.features,))[-1] + 1) * plan.actions.num_gaussian


def _learning(plan: Plan, chains: list[list[int]], encoder: Part) -> int:
    minibatch = -(-plan.samples // plan.minibatches)
    hidden, remembered = sum(sum(chain[1:]) for chain in chains), plan.policy.memory_size
    if plan.policy.memory == "none":
        remembered = 0
    if plan.served:
        order = 2 * 8 * plan.samples * min(plan.shuffled, max(1, AT_ONCE // plan.samples))
        features = F * encoder.forward * plan.samples
        through_time = 12 * F * remembered * minibatch + F * remembered * plan.samples
        return order + features + through_time
    widest = max((a + b for chain in chains for a, b in pairwise(chain[1:])), default=0)
    once = F * (encoder.forward + widest + 20 * remembered)  # V and KL are computed for all samples at once
    if plan.policy.std == "gsde":  # each sample has its own noise matrix
        once += 2 * F * _sde_numbers(plan, encoder)
    kept = F * (encoder.kept + encoder.features + 2 * hidden + 30 * remembered) * (3 if plan.twice else 1)
    return once * plan.samples + (kept + _row(plan.layout) + COLUMNS) * minibatch


def _workspace(plan: Plan, chains: list[list[int]]) -> int:
    """Per kernel thread: a group of samples in every layer, forward and backward."""
    seen, kept = chains[0][0], 3 if plan.policy.layer_norm else 2  # of every unit
    numbers = 2 * seen
    for chain in chains:
        numbers += kept * sum(chain[1:]) + 3 * max(chain)
    return F * GROUP * numbers


def _chains(plan: Plan) -> list[list[int]]:
    """Layer widths of trunk, actor and critic, inputs first."""
    policy = plan.policy
    inputs = _encoder(plan).features if policy.memory == "none" else policy.memory_size
    outputs, hidden = plan.actions.num_outputs(policy.std), list(policy.hidden_sizes)
    if plan.shared_trunk:
        last = hidden[-1] if hidden else inputs
        heads = [[last, outputs], *([[last, 1]] if plan.critic else [])]
        return [[inputs, *hidden], *heads] if hidden else heads
    own = list(policy.critic_hidden_sizes or policy.hidden_sizes)
    return [[inputs, *hidden, outputs], *([[inputs, *own, 1]] if plan.critic else [])]


def _memory_parameters(plan: Plan, features: int) -> int:
    gates = {"none": 0, "gru": 3, "lstm": 4}[plan.policy.memory]
    return gates * plan.policy.memory_size * (features + plan.policy.memory_size + 2)


def _encoder(plan: Plan) -> Part:
    """The encoders of all leaves together. A user's own encoder is not known yet and assumed to be small."""
    if plan.policy.own_encoder:
        return Part((plan.policy.hidden_sizes or (1,))[0])
    parts = [_encoded(leaf, plan.policy) for leaf in plan.layout.leaves]
    plain = all(leaf.kind in ("vector", "binary") for leaf in plan.layout.leaves)
    features = sum(part.features for part in parts)
    parameters = sum(part.parameters for part in parts)
    apart = 2 if plan.critic and not plan.shared_trunk and plan.policy.memory == "none" else 1
    return Part(
        features,
        apart * parameters,
        0 if plain else sum(part.forward for part in parts) + features,
        0 if plain else apart * sum(part.kept for part in parts),
    )


def _encoded(leaf: Leaf, policy: PolicyConfig) -> Part:
    if leaf.kind == "image" and not policy.own_encoder:
        shape, _ = geometry(leaf)
        build, size = CNNS[chosen(leaf, policy.encoder)]
        cnn = build(*shape, torch.Generator("cpu"))  # must not consume the run's random numbers
        outputs = outputs_of(cnn, *shape[1:])
        parameters = sum(p.numel() for p in cnn.parameters()) + (outputs[-1] + 1) * size
        # The image as floats and scaled; every layer's outputs are kept.
        return Part(size, parameters, 2 * leaf.size, leaf.size + sum(outputs))
    if leaf.sizes and is_embedded(leaf):
        size = len(leaf.sizes) * policy.embedding_size
        return Part(size, sum(leaf.sizes) * policy.embedding_size, size, size)
    if leaf.sizes:  # one-hot: indices, comparison, floats
        return Part(sum(leaf.sizes), 0, 2 * sum(leaf.sizes))
    return Part(leaf.size)
