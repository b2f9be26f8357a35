"""Judges the statistics of random play, and derives flags from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from surefoot.spaces.layout import MASK

if TYPE_CHECKING:
    from surefoot.doctor.case import Case
    from surefoot.doctor.report import Level, Spread
    from surefoot.doctor.tally import Tally
    from surefoot.types import Array, GymSpace

LARGE_REWARD, LARGE_INPUT, SMALL_STD, SPARSE = 10.0, 10.0, 0.01, 0.01
DARK = 16.0  # out of 255: the largest values in grids of symbols; real images are brighter
SHORTEST_LIMIT = 10  # steps; shorter episodes of one length are part of the task, as in a bandit or a card game


def judge_observations(case: Case, tally: Tally) -> None:
    table = case.report.numbers.setdefault("observation", {})
    for path, seen in tally.leaves.items():
        if path == MASK and case.masks.source == "observation":
            continue
        name = f"observation '{path}'" if path else "the observation"
        low, high = _bounds(seen.space)
        if (seen.low < low).any() or (seen.high > high).any():
            level: Level = "warning" if isinstance(seen.space, spaces.Box) else "error"
            what = f"{name} leaves its space: {_outside(seen.low, seen.high, low, high)}"
            case.find(level, what, "widen the declared space")
        if not isinstance(seen.space, spaces.Box):
            continue
        std, largest = seen.std, float(np.maximum(abs(seen.low), abs(seen.high)).max())
        table[path] = {"min": float(seen.low.min()), "max": float(seen.high.max()), "std": float(std.mean())}
        if _is_image(seen.space):
            if float(seen.space.high.max()) == 255 and 0 < largest <= DARK:
                what = f"{name} is declared as an image of 0 to 255 and divided by 255, but was at most {largest:g}"
                case.find("warning", what, f"declare the true bounds: Box(0, {largest:g}, ...)")
            continue
        small = int(((std > 0) & (std < SMALL_STD)).sum())
        if largest > LARGE_INPUT or small:
            scale = f"|x| up to {largest:.4g}" if largest > LARGE_INPUT else f"{small} numbers with std < {SMALL_STD}"
            case.find("warning", f"{name} is badly scaled for a network: {scale}", "--normalize-observations")
            case.wanted["--normalize-observations"] = ""
        elif not (np.isfinite(low).all() and np.isfinite(high).all()):
            case.find("note", f"{name} is unbounded; its scale may change in training", "--normalize-observations")
            case.wanted["--normalize-observations"] = ""
        if seen.count > 1 and (fixed := int((std == 0).sum())):
            blind = fixed == std.size and len(tally.leaves) == 1
            what = f"{name}: {fixed} of {std.size} numbers never changed under random actions"
            case.find("warning" if blind else "note", what, "check what reset() and step() return" if blind else "")


def judge_rewards(case: Case, tally: Tally) -> None:
    if not tally.rewards:
        return
    rewards = np.array(tally.rewards)
    nonzero = float((rewards != 0).mean())
    case.report.numbers["reward"] = {**_summary(rewards), "nonzero": nonzero}
    if tally.returns:
        case.report.numbers["return"] = _summary(np.array(tally.returns))
    largest = float(abs(rewards).max())
    if largest > LARGE_REWARD:
        scale = 10.0 ** -np.ceil(np.log10(largest))
        advice = f"--normalize-rewards, or --reward-scale {scale:g}"
        case.find("warning", f"rewards are large: |reward| up to {largest:.4g}", advice)
        case.wanted["--normalize-rewards"] = ""
    if nonzero == 0:
        advice = "random actions must sometimes earn a reward, or there is nothing to learn from: shape the reward"
        case.find("warning", f"no reward in {rewards.size:,} random steps", advice)
    elif nonzero < SPARSE:
        what = f"rewards are sparse: {nonzero:.2%} of {rewards.size:,} random steps"
        case.find("note", what, "longer rollouts and an entropy bonus (--entropy-coef) help")


def judge_episodes(case: Case, tally: Tally, endless: int, seconds: float) -> None:
    numbers, ended = case.report.numbers, len(tally.lengths)
    numbers["episodes"] = {"ended": ended, "terminated": tally.terminated, "truncated": ended - tally.terminated}
    if ended:
        lengths = np.array(tally.lengths)
        numbers["length"] = {
            "min": int(lengths.min()),
            "median": float(np.median(lengths)),
            "max": int(lengths.max()),
        }
        _judge_clock(case, lengths, ended - tally.terminated)
    if tally.open is None:
        return
    if case.limit is None and (not ended or tally.open >= endless):
        steps = 1_000
        what = f"no time limit, and an episode did not end in {tally.open:,} random steps"
        case.find("warning", what, f"--max-episode-steps {steps}")
        case.wanted["--max-episode-steps"] = str(steps)
    elif case.limit is not None and tally.open >= case.limit:
        case.find("warning", f"the env declares a limit of {case.limit:,} steps per episode but did not end one there")
    elif not ended:
        case.find("note", f"no episode ended within {seconds:g} s ({tally.open:,} steps)")


def _judge_clock(case: Case, lengths: Array, truncated: int) -> None:
    """Detect a time limit that the env reports as termination: the longest episodes all have the same length."""
    longest = int(lengths.max())
    count = int((lengths == longest).sum())
    if truncated or longest < SHORTEST_LIMIT or count < max(3, lengths.size / 2):
        return
    which = f"all {count}" if count == lengths.size else f"{count} of {lengths.size}"
    case.find(
        "warning",
        f"{which} episodes ended at step {longest:,}, terminated, never truncated: this looks like a time limit",
        f"return truncated=True there (or leave it to --max-episode-steps {longest}); terminated means that nothing "
        "follows, so the critic would learn that a time-out is worth 0",
    )


def _bounds(space: GymSpace) -> tuple[Array, Array]:
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        return np.asarray(space.start), np.asarray(space.start + space.n - 1)
    if isinstance(space, spaces.MultiDiscrete):
        return np.asarray(space.start), np.asarray(space.start + space.nvec - 1)
    return np.asarray(0), np.asarray(1)


def _outside(lowest: Array, highest: Array, low: Array, high: Array) -> str:
    """The first number that left its bounds: its value and the declared bounds."""
    index = int(np.argmax((lowest < low) | (highest > high)))
    found = [np.broadcast_to(array, lowest.shape).reshape(-1)[index] for array in (lowest, highest, low, high)]
    which = f"number {index} " if lowest.ndim else ""
    return which + "was in [{:g}, {:g}], but [{:g}, {:g}] is declared".format(*found)


def _is_image(space: spaces.Box) -> bool:
    return len(space.shape) >= 3 or (len(space.shape) == 2 and space.dtype == np.uint8)


def _summary(values: Array) -> Spread:
    mean, std, low, high = (float(x) for x in (values.mean(), values.std(), values.min(), values.max()))
    return {"mean": mean, "std": std, "min": low, "max": high}
