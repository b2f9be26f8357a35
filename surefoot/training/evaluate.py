"""Evaluation without bias: a fixed list of episodes, each with its own seed, whatever their lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from surefoot.envs.checks import as_number, require_finite
from surefoot.envs.gym_envs import SeededEpisodes, time_limit
from surefoot.envs.seeds import derive_seed
from surefoot.errors import EnvError
from surefoot.math.robust import bootstrap_interval, interquartile_mean
from surefoot.training.agent import Agent

if TYPE_CHECKING:
    import gymnasium as gym


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """So many PyTorch threads inside; small networks are fastest, and on a busy machine far fastest, with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


NO_LIMIT = 10_000  # steps of an episode whose env has no time limit of its own


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


def evaluate_agent(
    agent: Agent,
    make: Callable[[], gym.Env[Any, Any]],
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
    size = min(episodes, num_envs or 32)
    agent = evaluation_agent(agent, seed)
    envs: list[EvaluationEpisode] = []
    with torch_threads(1), ExitStack() as leaving:
        for index in range(size):
            envs.append(EvaluationEpisode(make(), seed, index))
            leaving.callback(envs[-1].close)
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
    obs: dict[int, Any] = {}  # env index -> observation of its open episode
    for index, env in enumerate(envs):
        env.episode = index - 1
        obs[index] = call_env("evaluation", env, "reset")[0]
    while obs:
        if abandon():
            raise Abandoned
        active = list(obs)
        batch = np.stack([obs[index] for index in active])
        require_finite(batch, "observation", [envs[index] for index in active])
        actions, _ = agent.predict(batch, deterministic=deterministic)
        for index, action in zip(active, actions, strict=True):
            env = envs[index]
            obs[index], reward, terminated, truncated, _ = call_env("evaluation", env, "step", action)
            episode = env.episode
            returns[episode] += as_number(reward, "reward", env)
            lengths[episode] += 1
            if not (terminated or truncated):
                if lengths[episode] < limit:
                    continue
                cut += 1
            following = episode + len(envs)
            if following < episodes:
                env.episode = following - 1
                obs[index] = call_env("evaluation", env, "reset")[0]
            else:
                del obs[index]
    return returns, lengths, cut


def evaluation_agent(agent: Agent, seed: int) -> Agent:
    """The agent with noise of its own, so that an evaluation repeats."""
    return Agent(agent.policy, derive_seed(seed, "eval actions"))


def episode_limit(env: gym.Env[Any, Any], max_steps: int | None) -> int:
    return max_steps or time_limit(env) or NO_LIMIT


def call_env(doing: str, env: SeededEpisodes, method: str, *arguments: Any) -> Any:
    """A method of the user's env; an error of theirs names the env, its seed, its episode and its step."""
    try:
        return getattr(env, method)(*arguments)
    except Exception as error:
        raise EnvError(f"{doing}: {method} of {env} raised {type(error).__name__}: {error}") from error
