"""Classic control in C++: bit-equal to Gymnasium's envs, at a fraction of their time.

`native_kind` tells whether a config is supported, `disagreement` whether the results agree on this machine, with this
NumPy and Gymnasium; `NativeEnvs` then does exactly what `GymEnvs` would, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import gymnasium as gym
import numpy as np

from surefoot.envs.checks import require_finite
from surefoot.envs.gym_envs import GymEnvs, render_modes, time_limit
from surefoot.envs.make import make_env
from surefoot.envs.open_episodes import LONGEST_REPLAY, as_episodes, episodes_shape
from surefoot.envs.seeds import EpisodeSeeds, derive_seed, episode_seed
from surefoot.envs.side_by_side import compared_once, plays_differ, same_bits
from surefoot.errors import EnvError
from surefoot.kernels.classic import KINDS, ClassicEnvs, Kind, Params, apply, classic_library
from surefoot.kernels.library import NotBuilt
from surefoot.spaces.layout import Layout
from surefoot.types import Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from surefoot.envs.config import EnvConfig
    from surefoot.envs.open_episodes import EpisodesState
    from surefoot.kernels.calls import Library
    from surefoot.schema import Shape
    from surefoot.types import Actions, Array, GymSpace, Info

# Gymnasium's class -> the kind, and the constructor arguments that it supports.
CLASSES = {
    "gymnasium.envs.classic_control.cartpole:CartPoleEnv": ("CartPole", ("sutton_barto_reward",)),
    "gymnasium.envs.classic_control.pendulum:PendulumEnv": ("Pendulum", ("g",)),
    "gymnasium.envs.classic_control.acrobot:AcrobotEnv": ("Acrobot", ()),
    "gymnasium.envs.classic_control.mountain_car:MountainCarEnv": ("MountainCar", ("goal_velocity",)),
    "gymnasium.envs.classic_control.continuous_mountain_car:Continuous_MountainCarEnv": (
        "MountainCarContinuous",
        ("goal_velocity",),
    ),
}
# The functions that NumPy computes in their steps. (The cars use Python's math, which is libm.)
FUNCTIONS = {
    "CartPole": ("sin", "cos"),
    "Pendulum": ("sin", "cos", "square", "remainder", "square32"),
    "Acrobot": ("sin", "cos", "square", "sin32", "cos32"),
}
LARGEST_PARAM = 1e6  # small enough that no float32 overflows


def native_kind(config: EnvConfig, factory: object = None) -> tuple[Kind | None, str]:
    """(the native env for a config, why) or (None, why there is none)."""
    if factory is not None:
        return None, "the env is made by a function"
    spec = gym.registry.get(config.env)
    if spec is None or str(spec.entry_point) not in CLASSES:
        return None, f"{config.env} has no native twin"
    name, known = CLASSES[str(spec.entry_point)]
    if spec.kwargs or spec.additional_wrappers:
        return None, f"{config.env} is registered with arguments or wrappers of its own"
    if config.one_by_one:
        return None, f"Gymnasium's {config.env} is needed for {config.one_by_one}"
    for key, value in config.env_kwargs.items():
        if key not in known:
            return None, f"env_kwargs has {key!r}, which only Gymnasium's {config.env} knows"
        number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_PARAM
        if not (isinstance(value, bool) if key == "sutton_barto_reward" else number):
            return None, f"env_kwargs has {key}={value!r}, which only Gymnasium's {config.env} may know"
    return KINDS[name], f"{config.env} has a native twin"


class ClassicFacts(NamedTuple):
    """An env of classic control, as its config makes it."""

    kind: Kind
    params: Params
    name: str
    observation_space: GymSpace
    action_space: GymSpace
    time_limit: int | None
    render_modes: tuple[str, ...]


def classic_facts(config: EnvConfig) -> ClassicFacts:
    """ValueError if it is none of those that `native_kind` knows."""
    kind, reason = native_kind(config)
    if kind is None:
        raise ValueError(reason)
    params = Params(**cast(dict[str, Any], config.env_kwargs))  # `native_kind` has checked them
    with closing(make_env(config)) as one:
        name, spaces = one.spec.id if one.spec else kind.name, (one.observation_space, one.action_space)
        return ClassicFacts(kind, params, name, *spaces, time_limit(one), render_modes(one))


class NativeEnvs:
    """Like `GymEnvs`, for a config that `native_kind` accepts."""

    exact_seeds, batched_actions = True, True
    notes: tuple[str, ...] = ()
    num_agents = 1

    def __init__(self, config: EnvConfig, num_envs: int, run_seed: int, library: Library, first: int = 0) -> None:
        """`first`: the index of the first env in the whole run, for the seeds."""
        facts = classic_facts(config)
        kind, params, self.name = facts.kind, facts.params, facts.name
        self.observation_space, self.action_space = facts.observation_space, facts.action_space
        self.time_limit, self.render_modes = facts.time_limit, facts.render_modes
        self.kind, self.num_envs, self.run_seed, self.first = kind, num_envs, run_seed, first
        self.layout = Layout(self.observation_space)
        self.envs = ClassicEnvs(
            library,
            kind,
            num_envs,
            run_seed,
            first=first,
            params=params,
            time_limit=self.time_limit,
            longest_replay=LONGEST_REPLAY,
        )
        self._begun, self._seeds = False, EpisodeSeeds(run_seed, first)

    def reset(self) -> Array:
        self.envs.reset()
        self._begun = True
        return self.envs.obs.copy()

    def step(self, action: Actions, active: Array | None = None) -> Step:
        envs = self.envs
        if not self._begun:
            raise EnvError(f"step of {self.name} before its first reset")
        given = np.asarray(action)
        # Gymnasium would compute in the type of the given numbers, so another type is not supported.
        fitting = given.dtype.kind in "iu" if self.kind.num_actions else given.dtype == np.float32
        if given.shape != envs.action.shape or not fitting:
            raise ValueError(
                f"{self.name} takes actions of {envs.action.dtype} {envs.action.shape}, not {given.dtype} {given.shape}"
            )
        envs.action[...] = given
        if active is None:
            valid = np.ones(self.num_envs, np.bool_)
        else:
            valid = active.copy()
            envs.active[:] = active
        ended = envs.step(masked=active is not None)
        if ended < 0:
            self._raise(-1 - ended)
        reward, terminated, truncated = envs.reward.copy(), envs.terminated.copy(), envs.truncated.copy()
        final_obs: dict[int, Array] = {}
        final_info: dict[int, Info] = {}
        if ended:
            for index in np.flatnonzero(terminated | truncated).tolist():
                final_obs[index], final_info[index] = envs.final_obs[index].copy(), {}
        return Step(envs.obs.copy(), reward, terminated, truncated, valid, final_obs, final_info)

    def fault(self, t: int, index: int, arrays: dict[str, Array]) -> None:
        """Raise the error of env `index` in step t of a rollout that stepped the envs itself."""
        envs = self.envs
        for name in ("reward", "terminated", "truncated"):
            getattr(envs, name)[...] = arrays[name][t]
        envs.obs[...], envs.action[...] = arrays["obs"][t + 1], arrays["action"][t].reshape(envs.action.shape)
        self._raise(index)

    def _raise(self, index: int) -> None:
        """Raise the error of a faulty step."""
        envs = self.envs
        if self.kind.num_actions and not 0 <= envs.action[index] < self.kind.num_actions:
            raise EnvError(
                f"step of {self.place(index)} got the action {envs.action[index]} not in {self.action_space}"
            )
        place = [self.place(index)]
        require_finite(envs.reward[index : index + 1], "reward", place)
        last = "final " if envs.terminated[index] or envs.truncated[index] else ""
        require_finite(envs.obs[index : index + 1], f"{last}observation", place)
        raise AssertionError("a fault without a cause")

    def place(self, index: int) -> str:
        """How an error names an env."""
        episode, steps = (numbers[index] for numbers in self.envs.where())
        return (
            f"{self.name} (env {self.first + index}, seed {self.seed(index, episode)}, episode {episode}, step {steps})"
        )

    def seed(self, index: int, episode: int) -> int:
        return episode_seed(self.run_seed, self.first + index, episode)

    def state_dict(self) -> EpisodesState:
        """The same state as that of `GymEnvs`: each can resume runs of the other."""
        episode, steps = self.envs.where()
        actions = [self.envs.remembered(index) for index in range(self.num_envs)]
        return {"episode": episode, "steps": steps, "actions": [own if len(own) else None for own in actions]}

    def state_shape(self) -> Shape:
        return episodes_shape(self.num_envs, self.action_space.shape)

    def load_state_dict(self, state: Mapping[str, object], last_obs: Array) -> list[int]:
        """See `GymEnvs.load_state_dict`."""
        lost, opened = [], as_episodes(state)
        for index in range(self.num_envs):
            episode, steps, actions = opened["episode"][index], opened["steps"][index], opened["actions"][index]
            known = self.envs.action[:0] if actions is None else np.asarray(actions)
            came = len(known) == steps and self.envs.replay(index, episode, known)
            if not came or not np.array_equal(np.asarray(self.envs.obs[index], last_obs.dtype), last_obs[index]):
                lost.append(index)
                self.envs.replay(index, episode + 1, self.envs.action[:0])
        self._begun = True
        return lost

    def episode_numbers(self) -> list[int]:
        return self.envs.where()[0] if self._begun else [-1] * self.num_envs

    def episode_seeds(self, rows: Sequence[int], numbers: Sequence[int]) -> list[int]:
        return self._seeds.of(rows, numbers)

    @property
    def observations(self) -> Array:
        """What every env shows now."""
        return self.envs.obs.copy()

    def close(self) -> None:
        self.envs.close()


class NativeEpisodes(NativeEnvs):
    """Episodes of an evaluation: episode j has the seed (seed, "eval", j), whichever env plays it."""

    def __init__(self, config: EnvConfig, num_envs: int, run_seed: int, library: Library) -> None:
        super().__init__(config, num_envs, run_seed, library)
        self.acting = np.zeros(num_envs, np.bool_)

    def seed(self, index: int, episode: int) -> int:
        return derive_seed(self.run_seed, "eval", episode)

    def begin(self, place: int, episode: int) -> None:
        """Reset an env to the start of an episode."""
        self.envs.begin(place, episode, self.seed(place, episode))
        self._begun = self.acting[place] = True

    def step(self, action: Actions, active: Array | None = None) -> Step:
        found = super().step(action, active)
        self.acting &= ~(found.terminated | found.truncated)
        return found


def serves_natively(config: EnvConfig, factory: object = None) -> bool:
    """Whether `NativeEnvs` may replace `GymEnvs` for a config, on this machine."""
    if native_kind(config, factory)[0] is None:
        return False
    try:
        return not compared_once(config, lambda: disagreement(config, classic_library()))
    except NotBuilt:
        return False


def disagreement(config: EnvConfig, library: Library, *, num_envs: int = 4, steps: int = 150) -> str | None:
    """How Gymnasium's envs and the native ones differ on this machine; None if no difference was found.

    Compares first the functions used by the dynamics, because NumPy may compute them differently here, with a different
    result for one number in a thousand; then whole steps of both.
    """
    kind, reason = native_kind(config)
    if kind is None:
        return reason
    if different := functions_differ(kind, library):
        return different
    rng = np.random.default_rng(0)
    with closing(NativeEnvs(config, num_envs, 0, library)) as ours:
        return plays_differ(config, ours, lambda obs: exploring_actions(kind, obs, rng), states_differ, steps)


def functions_differ(kind: Kind, library: Library) -> str | None:
    """Compare functions on NumPy scalars, as the envs use them: arrays may take another code path.

    If a function can be computed in a simpler way, the inputs include numbers for which the two ways differ.
    """
    rng = np.random.default_rng(0)
    wide = rng.uniform(-40.0, 40.0, 20_000)
    force = rng.uniform(-2.0, 2.0, 20_000).astype(np.float32)
    angle = rng.uniform(-0.1, 0.1, 100_000).astype(np.float32)
    cases: dict[str, tuple[Callable[..., float], Array, Array | None]] = {
        "sin": (np.sin, wide, None),
        "cos": (np.cos, wide, None),
        "square": (lambda x: x**2, wide, wide * wide),
        "remainder": (lambda x: x % (2 * np.pi), wide, None),
        "sin32": (np.sin, angle, np.sin(angle.astype(np.float64)).astype(np.float32)),
        "cos32": (np.cos, angle, np.cos(angle.astype(np.float64)).astype(np.float32)),
        "square32": (lambda x: x**2, force, force * force),
    }
    for name in FUNCTIONS.get(kind.name, ()):
        theirs, x, plainer = cases[name]
        ours = apply(library, name, x)
        tried = list(range(1_000)) + ([] if plainer is None else np.flatnonzero(ours != plainer)[:100].tolist())
        differing = sum(float(theirs(x[index])) != ours[index] for index in tried)
        if differing:
            return f"NumPy's {name} is not that of the native {kind.name} at {differing} of {len(tried):,} numbers"
    return None


def states_differ(theirs: GymEnvs, ours: NativeEnvs) -> str | None:
    """ "state" if one of the inner states differs in any bit."""
    for index, env in enumerate(theirs.envs):
        state = np.asarray(env.unwrapped.state, np.float64)  # type: ignore[attr-defined]
        if not same_bits(state, ours.envs.get_state(index)):
            return "state"
    return None


def exploring_actions(kind: Kind, obs: Array, rng: np.random.Generator) -> Array:
    """Actions `[N, ...]` that reach much of an env: random ones, extreme ones, and for every other env actions that
    pump energy in (or, for CartPole, survive long)."""
    size = len(obs)
    column = {"CartPole": 3, "Pendulum": 2, "Acrobot": 5}.get(kind.name, 1)
    sign = np.sign(obs[:, column] + (2.0 * obs[:, 2] if kind.name == "CartPole" else 0.0))
    pumping = (np.arange(size) % 2 == 1) & (rng.random(size) < 0.9)
    if kind.num_actions:
        toward = np.where(sign >= 0, kind.num_actions - 1, 0)
        return np.where(pumping, toward, rng.integers(kind.num_actions, size=size)).astype(np.int64)
    drawn = rng.uniform(-2.5, 2.5, size)
    extreme = rng.choice([-1e30, -2.0, -1.0, -1e-30, -0.0, 0.0, 1e-45, 0.5, 1.0, 1.0000001, 2.0, 3.0, 1e30], size)
    free = np.where(rng.random(size) < 0.3, extreme, drawn)
    actions: Array = np.where(pumping, np.where(sign >= 0, 1.0, -1.0) * rng.choice([0.9, 1.0, 1.5], size), free)
    return actions.astype(np.float32)[:, None]
