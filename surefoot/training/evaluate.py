"""Evaluation without bias: a fixed list of episodes, each with its own seed, whatever their lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from surefoot.envs.checks import as_number, require_finite
from surefoot.envs.gym_envs import SeededEpisodes, time_limit
from surefoot.envs.seeds import derive_seed
from surefoot.errors import EnvError
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

    mean_return: float
    std_return: float
    episodes: int
    mean_length: float
    cut: int  # episodes that ran into eval_max_steps
    deterministic: bool
    returns: tuple[float, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"returns": list(self.returns)}


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
) -> Evaluation:
    """Play `episodes` episodes on up to `num_envs` envs at once.

    Env k plays episodes k, k + n, k + 2n, …, all of them to their end: no episode is preferred for being short.
    """
    size = min(episodes, num_envs or 32)
    agent = Agent(agent.policy, derive_seed(seed, "eval actions"))  # its own noise, so that an evaluation repeats
    envs: list[EvaluationEpisode] = []
    with torch_threads(1), ExitStack() as leaving:
        for index in range(size):
            envs.append(EvaluationEpisode(make(), seed, index))
            leaving.callback(envs[-1].close)
        returns, lengths, cut = _play(agent, envs, episodes, deterministic, max_steps)
    return Evaluation(
        mean_return=float(np.mean(returns)),
        std_return=float(np.std(returns)),
        episodes=episodes,
        mean_length=float(np.mean(lengths)),
        cut=cut,
        deterministic=deterministic,
        returns=tuple(float(r) for r in returns),
    )


def _play(
    agent: Agent, envs: list[EvaluationEpisode], episodes: int, deterministic: bool, max_steps: int | None
) -> tuple[list[float], list[int], int]:
    limit = max_steps or time_limit(envs[0]) or NO_LIMIT
    returns, lengths, cut = [0.0] * episodes, [0] * episodes, 0
    obs: dict[int, Any] = {}  # env index -> observation of its open episode
    for index, env in enumerate(envs):
        env.episode = index - 1
        obs[index] = _call(env, env.reset)[0]
    while obs:
        active = list(obs)
        batch = np.stack([obs[index] for index in active])
        require_finite(batch, "observation", [envs[index] for index in active])
        actions, _ = agent.predict(batch, deterministic=deterministic)
        for index, action in zip(active, actions, strict=True):
            env = envs[index]
            obs[index], reward, terminated, truncated, _ = _call(env, partial(env.step, action))
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
                obs[index] = _call(env, env.reset)[0]
            else:
                del obs[index]
    return returns, lengths, cut


def _call(env: EvaluationEpisode, method: Callable[[], Any]) -> Any:
    try:
        return method()
    except Exception as error:
        raise EnvError(f"evaluation: {env} raised {type(error).__name__}: {error}") from error
