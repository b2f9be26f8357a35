"""Unbiased evaluation: a fixed list of episodes, each with its own seed, whatever their lengths."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, overload

from surefoot.engine.torch_threads import torch_threads
from surefoot.envs.backends import backend_of
from surefoot.envs.forks import Original
from surefoot.envs.make import make_env
from surefoot.envs.native_envs import NativeEpisodes, native_kind, serves_natively
from surefoot.envs.pettingzoo_copy import ParallelMaker
from surefoot.envs.playing import finished, play
from surefoot.kernels.classic import classic_library
from surefoot.training.evaluation.actor import PolicyActor
from surefoot.training.evaluation.gym_episodes import GymEpisodes
from surefoot.training.evaluation.parallel import ParallelEpisodes
from surefoot.training.evaluation.result import Evaluation

if TYPE_CHECKING:
    from surefoot.envs.config import EnvConfig
    from surefoot.envs.make import Factory
    from surefoot.training.evaluation.agent import Agent
    from surefoot.types import GymEnv

MakeEnv: TypeAlias = "Callable[[], GymEnv] | ParallelMaker"
OpenEnvs: TypeAlias = NativeEpisodes | ParallelEpisodes | GymEpisodes

NO_LIMIT = 10_000  # steps after which an episode is cut if the env has no time limit
AT_ONCE = 32  # envs played in parallel
# The same for very cheap envs. It depends only on the env, so that both engines see the same batches.
CHEAP_AT_ONCE = 128


@dataclass(frozen=True)
class EnvMaker:
    """Makes the env of a config. `native`: the compiled version may be used instead, which gives the same bits."""

    config: EnvConfig
    factory: Factory | None = None
    render_mode: str | None = None
    native: bool = True

    def __call__(self) -> GymEnv:
        return make_env(self.config, self.factory, self.render_mode)

    @property
    def _alone(self) -> EnvConfig:
        """Evaluation does not use workers."""
        return replace(self.config, workers=0, restart_workers=0)

    @property
    def at_once(self) -> int:
        return AT_ONCE if native_kind(self._alone, self.factory)[0] is None else CHEAP_AT_ONCE

    def native_episodes(self, agent: Agent, num_envs: int, seed: int) -> NativeEpisodes | None:
        """The compiled envs, if they exist and the agent's spaces fit."""
        if not self.native or self.render_mode is not None or not serves_natively(self._alone, self.factory):
            return None
        envs = NativeEpisodes(self._alone, num_envs, seed, classic_library())
        layout, actions = agent.policy.layout, agent.policy.action_space
        if layout.plain and layout.shape == envs.layout.shape and actions == envs.action_space:
            return envs
        envs.close()
        return None


@overload
def env_maker(config: EnvConfig, factory: Factory | None, render_mode: str, *, native: bool = ...) -> EnvMaker: ...


@overload
def env_maker(
    config: EnvConfig, factory: Factory | None = ..., render_mode: str | None = ..., *, native: bool = ...
) -> MakeEnv: ...


def env_maker(
    config: EnvConfig, factory: Factory | None = None, render_mode: str | None = None, *, native: bool = True
) -> MakeEnv:
    """Makes the env of a config to play in: a `gymnasium.Env`, or a parallel env of several agents."""
    if factory is None and render_mode is None and (make := backend_of(config.env).copy_maker(config)) is not None:
        return make
    return EnvMaker(config, factory, render_mode, native)


def open_envs(agent: Agent, make: MakeEnv, num_envs: int, seed: int) -> OpenEnvs:
    """The envs for an evaluation: the fastest kind that gives the same observations as those from `make`."""
    if isinstance(make, ParallelMaker):
        return ParallelEpisodes(agent, make, num_envs, seed)
    twins = make.native_episodes(agent, num_envs, seed) if isinstance(make, EnvMaker) else None
    return twins or GymEpisodes(agent, make, range(num_envs), seed)


def evaluate_agent(
    agent: Agent,
    make: MakeEnv,
    *,
    episodes: int = 100,
    seed: int = 0,
    deterministic: bool = True,
    max_steps: int | None = None,
    num_envs: int | None = None,
    abandon: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Play `episodes` episodes on up to `num_envs` envs at once, without a bias towards short ones (see `play`).

    `abandon` is called before every step; once it returns True, Abandoned is raised.
    """
    size = min(episodes, num_envs or (make.at_once if isinstance(make, EnvMaker) else AT_ONCE))
    returns, lengths, cut = [0.0] * episodes, [0] * episodes, 0
    guard = Original() if isinstance(make, ParallelMaker) else nullcontext()  # other kinds of envs have their own guard
    with torch_threads(1), guard, closing(open_envs(agent, make, size, seed)) as envs:
        limit = step_limit(max_steps, envs.time_limit)
        turns = play(envs, PolicyActor(agent, seed, deterministic), range(episodes), limit=limit, abandon=abandon)
        for one in finished(turns):
            returns[one.number], lengths[one.number] = one.total, one.length
            cut += one.cut
    return Evaluation(tuple(returns), tuple(lengths), cut, deterministic)


def step_limit(max_steps: int | None, time_limit: int | None) -> int:
    """The steps after which an episode is cut."""
    return max_steps or time_limit or NO_LIMIT
