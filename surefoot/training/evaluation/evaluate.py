"""Evaluation without bias: a fixed list of episodes, each with its own seed, whatever their lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.engine.torch.threads import torch_threads
from surefoot.envs.backends import backend_of
from surefoot.envs.checks import as_flag, as_number, blame, require_sound
from surefoot.envs.forks import Original
from surefoot.envs.gym_envs import SeededEpisodes, time_limit
from surefoot.envs.make import make_env
from surefoot.envs.native_envs import NativeEpisodes, native_kind, serves_natively
from surefoot.envs.pettingzoo_copy import ParallelMaker
from surefoot.envs.seeds import derive_seed
from surefoot.errors import USER_ERRORS, EnvError, SurefootError
from surefoot.kernels.classic import classic_library
from surefoot.math.robust import bootstrap_interval, interquartile_mean
from surefoot.training.evaluation.agent import Agent
from surefoot.training.evaluation.native import play_native
from surefoot.training.evaluation.parallel import play_parallel

if TYPE_CHECKING:
    import gymnasium as gym

    from surefoot.envs.config import EnvConfig
    from surefoot.types import Array


NO_LIMIT = 10_000  # steps of an episode whose env has no time limit of its own
SEATS = 32  # envs that play at once
CHEAP_SEATS = (
    128  # of those envs that cost next to nothing; by the env alone, so that both engines see the same batches
)


@dataclass(frozen=True)
class Evaluation:
    """What evaluation found; returns are undiscounted sums of the env's own rewards."""

    returns: tuple[float, ...]  # by episode
    lengths: tuple[int, ...]
    cut: int  # episodes that ran into eval_max_steps
    deterministic: bool

    @property
    def episodes(self) -> int:
        return len(self.returns)

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std_return(self) -> float:
        return float(np.std(self.returns))

    @property
    def median_return(self) -> float:
        return float(np.median(self.returns))

    @property
    def iqm_return(self) -> float:
        """Mean of the middle half of the returns."""
        return interquartile_mean(self.returns)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of the mean return. Over episodes of one policy: other seeds may train other ones."""
        return bootstrap_interval(self.returns)

    @property
    def mean_length(self) -> float:
        return float(np.mean(self.lengths))

    def summary(self) -> dict[str, Any]:
        """Everything but the single episodes."""
        low, high = self.interval
        return {
            "mean_return": self.mean_return,
            "std_return": self.std_return,
            "median_return": self.median_return,
            "iqm_return": self.iqm_return,
            "mean_return_low": low,
            "mean_return_high": high,
            "min_return": min(self.returns),
            "max_return": max(self.returns),
            "mean_length": self.mean_length,
            "min_length": min(self.lengths),
            "max_length": max(self.lengths),
            "episodes": self.episodes,
            "cut": self.cut,
            "deterministic": self.deterministic,
        }

    def as_dict(self) -> dict[str, Any]:
        return self.summary() | {"returns": list(self.returns), "lengths": list(self.lengths)}


class Abandoned(Exception):
    """Somebody asked to stop in the middle of an evaluation."""


class EvaluationEpisode(SeededEpisodes):
    """Episode j of an evaluation has seed (seed, "eval", j), whichever env plays it."""

    @property
    def seed(self) -> int:
        return derive_seed(self.run_seed, "eval", self.episode)


@dataclass(frozen=True)
class EnvMaker:
    """Makes the env of a config. `native`: its compiled twin may take its place, which changes no bit."""

    config: EnvConfig
    factory: Any = None
    render_mode: str | None = None
    native: bool = True

    def __call__(self) -> gym.Env[Any, Any]:
        return make_env(self.config, self.factory, self.render_mode)

    @property
    def _alone(self) -> EnvConfig:
        """Evaluation takes no workers."""
        return replace(self.config, workers=0, restart_workers=0)

    @property
    def seats(self) -> int:
        return SEATS if native_kind(self._alone, self.factory)[0] is None else CHEAP_SEATS

    def native_episodes(self, agent: Agent, num_envs: int, seed: int) -> NativeEpisodes | None:
        """The twins, if there are any and the agent was made for them."""
        if not self.native or self.render_mode is not None or not serves_natively(self._alone, self.factory):
            return None
        envs = NativeEpisodes(self._alone, num_envs, seed, classic_library())
        layout, actions = agent.policy.layout, agent.policy.action_space
        if layout.plain and layout.shape == envs.layout.shape and actions == envs.action_space:
            return envs
        envs.close()
        return None


def env_maker(
    config: EnvConfig, factory: Any = None, render_mode: str | None = None, *, native: bool = True
) -> Callable[[], Any]:
    """Makes the env of a config to play in: a `gymnasium.Env`, or a parallel env of several agents."""
    if factory is None and render_mode is None and (make := backend_of(config.env).copy_maker(config)) is not None:
        return make
    return EnvMaker(config, factory, render_mode, native)


def evaluate_agent(
    agent: Agent,
    make: Callable[[], Any],
    *,
    episodes: int = 100,
    seed: int = 0,
    deterministic: bool = True,
    max_steps: int | None = None,
    num_envs: int | None = None,
    abandon: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Play `episodes` episodes on up to `num_envs` envs at once.

    Env k plays episodes k, k + n, k + 2n, …, all of them to their end: no episode is preferred for being short.
    `abandon` is asked before every step: once it says yes, Abandoned is raised.
    """
    size = min(episodes, num_envs or (make.seats if isinstance(make, EnvMaker) else SEATS))
    agent = evaluation_agent(agent, seed)

    def ask() -> None:
        if abandon():
            raise Abandoned

    twins = make.native_episodes(agent, size, seed) if isinstance(make, EnvMaker) else None
    if twins is not None:
        limit = max_steps or twins.time_limit or NO_LIMIT
        with torch_threads(1), closing(twins):
            found = play_native(agent, twins, episodes=episodes, deterministic=deterministic, limit=limit, abandon=ask)
        return Evaluation(tuple(found[0]), tuple(found[1]), found[2], deterministic)
    if isinstance(make, ParallelMaker):
        limit = max_steps or make.config.max_episode_steps or NO_LIMIT
        how: dict[str, Any] = {"episodes": episodes, "seed": seed, "deterministic": deterministic}
        with torch_threads(1), Original():
            found = play_parallel(agent, make, limit=limit, num_copies=size, abandon=ask, **how)
        return Evaluation(tuple(found[0]), tuple(found[1]), found[2], deterministic)
    envs: list[EvaluationEpisode] = []
    with torch_threads(1), ExitStack() as leaving:
        for index in range(size):
            envs.append(EvaluationEpisode(make(), seed, index))
            leaving.callback(call_env, "evaluation", envs[-1], "close")
        returns, lengths, cut = _play(agent, envs, episodes, deterministic, max_steps, abandon)
    return Evaluation(tuple(float(r) for r in returns), tuple(lengths), cut, deterministic)


def _play(
    agent: Agent,
    envs: list[EvaluationEpisode],
    episodes: int,
    deterministic: bool,
    max_steps: int | None,
    abandon: Callable[[], bool],
) -> tuple[list[float], list[int], int]:
    limit = episode_limit(envs[0], max_steps)
    returns, lengths, cut = [0.0] * episodes, [0] * episodes, 0
    seats: dict[int, Seat] = {}  # env index -> its open episode
    for index, env in enumerate(envs):
        seats[index] = Seat(agent, env, index)
    while seats:
        if abandon():
            raise Abandoned
        active = list(seats.values())
        for seat, action in zip(active, act(agent, active, deterministic), strict=True):
            env, episode = seat.env, seat.env.episode
            reward, over = seat.step(action)
            returns[episode] += reward
            lengths[episode] += 1
            if not over:
                if lengths[episode] < limit:
                    continue
                cut += 1
            index, following = env.env_index, episode + len(envs)
            if following < episodes:
                seats[index] = Seat(agent, env, following)
            else:
                del seats[index]
    return returns, lengths, cut


class Seat:
    """An agent in the middle of an episode of one env: what it sees and what it remembers."""

    def __init__(self, agent: Agent, env: EvaluationEpisode, episode: int, doing: str = "evaluation") -> None:
        self.agent, self.env, self._doing = agent, env, doing
        self.begins = True  # nobody has acted yet
        env.episode = episode - 1
        memory = agent.policy.initial_memory(1)
        self.memory: Array | None = None if memory is None else memory[0].cpu().numpy()
        self._see(*call_env(doing, env, "reset"))

    def _see(self, obs: Any, info: dict[str, Any]) -> None:
        try:
            self.row = self.agent.see(self.env, obs, info)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise EnvError(f"{self._doing}: {self.env} showed what the policy cannot read: {error}") from error
        require_sound(self.row[None], self.agent.policy.layout, "observation", [self.env])

    def step(self, action: Any) -> tuple[float, bool]:
        """(reward, whether the episode is over)."""
        obs, reward, terminated, truncated, info = call_env(self._doing, self.env, "step", action)
        ends = [as_flag(terminated, "terminated", self.env), as_flag(truncated, "truncated", self.env)]
        over = any(ends)
        if not over:  # nobody acts on the last observation, and its mask may be empty
            self._see(obs, info)
        return as_number(reward, "reward", self.env), over


def act(agent: Agent, seats: Sequence[Seat], deterministic: bool) -> Any:
    """The next action of each seat, as its env takes it."""
    memory = None if seats[0].memory is None else np.stack([seat.memory for seat in seats if seat.memory is not None])
    begins = np.array([seat.begins for seat in seats])
    action, memory = agent.act(np.stack([seat.row for seat in seats]), memory, deterministic, begins)
    for seat in seats:
        seat.begins = False
    if memory is not None:
        for seat, row in zip(seats, memory, strict=True):
            seat.memory = row
    return agent.policy.actions.to_env(action)


def evaluation_agent(agent: Agent, seed: int) -> Agent:
    """The agent with noise of its own, so that an evaluation repeats."""
    return Agent(agent.policy, derive_seed(seed, "eval actions"))


def episode_limit(env: gym.Env[Any, Any], max_steps: int | None) -> int:
    return max_steps or time_limit(env) or NO_LIMIT


def call_env(doing: str, env: SeededEpisodes, method: str, *arguments: Any) -> Any:
    """A method of the user's env; an error of theirs names the env, its seed, its episode and its step."""
    try:
        return getattr(env, method)(*arguments)
    except SurefootError as error:
        raise type(error)(f"{doing}: {error}") from error.__cause__
    except USER_ERRORS as error:
        raise blame(f"{doing}: {method}", env, error) from error
