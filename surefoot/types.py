"""The values that are passed between the layers, with their shapes and meaning.

Shapes: T steps of a rollout, N envs, B = T·N samples, A parameters of an action's distribution, K truncations.
Tensors over time are time-major, `[T, N, ...]`. This module imports neither torch nor NumPy at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, Self, SupportsFloat, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import gymnasium
    import numpy as np
    from gymnasium.vector import VectorEnv
    from torch import Tensor

    from surefoot.schema import Shape

    Scan: TypeAlias = Callable[[Tensor, Tensor], Tensor]
    Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
    DType: TypeAlias = np.dtype[np.generic]
    # Gymnasium's classes are generic over observations and actions, which we know only from the spaces.
    GymEnv: TypeAlias = gymnasium.Env[Any, Any]
    GymSpace: TypeAlias = gymnasium.Space[Any]
    GymVectorEnv: TypeAlias = VectorEnv[Any, Any, Any]
    Info: TypeAlias = dict[str, object]  # what an env returns besides its observation
    GymStep: TypeAlias = tuple[object, SupportsFloat, bool, bool, Info]
    Actions: TypeAlias = Array | Sequence[object]  # one per row


@dataclass(slots=True)
class Step:
    """The result of one step of N envs. Where an episode ended, `obs` already belongs to the next one.

    Observations are rows of a `Layout`: one array, whatever the env's space.
    """

    obs: Array  # [N, ...]
    reward: Array  # [N] float64, as the env gave it
    terminated: Array  # [N] bool: the MDP ended
    truncated: Array  # [N] bool: a time limit ended the episode, not the MDP
    valid: Array  # [N] bool: False if the backend inserted a step that is not a transition (autoreset, idle)
    final_obs: dict[int, Array] = field(default_factory=dict)  # env index -> true last observation of its episode
    final_info: dict[int, Info] = field(default_factory=dict)  # env index -> info of that last step
    life_lost: Array | None = None  # [N] bool: learn as if terminated, although the episode continues
    first: Array | None = None  # [N] bool: `obs` is the first of an episode; None: where one ended

    @property
    def start(self) -> Array:
        return self.terminated | self.truncated if self.first is None else self.first


@dataclass(slots=True)
class TensorStep:
    """A `Step` of envs that return tensors: nothing in it has been read by the host."""

    obs: Tensor  # [N, ...]
    reward: Tensor  # [N]
    terminated: Tensor  # [N] bool
    truncated: Tensor  # [N] bool
    valid: Tensor | None = None  # [N] bool; None: all
    first: Tensor | None = None  # [N] bool: `obs` is the first of an episode; None: where one ended
    final_obs: Tensor | None = None  # [N, ...], valid where an episode ended; None: not given, or `obs` (NEXT_STEP)
    life_lost: Tensor | None = None  # [N] bool
    info: dict[str, Tensor] = field(default_factory=dict)  # [N] each, valid where an episode ended

    @property
    def ended(self) -> Tensor:
        """Where an episode really ended; a lost life does not end one."""
        return self.terminated | self.truncated


class Envs(Protocol):
    """N envs stepped together; actions in, a `Step` out."""

    num_envs: int
    observation_space: GymSpace  # for one env
    action_space: GymSpace  # for one env
    layout: Any  # the `spaces.Layout` of the observation rows
    batched_actions: bool  # expects a batch of the action space; otherwise a sequence of N actions
    exact_seeds: bool  # every episode has its own seed, so that a run can be repeated and resumed exactly
    time_limit: int | None  # longest episode, if the env declares one
    notes: tuple[str, ...]  # what to say about them before a run
    render_modes: tuple[str, ...]  # how an env can be rendered; empty: unknown, or not at all

    def reset(self) -> Array: ...

    def step(self, action: Any, active: Array | None = None) -> Step:
        """Step the envs. `active[i]` False: leave env i unchanged and mark its step invalid."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Numbered(Protocol):
    """Envs with `exact_seeds`: an episode's seed is hashed from the run's, the env's index and the episode's number."""

    num_agents: int  # rows per env, which share the seeds of its episodes

    def episode_numbers(self) -> list[int]:
        """The number of each row's open episode, or of the next one if its agent has left; −1 before the first."""
        ...

    def episode_seeds(self, rows: Sequence[int], numbers: Sequence[int]) -> list[int]:
        """The seeds of episodes, given their rows and numbers."""
        ...


class EpisodeEnvs(Protocol):
    """`Envs` for a list of numbered episodes, each with its own seed: an episode begins when `begin` is called.

    An env has one row, or one for each of its agents; row r belongs to env r // num_agents.
    """

    num_envs: int  # N rows
    num_agents: int  # rows per env
    acting: Array  # [N] bool: an episode is open there, and the row's agent acts next

    def begin(self, place: int, episode: int) -> None:
        """Reset env `place` with the seed of this episode."""
        ...

    def step(self, action: Actions, active: Array | None = None) -> Step:
        """Like `Envs.step`, without resets: where an episode ended, `obs` is not valid."""
        ...


@runtime_checkable
class SteppedInParts(Protocol):
    """Envs in parts that step at their own pace: while some step, the policy acts for others."""

    parts: list[slice]  # the envs of each part

    def send(self, part: int, action: Any) -> None:
        """Begin a step of this part."""
        ...

    def answered(self) -> list[int]:
        """The parts whose steps have ended; waits for one."""
        ...

    def take(self, part: int) -> Step:
        """The step of this part's envs, with indices that count from 0."""
        ...


@runtime_checkable
class InEqualParts(SteppedInParts, Protocol):
    """Parts of one size, which depend on nothing but the number of envs.

    So the policy always acts for the same rows together, whatever its rounding depends on.
    """

    equal_parts: bool


@runtime_checkable
class Threaded(Protocol):
    """Envs that can step on several threads. Results do not depend on their number."""

    def use_threads(self, most: int, *, measure: bool) -> None:
        """Use up to `most` threads, before the first reset. `measure`: only if that is faster."""
        ...


@runtime_checkable
class Restorable(Protocol):
    """Envs whose state can be restored."""

    observations: Array

    def state_dict(self) -> Mapping[str, object]: ...

    def state_shape(self) -> Shape:
        """The shape that such a state must have."""
        ...

    def load_state_dict(self, state: Mapping[str, object], last_obs: Array) -> list[int]:
        """Returns the indices of the envs that could not be restored and start a new episode instead."""
        ...


class Distribution(Protocol):
    """A batch of action distributions. Per-sample results have the batch's shape; actions may have one more axis."""

    def log_prob(self, action: Tensor) -> Tensor: ...

    def entropy(self) -> Tensor: ...

    def kl_to(self, other: Self) -> Tensor:
        """KL(self‖other), per sample."""
        ...

    def with_params(self, params: Tensor) -> Distribution:
        """A distribution of the same kind from stored parameters."""
        ...

    def mode(self) -> Tensor: ...

    def dimensions(self) -> tuple[Tensor, Tensor]:
        """(entropy of each dimension of the action `[..., D]`, std of each continuous one `[..., C]`).

        They are those of what is stored: before a tanh, on (0, 1) for a Beta.
        """
        ...


@dataclass(slots=True)
class Rollout:
    """T steps of N envs, allocated once and filled in place: everything that an update needs."""

    obs: Tensor  # [T+1, N, ...] as the env gave it; obs[T] followed the last step
    inputs: Tensor  # [T+1, N, ...] the same, normalised as the policy saw it
    action: Tensor  # [T, N, ...] as drawn, before any clipping to the env's bounds
    dist_params: Tensor  # [T, N, A] of the distribution it was drawn from
    log_prob: Tensor  # [T, N] of the action under that distribution
    reward: Tensor  # [T, N] scaled for learning
    terminated: Tensor  # [T, N] bool
    truncated: Tensor  # [T, N] bool
    valid: Tensor  # [T, N] bool
    value: Tensor  # [T, N] V(s_t)
    next_value: Tensor  # [T, N] V of the state that really followed: the final observation at a truncation
    final_index: Tensor  # [K] int64: t·N + n of each truncation
    final_inputs: Tensor  # [K, ...] the normalised final observation there
    remaining: float = 1.0  # fraction of the step budget still ahead at the start of this rollout, for schedules
    context: Context | None = None  # for a policy with memory, over the T+1 observations
    final_memory: Tensor | None = None  # [K, M] the memory before each final observation
    complete: bool = False  # all steps are valid, as is known without looking at a device

    @property
    def done(self) -> Tensor:
        return self.terminated | self.truncated

    @property
    def num_steps(self) -> int:
        """The number of transitions; invalid steps do not count."""
        if self.complete:
            return self.valid.numel()
        if self.valid.is_cpu:
            return int(self.valid.numpy().sum())  # faster for short rollouts
        return int(self.valid.sum())


def weighted_mean(x: Tensor, weight: Tensor | None) -> Tensor:
    """Σwx / Σw, or the plain mean without weights."""
    return x.mean() if weight is None else (x * weight).sum() / weight.sum().clamp(min=1.0)


@dataclass(slots=True)
class Context:
    """What a policy with memory needs besides B = T·n time-major observations."""

    start: Tensor  # [T, n] bool: the first observation of an episode, where the memory is reset
    memory: Tensor  # [n, M] before the first row

    @property
    def num_envs(self) -> int:
        return self.start.shape[1]

    def upto(self, steps: int) -> Context:
        return Context(self.start[:steps], self.memory)

    def take_envs(self, envs: Tensor) -> Context:
        return Context(self.start.index_select(1, envs), self.memory.index_select(0, envs))

    def rows(self, envs: Tensor) -> Tensor:
        """The indices of these envs' samples in the batch, time-major."""
        steps, count = self.start.shape
        time = envs.new_ones(steps).cumsum(0) - 1
        return (time[:, None] * count + envs).flatten()


@dataclass(slots=True)
class Batch:
    """The input of a loss: B samples of a rollout, flattened. Observations are normalised as the policy saw them."""

    obs: Tensor  # [B, ...]
    action: Tensor  # [B, ...]
    log_prob: Tensor  # [B] of the old policy
    dist_params: Tensor  # [B, A] of the old policy
    advantage: Tensor  # [B]
    value_target: Tensor  # [B]
    value: Tensor  # [B] of the old critic
    weight: Tensor | None = None  # [B] 1 valid, 0 not; None: all valid
    remaining: float = 1.0  # see Rollout
    context: Context | None = None  # for a policy with memory; its samples come in whole envs only
    num_envs: int = 1  # N, if samples are ordered as in a rollout: sample t·N + n is step t of env n

    def __len__(self) -> int:
        return self.advantage.shape[0]

    def mean(self, x: Tensor) -> Tensor:
        """Mean over the valid samples: Σwx / Σw."""
        return weighted_mean(x, self.weight)

    def take(self, index: Tensor) -> Batch:
        """The samples at `index` or, with a memory, of the envs at `index`, because a memory needs their whole time."""
        context = None
        if self.context is not None:
            context, index = self.context.take_envs(index), self.context.rows(index)
        names = ("obs", "action", "log_prob", "dist_params", "advantage", "value_target", "value")
        parts = {name: getattr(self, name).index_select(0, index) for name in names}
        weight = None if self.weight is None else self.weight.index_select(0, index)
        return replace(self, weight=weight, context=context, num_envs=1, **parts)

    @property
    def units(self) -> int:
        """The number of units that `take` indexes: samples, or envs if there is a memory."""
        return len(self) if self.context is None else self.context.num_envs


@dataclass(slots=True)
class Outputs:
    """The current policy's outputs for a batch."""

    log_prob: Tensor  # [B] of the batch's actions
    distribution: Distribution
    value: Tensor  # [B]


MetricsRow: TypeAlias = dict[str, float | None]  # one row of metrics.jsonl
Metrics: TypeAlias = "dict[str, Tensor]"  # scalars, still on the device; read once per update
