"""Functional envs in JAX: `reset(rng) → state` and `step(state, action) → state`, as Brax and MuJoCo Playground have.

We vectorise and compile them, and reset an env within the step that ends its episode, so the true last observation is
kept. The key of an episode depends only on the run's seed, the env's index and the episode's number.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast, runtime_checkable

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from surefoot.envs.bridged_envs import BridgedVectorEnv
from surefoot.envs.tensor_envs import TensorEnvs
from surefoot.envs.vector_envs import vector_seed
from surefoot.errors import UsageError
from surefoot.schema import ArrayOf, Record, Row, Shape

# JAX would otherwise take three quarters of the GPU's memory for itself when it is first used.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
try:
    import jax
    import jax.numpy as jnp
except ModuleNotFoundError as missing:
    if missing.name not in ("jax", "jaxlib"):
        raise
    raise UsageError('JAX is not installed: pip install "surefoot[jax]"') from None

if TYPE_CHECKING:
    from collections.abc import Callable

    from surefoot.types import Array, GymSpace, Info

CUT = "truncation"  # in a state's info: an episode wrapper's time limit ended the episode


class State(Protocol):
    """The state of an env, a pytree."""

    obs: object  # an array, or a dict of arrays
    reward: jax.Array
    done: jax.Array  # 0 or 1
    info: Mapping[str, object]


class FunctionalEnv(Protocol):
    @property
    def action_size(self) -> int: ...

    def reset(self, rng: jax.Array) -> State: ...

    def step(self, state: State, action: jax.Array) -> State: ...


@runtime_checkable
class OwnActions(Protocol):
    """An env whose actions are not numbers from −1 to 1."""

    action_space: gym.Space[object]


class Carry(NamedTuple):
    """Everything that a step changes."""

    state: State
    steps: jax.Array  # [N] of the open episodes
    episode: jax.Array  # [N] their numbers


class Seen(NamedTuple):
    """What a step shows besides the new state. Where no episode ended, `final_obs` is that state's observation."""

    final_obs: object
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array


def space_of(shown: object) -> GymSpace:
    """The space of an observation, from the shapes of its arrays."""
    if isinstance(shown, Mapping):
        return spaces.Dict({str(name): space_of(part) for name, part in shown.items()})
    array = cast("Array", shown)
    kind = np.dtype(array.dtype)
    if kind.kind in "iu":
        return spaces.Box(np.iinfo(kind).min, np.iinfo(kind).max, tuple(array.shape), kind.type)
    return spaces.Box(-np.inf, np.inf, tuple(array.shape), np.float32 if kind.kind == "b" else kind.type)


def action_space_of(env: FunctionalEnv) -> GymSpace:
    if isinstance(env, OwnActions):
        return env.action_space
    return spaces.Box(-1.0, 1.0, (int(env.action_size),), np.float32)


def check_state(env: FunctionalEnv, space: GymSpace) -> State:
    """The shapes of a first state. A step must return a state of the same form."""
    first = cast(State, jax.eval_shape(env.reset, jax.random.PRNGKey(0)))
    example = np.zeros(space.shape or (), np.int32 if np.dtype(space.dtype).kind in "iu" else np.float32)
    after = jax.eval_shape(env.step, first, example)
    forms = [[(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)] for state in (first, after)]
    if jax.tree.structure(first) != jax.tree.structure(after) or forms[0] != forms[1]:
        raise UsageError(
            f"step of {type(env).__name__} returns a state of another form than reset does; "
            "it must have the same fields, shapes and dtypes"
        )
    return first


def ends(state: State, steps: jax.Array, limit: int | None) -> tuple[jax.Array, jax.Array]:
    """(terminated, truncated) after so many steps."""
    over, cut = state.done != 0, jnp.asarray(state.info.get(CUT, 0)) != 0
    terminated = over & ~cut
    timed_out = jnp.zeros_like(terminated) if limit is None else steps >= limit
    return terminated, (cut | timed_out) & ~terminated


def chosen(where: jax.Array, new: object, old: object) -> State:
    """The tree `new` in the rows `where`, and `old` in the others."""

    def leaf(ours: jax.Array, theirs: jax.Array) -> jax.Array:
        return jnp.where(where.reshape(-1, *(1,) * (theirs.ndim - 1)), ours, theirs)

    return cast(State, jax.tree.map(leaf, new, old))


class JaxVectorEnv(VectorEnv[object, object, object]):
    """N copies of a functional env on JAX's default device, for `surefoot.train`.

    `max_episode_steps`: episodes are truncated after so many steps; a limit of the env itself (`info["truncation"]`)
    holds as well. `first`: the index of the first env in the whole run, for the seeds.
    """

    def __init__(
        self, env: FunctionalEnv, num_envs: int, *, max_episode_steps: int | None = None, first: int = 0
    ) -> None:
        self.env, self.num_envs, self.limit = env, num_envs, max_episode_steps
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_action_space = action_space_of(env)
        self.single_observation_space = space_of(check_state(env, self.single_action_space).obs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.spec = EnvSpec(id=type(env).__name__, max_episode_steps=max_episode_steps)
        self.active: jax.Array | None = None  # [N] bool: the envs to step; None: all
        self._index = first + jnp.arange(num_envs)
        self._key = jax.random.PRNGKey(0)
        self._none = jnp.zeros(num_envs, jnp.int32)
        self.carry: Carry | None = None
        self._begin: Callable[..., State] = jax.jit(self._first_states)
        self._step: Callable[..., tuple[Carry, Seen]] = jax.jit(self._stepped)

    def __repr__(self) -> str:
        return type(self.env).__name__

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[object, Info]:
        """Begin the next episode of every env, or with a seed the first."""
        if seed is not None:
            self._key = jax.random.PRNGKey(seed)
        episode = self._none if seed is not None or self.carry is None else self.carry.episode + 1
        self.carry = Carry(self._begin(self._key, episode), self._none, episode)
        return self.carry.state.obs, {}

    def step(self, actions: jax.Array) -> tuple[object, jax.Array, jax.Array, jax.Array, Info]:
        assert self.carry is not None, "step before the first reset"
        self.carry, seen = self._step(self._key, self.carry, actions, self.active)
        return self.carry.state.obs, seen.reward, seen.terminated, seen.truncated, {"final_obs": seen.final_obs}

    def _first_states(self, key: jax.Array, episode: jax.Array) -> State:
        def begin(index: jax.Array, number: jax.Array) -> State:
            return self.env.reset(jax.random.fold_in(jax.random.fold_in(key, index), number))

        return cast(State, jax.vmap(begin)(self._index, episode))

    def _stepped(
        self, key: jax.Array, before: Carry, action: jax.Array, active: jax.Array | None
    ) -> tuple[Carry, Seen]:
        state, steps = cast(State, jax.vmap(self.env.step)(before.state, action)), before.steps + 1
        terminated, truncated = ends(state, steps, self.limit)
        reward = state.reward
        if active is not None:
            state, steps = chosen(active, state, before.state), jnp.where(active, steps, before.steps)
            reward, terminated, truncated = reward * active, terminated & active, truncated & active
        done = terminated | truncated
        episode = before.episode + done

        def begun() -> State:
            return chosen(done, self._first_states(key, episode), state)

        after = cast(State, jax.lax.cond(done.any(), begun, lambda: state))
        seen = Seen(state.obs, reward, terminated, truncated)
        return Carry(after, jnp.where(done, 0, steps), episode), seen


class JaxEnvs(TensorEnvs):
    """`JaxVectorEnv` for the envs of an id. Their whole state is saved, so a run resumes exactly."""

    exact_seeds = True

    def __init__(self, envs: JaxVectorEnv, run_seed: int) -> None:
        self.own, bridge = envs, BridgedVectorEnv(envs, "jax.numpy")
        super().__init__(bridge, bridge.reset(seed=vector_seed(run_seed)))
        self.notes = (f"note: {envs} is stepped by JAX on {self.device}",)

    def step(self, action: object, active: Any = None) -> Any:
        """Envs that are not `active` stay as they are."""
        bridge = cast(BridgedVectorEnv, self.envs)
        self.own.active = None if active is None else cast("jax.Array", bridge.array(active))
        return super().step(action, active)

    @property
    def observations(self) -> Array:
        """What every env shows now."""
        shown = cast(BridgedVectorEnv, self.envs).tensors((self._carry.state.obs,))[0]
        found: Array = self._rows(shown, {}).cpu().numpy()
        return found

    @property
    def _carry(self) -> Carry:
        assert self.own.carry is not None
        return self.own.carry

    def state_dict(self) -> dict[str, object]:
        return {"leaves": [_saved(leaf) for leaf in jax.tree.leaves(self._carry)]}

    def state_shape(self) -> Shape:
        saved = [_saved(leaf) for leaf in jax.tree.leaves(self._carry)]
        return Record(leaves=Row(*(ArrayOf(array.shape, str(array.dtype), finite=False) for array in saved)))

    def load_state_dict(self, state: Mapping[str, object], last_obs: Array) -> list[int]:
        """All envs can be restored."""
        leaves, form = jax.tree.flatten(self._carry)
        given = cast("list[Tensor]", state["leaves"])
        restored = [_restored(np.asarray(array), like) for array, like in zip(given, leaves, strict=True)]
        self.own.carry = jax.tree.unflatten(form, restored)
        self._begun = None
        return []


def _is_key(leaf: jax.Array) -> bool:
    return bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _saved(leaf: jax.Array) -> Array:
    return np.array(jax.random.key_data(leaf) if _is_key(leaf) else leaf)  # a copy: JAX lends its own read-only


def _restored(array: Array, like: jax.Array) -> jax.Array:
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
    return jnp.asarray(array, like.dtype)


class Compiled:
    """An env's two functions, compiled once for all envs that are evaluated in."""

    def __init__(self, env: FunctionalEnv) -> None:
        self.env, self.name = env, type(env).__name__
        self.action_space = action_space_of(env)
        self.observation_space = space_of(check_state(env, self.action_space).obs)
        self.reset: Callable[[jax.Array], State] = jax.jit(env.reset)
        self.step: Callable[[State, jax.Array], State] = jax.jit(env.step)


class JaxEnv(gym.Env[object, object]):
    """One env, for evaluations and the doctor."""

    def __init__(self, compiled: Compiled, max_episode_steps: int | None) -> None:
        self._compiled, self._limit = compiled, max_episode_steps
        self.observation_space, self.action_space = compiled.observation_space, compiled.action_space
        # Gymnasium's checker needs a spec from which it can make the env again.
        again = partial(JaxEnv, compiled, max_episode_steps)
        self.spec = EnvSpec(id=compiled.name, entry_point=again, max_episode_steps=max_episode_steps)
        self.metadata = {"render_modes": []}
        self._state: State | None = None
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[object, Info]:
        super().reset(seed=seed)
        number = int(self.np_random.integers(2**31)) if seed is None else seed
        self._state, self._steps = self._compiled.reset(jax.random.PRNGKey(number)), 0
        return _arrays(self._state.obs), {}

    def step(self, action: object) -> tuple[object, float, bool, bool, Info]:
        assert self._state is not None, "step before the first reset"
        self._state, self._steps = self._compiled.step(self._state, jnp.asarray(action)), self._steps + 1
        terminated, truncated = ends(self._state, jnp.asarray(self._steps), self._limit)
        return _arrays(self._state.obs), float(self._state.reward), bool(terminated), bool(truncated), {}


def _arrays(obs: object) -> object:
    """An observation in NumPy's arrays."""
    if isinstance(obs, Mapping):
        return {name: _arrays(part) for name, part in obs.items()}
    return np.asarray(obs)
