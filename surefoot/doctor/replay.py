"""Checks determinism, which exact resume needs: an episode is played again from its seed and actions."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from surefoot.doctor.case import SEED, walk
from surefoot.doctor.examined import Again, Chance, ExaminedEnv
from surefoot.envs.backends import backend_of
from surefoot.envs.playing import play
from surefoot.errors import UsageError
from surefoot.spaces.supported import require_supported

if TYPE_CHECKING:
    from surefoot.doctor.case import Case
    from surefoot.types import Array, GymEnv

REPLAY_STEPS, REPLAY_SECONDS = 200, 1.0  # limits for a replayed episode


def replay(case: Case) -> None:
    """Play an episode, replay it in a new env, and again in the first env after leaving another episode half-way."""
    try:
        require_supported(case.observation_space, "observation")
    except UsageError:
        return  # another check reports it; such observations cannot be compared
    with closing(case.make()) as first, closing(case.make()) as fresh:
        first.action_space.seed(SEED)
        chance = Chance(case)
        original = _trace(case, first, 0, chance)
        again = _trace(case, fresh, 0, Again(chance.drawn))
        _trace(case, first, 1, Chance(case))
        replayed = _trace(case, first, 0, Again(chance.drawn))
    apart, unlike = _first_difference(original, again), _first_difference(original, replayed)
    same = apart is None and unlike is None
    begins = "" if case.factory is not None else backend_of(case.config.env).fresh_episodes
    exact = same and not begins
    case.report.numbers["deterministic"], case.report.numbers["exact_resume"] = apart is None, exact
    if apart is not None:
        what = f"not deterministic: two fresh envs with the same seed and actions differ {apart}"
        case.find("warning", what, "draw only from self.np_random; until then no run can be repeated")
    if exact:
        case.find("note", "exact resume: yes (the same seed and actions reproduce an episode)")
    elif same:
        case.find("note", f"exact resume: no ({begins})")
    else:
        what = f"exact resume: no (after another reset with the same seed, the episode differs {unlike or apart})"
        case.find("warning", what, "a resumed run restarts its open episodes; reset everything in reset()")


@dataclass(frozen=True)
class Moment:
    """The result of a step or a reset; copied, because an env may change its own arrays."""

    obs: list[tuple[str, Array]]  # by leaf
    reward: object
    ends: tuple[bool, bool]


class Trace:
    """Records everything that the env returns."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.moments: list[Moment] = []

    def saw_reset(self, obs: object, where: str) -> None:
        self.moments.append(Moment(self._copied(obs), 0.0, (False, False)))

    def saw_step(self, obs: object, pay: object, ended: object, cut: object, where: str) -> float:
        self.moments.append(Moment(self._copied(obs), pay, (bool(ended), bool(cut))))
        return 0.0

    def _copied(self, obs: object) -> list[tuple[str, Array]]:
        return [(path, np.array(value)) for path, _, value in walk(self._case.observation_space, obs)]


def _trace(case: Case, env: GymEnv, episode: int, actor: Chance | Again) -> list[Moment]:
    """An episode with random actions, as far as time allows, or with the actions of another one."""
    trace, stop = Trace(case), perf_counter() + REPLAY_SECONDS
    for _ in play(ExaminedEnv(env, 1, trace), actor, [episode], limit=REPLAY_STEPS):
        if (not actor.left) if isinstance(actor, Again) else perf_counter() > stop:
            break
    return trace.moments


def _first_difference(one: list[Moment], other: list[Moment]) -> str | None:
    """Where two traces first differ, in words."""
    for number, (left, right) in enumerate(zip(one, other, strict=False)):
        when = f"at step {number}" if number else "at the reset"
        for (path, value), (_, second) in zip(left.obs, right.obs, strict=True):
            if value.shape != second.shape or not np.array_equal(value, second, equal_nan=value.dtype.kind == "f"):
                return f"{when} in the observation" + (f" '{path}'" if path else "")
        if not np.array_equal(
            np.asarray(left.reward), np.asarray(right.reward), equal_nan=isinstance(left.reward, float)
        ):
            return f"{when} in the reward"
        if left.ends != right.ends:
            return f"{when} in how the episode ends"
    return None
