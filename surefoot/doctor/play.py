"""Random play: checks every observation and reward, and gathers statistics."""

from __future__ import annotations

from contextlib import closing
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from surefoot.doctor.case import SEED, walk
from surefoot.doctor.examined import Chance, ExaminedEnv
from surefoot.doctor.judge import judge_episodes, judge_observations, judge_rewards
from surefoot.doctor.tally import Tally
from surefoot.envs import playing
from surefoot.envs.checks import as_number
from surefoot.errors import EnvError

if TYPE_CHECKING:
    from surefoot.doctor.case import Case
    from surefoot.types import GymEnv, GymSpace

PLAY_SECONDS = 10.0  # for all random play together
ENDLESS = 10_000  # steps after which an episode without a limit is assumed not to end


def play(case: Case, episodes: int) -> None:
    tally = Tally()
    try:
        with closing(case.make()) as env:
            _play_episodes(case, env, episodes, tally)
    finally:  # report what was seen before a crash
        judge_observations(case, tally)
        judge_rewards(case, tally)
        judge_episodes(case, tally, ENDLESS, PLAY_SECONDS)


def _play_episodes(case: Case, env: GymEnv, episodes: int, tally: Tally) -> None:
    stop = perf_counter() + PLAY_SECONDS
    env.action_space.seed(SEED)
    examined = ExaminedEnv(env, 0, Checks(case, tally))
    for turn in playing.play(examined, Chance(case), range(episodes), limit=case.limit or ENDLESS):
        for episode in turn.ended:
            if episode.cut:
                tally.open = episode.length
                return
            tally.returns.append(episode.total)
            tally.lengths.append(episode.length)
            tally.terminated += bool(turn.step is not None and turn.step.terminated[0])
        if not turn.ended and perf_counter() > stop:
            tally.open = int(turn.lengths[0])
            return


class Checks:
    """Checks every observation, reward and flag."""

    def __init__(self, case: Case, tally: Tally) -> None:
        self._case, self._tally = case, tally

    def saw_reset(self, obs: object, where: str) -> None:
        _check_obs(self._case, obs, where, self._tally)

    def saw_step(self, obs: object, pay: object, ended: object, cut: object, where: str) -> float:
        reward = _check_reward(self._case, pay, where, self._tally)
        for name, flag in (("terminated", ended), ("truncated", cut)):
            if not isinstance(flag, (bool, np.bool_)):
                self._case.once(name, "warning", f"{name} is {flag!r} ({type(flag).__name__}); it must be a bool")
        _check_obs(self._case, obs, where, self._tally)
        return reward


def _check_reward(case: Case, pay: object, where: str, tally: Tally) -> float:
    try:
        number = as_number(pay, "reward", where)
    except EnvError as error:
        case.once("reward", "error", str(error))
        return 0.0
    if not np.isfinite(number):
        case.once("finite reward", "error", f"the reward is {number} ({where})", "training stops at such a step")
        return 0.0
    tally.rewards.append(number)
    return number


def _check_obs(case: Case, obs: object, where: str, tally: Tally) -> None:
    try:
        leaves = list(walk(case.observation_space, obs))
    except (KeyError, IndexError, TypeError) as error:
        what = f"the observation does not have the structure of its space: {type(error).__name__} {error} ({where})"
        case.once("structure", "error", what, f"the space is {case.observation_space}")
        return
    for path, space, value in leaves:
        _check_leaf(case, path, space, value, where, tally)


def _check_leaf(case: Case, path: str, space: GymSpace, value: object, where: str, tally: Tally) -> None:
    name = f"observation '{path}'" if path else "the observation"
    if space.shape is None or not isinstance(
        space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    ):
        if not space.contains(value):
            case.once(f"{path} outside", "error", f"{name} is outside its space {space} ({where})")
        return
    array = np.asarray(value)
    if array.shape != space.shape:
        what = f"{name} has the shape {array.shape}; its space says {space.shape} ({where})"
        case.once(f"{path} shape", "error", what, "return what the space declares, or declare what you return")
        return
    if not np.can_cast(array.dtype, space.dtype or array.dtype, casting="same_kind"):
        what = f"{name} is of {array.dtype}; its space says {space.dtype} ({where})"
        case.once(f"{path} dtype", "error", what, f"return it .astype(np.{space.dtype})")
        return
    if array.dtype != space.dtype and isinstance(space, spaces.Box):
        case.once(f"{path} dtype", "warning", f"{name} is of {array.dtype}; its space says {space.dtype} ({where})")
    if not np.isfinite(array).all():
        what = f"{name} is not finite: NaN or inf ({where}): {np.array2string(array, threshold=8)}"
        case.once(f"{path} finite", "error", what, "training stops at such a step")
        return
    tally.observe(path, space, array)
