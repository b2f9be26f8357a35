"""Observations to try an exported policy with, and what the policy itself does with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from surefoot.deploy import choosing
from surefoot.deploy import program as ops
from surefoot.deploy.interpret import execute, split_rows
from surefoot.engine.torch.modes import own_modes
from surefoot.engine.torch_threads import torch_threads
from surefoot.errors import SurefootError
from surefoot.policies.actor_critic import Noise
from surefoot.spaces.masks import choices

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.spaces.rows import Leaf, RowLayout
    from surefoot.types import Array

    Draws: TypeAlias = Callable[[Array], tuple[Array, Array | None]]  # begins [S, L] -> noise rows, gSDE's matrices


NEAR_TIE = 1e-5  # two choices closer than this may change places by rounding
LARGEST_ROUNDING = 1e-4  # the deepest of our networks round to about 1e-5


@dataclass(frozen=True)
class Trials:
    """S sequences of L observations. `begins`: where an episode begins; always at the first."""

    rows: Array  # [S, L, *layout.shape], as the program's layout packs them
    begins: Array  # [S, L] bool

    @property
    def count(self) -> int:
        return self.begins.size


@dataclass(frozen=True)
class Expected:
    """What the policy does with them, computed in float64: an export's own rounding is then all that is measured."""

    params: Array  # [S, L, A]: of the distribution
    action: Array  # [S, L, numbers]: as the env gets it
    margin: Array  # [S, L] by how much the nearest choice was made, beyond rounding; ∞ if there is none
    rounding: float  # by how much PyTorch's float32 differs from that, relative to numbers above 1


def random_trials(program: ops.Program, sequences: int, length: int, seed: int) -> Trials:
    """Anything that the spaces allow, and numbers far outside of what training has seen."""
    generator, layout = np.random.default_rng(seed), program.layout
    count = sequences * length
    parts = [_random_leaf(leaf, count, generator) for leaf in layout.leaves]
    rows = np.concatenate(parts, axis=1)
    if layout.mask_size:
        masks = [_random_mask(size, count, generator) for size in choices(program.action_space)]
        rows = np.concatenate([rows, *masks], axis=1)
    begins = generator.random((sequences, length)) < 0.05
    begins[:, 0] = True
    return Trials(rows.reshape(sequences, length, *layout.shape).astype(layout.dtype), begins)


def _random_leaf(leaf: Leaf, count: int, generator: np.random.Generator) -> Array:
    shape = (count, leaf.size)
    if leaf.kind == "binary":
        return generator.integers(0, 2, shape)
    if leaf.sizes:
        return generator.integers(0, np.array(leaf.sizes), shape)
    if leaf.dtype.kind in "iub":
        low, high = max(leaf.low, -1000.0), min(leaf.high, 1000.0)
        return generator.integers(int(low), int(max(low, high)), shape, endpoint=True)
    scale = 10.0 ** generator.uniform(-2, 1, (count, 1))
    return np.clip(generator.standard_normal(shape) * scale, leaf.low, leaf.high)


def _random_mask(size: int, count: int, generator: np.random.Generator) -> Array:
    legal = generator.random((count, size)) < 0.6
    legal[np.arange(count), generator.integers(0, size, count)] = True
    return legal


def expected(policy: ActorCritic, program: ops.Program, trials: Trials, draws: Draws | None = None) -> Expected:
    """All sequences in parallel, with PyTorch and with the description; SurefootError if these two differ.

    `draws`: the noise of drawn actions; None: the most likely ones.
    """
    noise = None if draws is None else draws(trials.begins)
    rounded, sent = _with_torch(policy, widened(program, policy.layout, trials), noise)
    params, action = _exactly(program, trials, noise)
    gap = np.abs(rounded - params)  # [S, L, A]
    rounding = float((gap / np.maximum(1.0, np.abs(params))).max())
    margin = least_margin(program, params if noise is None else _with_noise(program, params, noise[0]))
    margin = margin - 4.0 * gap.max(axis=-1)
    sure = margin > 0.0
    difference = np.abs(sent - action) / np.maximum(1.0, np.abs(action))
    if not (rounding < LARGEST_ROUNDING and (difference[sure] < 10 * LARGEST_ROUNDING).all()):
        raise SurefootError(
            f"the description of the policy and the policy itself differ: parameters by {rounding:.2g}, "
            f"actions by {difference[sure].max(initial=0.0):.2g}. Nothing is exported"
        )
    return Expected(params, action, margin, rounding)


def narrowed(program: ops.Program, rows: Array) -> Array:
    """Rows of the policy's layout as those of the program, which has no parts that only a critic sees."""
    if program.columns is None:
        return rows
    masks = rows.shape[-1] - program.layout.mask_size
    return np.concatenate([rows[..., program.columns], rows[..., masks:]], axis=-1)


def widened(program: ops.Program, layout: RowLayout, trials: Trials) -> Trials:
    """The other way; no action depends on the parts that are missing."""
    if program.columns is None:
        return trials
    rows = np.zeros((*trials.begins.shape, *layout.shape), trials.rows.dtype)
    rows[..., program.columns] = trials.rows[..., program.layout.learned]
    rows[..., layout.numbers :] = trials.rows[..., program.layout.numbers :]
    return Trials(rows, trials.begins)


def _exactly(program: ops.Program, trials: Trials, noise: tuple[Array, Array | None] | None) -> tuple[Array, Array]:
    """(parameters, actions) of the description in float64."""
    sequences, length = trials.begins.shape
    memory = None if program.memory is None else np.zeros((sequences, program.memory_size))
    params, actions = [], []
    for t in range(length):
        if memory is not None:
            memory = np.where(trials.begins[:, t, None], 0.0, memory)
        results = execute(program, split_rows(program, trials.rows[:, t], memory, np.float64))
        memory = None if program.memory is None else results[program.memory]
        own = None
        if noise is not None:
            own = choosing.Noise(noise[0][:, t], None if noise[1] is None else noise[1][:, t])
        params.append(np.concatenate([results[at] for at in program.params], axis=1))
        actions.append(np.concatenate(choosing.choose(program, results, own), axis=1))
    return np.stack(params, axis=1), np.stack(actions, axis=1).astype(np.float64)


def _with_torch(policy: ActorCritic, trials: Trials, noise: tuple[Array, Array | None] | None) -> tuple[Array, Array]:
    """(parameters, actions) of the policy itself, in its own float32."""
    params, actions = [], []
    sequences, length = trials.begins.shape
    with torch_threads(1), own_modes(gradients=False), policy.uncompiled():
        memory = policy.initial_memory(sequences)
        for t in range(length):
            inputs = policy.normalize(torch.from_numpy(np.ascontiguousarray(trials.rows[:, t])))
            start = torch.from_numpy(np.ascontiguousarray(trials.begins[:, t]))
            step = None if noise is None else _noise_at(noise, t)
            found, action, memory = _act(policy, inputs, step, memory, start)
            params.append(found.numpy())
            actions.append(flat_action(policy.actions.to_vector_env(action.numpy()), sequences))
    return np.stack(params, axis=1), np.stack(actions, axis=1)


def scales(program: ops.Program) -> list[float]:
    """How large each number of an action is, at least: 0 for choices, which must be equal."""
    found: list[float] = []
    for head in program.heads:
        if isinstance(head, (ops.Choice, ops.Bits)):
            found += [0.0] * ops.width(head)
        elif isinstance(head, ops.Clipped):
            found += [1.0] * ops.width(head)
        else:  # squashed into the bounds: a sum of numbers as large as they are
            found += np.maximum(1.0, np.maximum(np.abs(head.low), np.abs(head.high))).tolist()
    return found


def _noise_at(noise: tuple[Array, Array | None], t: int) -> Noise:
    rows, matrices = noise
    matrix = None if matrices is None else torch.from_numpy(np.ascontiguousarray(matrices[:, t]))
    return Noise(torch.from_numpy(np.ascontiguousarray(rows[:, t])), matrix)


def _act(
    policy: ActorCritic, inputs: Tensor, noise: Noise | None, memory: Tensor | None, start: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    if noise is not None:
        return policy.act(inputs, noise, memory, start)
    if memory is None:
        params = policy.action_params(inputs)
    else:
        params, memory = policy.step(inputs, memory, start)
    return params, policy.actions.distribution(params).mode(), memory


def flat_action(action: object, count: int) -> Array:
    """`[count, numbers]`: a batch of actions of any structure, depth first."""
    return np.concatenate([np.asarray(part, np.float64).reshape(count, -1) for part in _leaves(action)], axis=1)


def _leaves(action: object) -> Iterator[object]:
    if isinstance(action, (Mapping, tuple)):
        for part in action.values() if isinstance(action, Mapping) else action:
            yield from _leaves(part)
    else:
        yield action


def _columns(program: ops.Program) -> Iterator[tuple[ops.Head, slice]]:
    """Each head and its columns among the parameters."""
    start = 0
    for head in program.heads:
        size = sum(program.operations[at].size for at in ops.params_of(head))
        yield head, slice(start, start + size)
        start += size


def _with_noise(program: ops.Program, params: Array, noise: Array) -> Array:
    """Logits with the noise that decides between them."""
    found, start = params.copy(), 0
    for head, columns in _columns(program):
        size = choosing.num_noise(head)
        if isinstance(head, (ops.Choice, ops.Bits)):
            found[..., columns] += noise[..., start : start + size]
        start += size
    return found


def least_margin(program: ops.Program, params: Array) -> Array:
    """`[...]`: the smallest distance between the best and the second-best choice, or of a bit's logit from 0."""
    least = np.full(params.shape[:-1], np.inf)
    for head, columns in _columns(program):
        own = params[..., columns]
        if isinstance(head, ops.Bits):
            least = np.minimum(least, np.abs(own).min(axis=-1))
        elif isinstance(head, ops.Choice):
            for variable in np.split(own, np.cumsum(head.sizes)[:-1], axis=-1):
                if variable.shape[-1] > 1:
                    second, first = np.moveaxis(np.sort(variable, axis=-1)[..., -2:], -1, 0)
                    least = np.minimum(least, first - second)
    return least
