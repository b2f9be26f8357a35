"""Checks of an environment's behaviour, with errors that name the env, its seed, episode and step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from surefoot.errors import EnvError, NonFiniteError, SurefootError, UsageError, user_errors
from surefoot.spaces.supported import require_supported

if TYPE_CHECKING:
    from surefoot.spaces.layout import Layout
    from surefoot.types import Array, DType, GymSpace


LARGEST = float(np.finfo(np.float32).max)
FIVE = "(observation, reward, terminated, truncated, info)"


@contextmanager
def blamed(call: str, env: object) -> Iterator[None]:
    """Turn errors from the user's env into EnvErrors that name the call and the env; our own pass through."""
    try:
        yield
    except SurefootError:
        raise
    except user_errors() as error:
        raise blame(call, env, error) from error


def blame(call: str, env: object, error: BaseException) -> EnvError:
    """The EnvError for what a method of the env raised."""
    hint = ""
    if isinstance(error, ValueError) and "values to unpack" in str(error) and _in_a_wrapper(error):
        hint = f" (step must return five values, {FIVE}, and reset two, (observation, info))"
    return EnvError(f"{call} of {env} raised {type(error).__name__}: {error}{hint}")


def _in_a_wrapper(error: BaseException) -> bool:
    """Whether a wrapper raised it, while it unpacked what `step` or `reset` of the env inside returned."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and isinstance(trace.tb_frame.f_locals.get("self"), gym.Wrapper)


def reset_result(found: object, env: object) -> tuple[Any, dict[str, Any]]:
    """Check that a reset returned (observation, info), and return it."""
    if isinstance(found, (tuple, list)) and len(found) == 2 and isinstance(found[1], dict):
        return found[0], found[1]
    wanted = "it must return two values, (observation, info)"
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise EnvError(f"reset of {env} returned {_described(found)}; {wanted}: return observation, {{}}")
    raise EnvError(f"reset of {env} returned the info {_short(found[1])}; {wanted}, and info must be a dict (as {{}})")


def step_result(found: object, env: object) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    """Check that a step returned (observation, reward, terminated, truncated, info), and return it."""
    if isinstance(found, (tuple, list)) and len(found) == 5 and isinstance(found[4], dict):
        return found[0], found[1], found[2], found[3], found[4]
    wanted = f"it must return five values, {FIVE}"
    if isinstance(found, (tuple, list)) and len(found) == 5:
        raise EnvError(
            f"step of {env} returned the info {_short(found[4])}; {wanted}, and info must be a dict (as {{}})"
        )
    advice = ""
    if isinstance(found, (tuple, list)) and len(found) == 4:
        advice = ". Four are Gym's old API: return done as terminated, and truncated=True where a time limit ended it"
    raise EnvError(f"step of {env} returned {_described(found)}; {wanted}{advice}")


def _described(found: object) -> str:
    return f"{len(found)} values" if isinstance(found, (tuple, list)) else f"one value ({type(found).__name__})"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def as_flag(value: object, what: str, env: object) -> bool:
    """`terminated` or `truncated`: a bool, NumPy's or a 0 or 1; EnvError naming it otherwise."""
    if value is True or value is False or type(value) is np.bool_:
        return bool(value)
    if value is not None and not isinstance(value, (str, bytes)):
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "biuf" and array.item() in (0, 1):
            return bool(array.item())
    raise EnvError(f"{env} returned {what}={_short(value)}; it must be True or False")


def require_finite(values: Array, what: str, envs: Sequence[object]) -> None:
    """NonFiniteError naming the first env whose row of `values` has a NaN or an infinity, also one as float32."""
    # Σx² is small only if every |x| is, and costs a third of checking each. Otherwise we check each.
    if values.dtype.char in "fd" and np.vdot(values, values) < LARGEST:
        return
    if values.dtype.kind != "f":
        return
    sound = np.isfinite(values)
    if what.endswith("observation") and values.dtype.itemsize > 4:  # rewards stay float64 until they are scaled
        sound &= np.abs(values) <= LARGEST
    if sound.all():
        return
    index = int(np.argmin(sound.reshape(len(values), -1).all(1)))
    fault = "too large for float32, which policies compute in" if np.isfinite(values[index]).all() else "not finite"
    raise NonFiniteError(f"{what} of {envs[index]} is {fault}: {values[index]}")


def require_sound(rows: Array, layout: Layout, what: str, envs: Sequence[object]) -> None:
    """Require finite numbers and choices in range; the error names the first env whose row has others."""
    require_finite(rows, what, envs)
    if layout.limits is None or not np.count_nonzero(outside := rows.view(np.uint32) >= layout.limits):
        return
    index, column = (int(place) for place in np.argwhere(outside)[0])
    leaf = next(leaf for leaf in layout.leaves if leaf.span.start <= column < leaf.span.stop)
    at = column - leaf.offset
    start, size = int(np.ravel(leaf.start)[at if np.size(leaf.start) > 1 else 0]), leaf.sizes[at] if leaf.sizes else 2
    number = f" number {at}" if leaf.size > 1 else ""
    raise EnvError(
        f"{what} of {envs[index]} is not in its space: {leaf.name}{number} is {rows[index, column] + start:g}; "
        f"its space says {start} to {start + size - 1}"
    )


def pack_row(env: object, obs: object, layout: Layout, mask: Array | None = None) -> Array:
    """An observation as a row of the layout; an EnvError names the env if it does not fit."""
    try:
        row = layout.pack(obs, mask)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise EnvError(f"{env} returned an observation that is not in its space: {error}") from error
    require_kind(row.dtype, layout, env)
    return row


def require_kind(found: DType, layout: Layout, env: object) -> None:
    """Refuse rows that would be cut silently: a plain layout stores them in the type that its space says."""
    if found is not layout.dtype and not _castable(found, layout.dtype):
        raise EnvError(f"{env} returned observations of {found}; its space says {layout.dtype}")


@cache
def _castable(found: DType, declared: DType) -> bool:
    return np.can_cast(found, declared, casting="same_kind")


def as_number(value: object, what: str, env: object) -> float:
    """Convert a value from an env to one number; an EnvError names the env if that is not possible."""
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "fiub":
        raise EnvError(f"{env} returned the {what} {value!r}; it must be one number")
    return float(array)


def check_first_observation(env: object, space: GymSpace, obs: Any) -> None:
    """The first observation must be of the declared type (shapes are checked at every step)."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in parts:
            try:
                value = obs[key]
            except (KeyError, IndexError, TypeError):
                raise EnvError(f"{env} returned an observation without '{key}': {obs!r}") from None
            check_first_observation(f"{env}, '{key}'", part, value)
        return
    array = np.asarray(obs)
    if space.dtype is not None and not np.can_cast(array.dtype, space.dtype, casting="same_kind"):
        raise EnvError(f"{env} returned observations of {array.dtype}; its space says {space.dtype}")


def supported_spaces(env: object, prefix: str = "") -> tuple[GymSpace, GymSpace]:
    """(observation space, action space) of an env that has not been reset yet; UsageError if one is not supported.

    `prefix`: prepended to the attribute names.
    """
    found = [getattr(env, f"{prefix}{name}_space", None) for name in ("observation", "action")]
    require_supported(found[0], "observation")
    require_supported(found[1], "action")
    assert found[0] is not None
    assert found[1] is not None
    check_action_space(found[1])
    return found[0], found[1]


def check_action_space(space: GymSpace) -> None:
    if isinstance(space, spaces.Box) and not (space.low <= space.high).all():
        raise UsageError(f"the action space {space} has a lower bound above the upper one")
