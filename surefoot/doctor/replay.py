"""Determinism, and with it exact resume: an episode is played again from its seed and actions."""

from __future__ import annotations

from contextlib import closing
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.doctor.case import SEED, reset, step, walk
from surefoot.envs.backends import backend_of
from surefoot.envs.seeds import episode_seed
from surefoot.errors import UsageError
from surefoot.spaces.supported import require_supported

if TYPE_CHECKING:
    from surefoot.doctor.case import Case, Env

REPLAY_STEPS, REPLAY_SECONDS = 200, 1.0  # of one episode that is played again


def replay(case: Case) -> None:
    """Played, played in a fresh env, and played again in the first after another episode was left half-way."""
    try:
        require_supported(case.observation_space, "observation")
    except UsageError:
        return  # another check says so; such observations cannot be compared
    seed = episode_seed(SEED, 1, 0)
    with closing(case.make()) as first, closing(case.make()) as fresh:
        first.action_space.seed(SEED)
        actions: list[Any] = []
        original = _trace(case, first, seed, actions, record=True)
        again = _trace(case, fresh, seed, actions)
        _trace(case, first, episode_seed(SEED, 1, 1), [], record=True)
        replayed = _trace(case, first, seed, actions)
    apart, unlike = _first_difference(original, again), _first_difference(original, replayed)
    same = apart is None and unlike is None
    begins = "" if case.factory is not None else backend_of(case.config.env).fresh_episodes
    exact = same and not begins
    case.report.numbers["deterministic"], case.report.numbers["exact_resume"] = apart is None, exact
    if apart is not None:
        what = f"not deterministic: two fresh envs with one seed and the same actions part {apart}"
        case.find("warning", what, "draw only from self.np_random; until then no run can be repeated")
    if exact:
        case.find("note", "exact resume: yes (the same seed and actions bring an episode back)")
    elif same:
        case.find("note", f"exact resume: no ({begins})")
    else:
        what = f"exact resume: no (reset again with the same seed, an episode parts {unlike or apart})"
        case.find("warning", what, "a resumed run starts its open episodes afresh; reset everything in reset()")


def _trace(case: Case, env: Env, seed: int, actions: list[Any], record: bool = False) -> list[tuple[Any, ...]]:
    """(observation, reward, ends) of every step; `record`: with actions drawn now, into `actions`."""
    rng, stop = np.random.default_rng(SEED), perf_counter() + REPLAY_SECONDS
    obs, info = reset(env, seed)
    trace: list[tuple[Any, ...]] = [(_frozen(case, obs), 0.0, False, False)]
    while len(trace) <= (REPLAY_STEPS if record else len(actions)) and not (trace[-1][2] or trace[-1][3]):
        if record:
            if perf_counter() > stop:
                break
            actions.append(case.action(env, obs, info, rng))
        obs, pay, ended, cut, info = step(env, actions[len(trace) - 1])
        trace.append((_frozen(case, obs), pay, bool(ended), bool(cut)))
    return trace


def _frozen(case: Case, obs: Any) -> list[tuple[str, Any]]:
    return [(path, np.array(value)) for path, _, value in walk(case.observation_space, obs)]


def _first_difference(one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> str | None:
    """Where two traces part, in words."""
    for number, (left, right) in enumerate(zip(one, other, strict=False)):
        when = f"at step {number}" if number else "at the reset"
        for (path, value), (_, second) in zip(left[0], right[0], strict=True):
            if value.shape != second.shape or not np.array_equal(value, second, equal_nan=value.dtype.kind == "f"):
                return f"{when} in the observation" + (f" '{path}'" if path else "")
        if not np.array_equal(left[1], right[1], equal_nan=isinstance(left[1], float)):
            return f"{when} in the reward"
        if left[2:] != right[2:]:
            return f"{when} in how the episode ends"
    return None
