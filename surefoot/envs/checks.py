"""What an environment must keep to, with errors that name the env, its seed, its episode and its step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from surefoot.errors import USER_ERRORS, EnvError, NonFiniteError, SurefootError, UsageError

if TYPE_CHECKING:
    from surefoot.spaces.layout import Layout
    from surefoot.types import Array


@contextmanager
def blamed(call: str, env: object) -> Iterator[None]:
    """An error that comes out of the user's env is an EnvError naming the call and the env; ours go through."""
    try:
        yield
    except SurefootError:
        raise
    except USER_ERRORS as error:
        raise EnvError(f"{call} of {env} raised {type(error).__name__}: {error}") from error


def require_finite(values: Array, what: str, envs: Sequence[object]) -> None:
    """NonFiniteError naming the first env whose row of `values` holds a NaN or an infinity."""
    # Σx² is finite only where every x is, and costs a third of looking at each; it may overflow, so then each is.
    if values.dtype.char in "fd" and math.isfinite(np.vdot(values, values)):
        return
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    rows = np.isfinite(values.reshape(len(values), -1)).all(1)
    index = int(np.argmin(rows))
    raise NonFiniteError(f"{what} of {envs[index]} is not finite: {values[index]}")


def pack_row(env: object, obs: Any, layout: Layout, mask: Array | None = None) -> Array:
    """An observation as a row of the layout; EnvError naming the env where it does not fit."""
    try:
        return layout.pack(obs, mask)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise EnvError(f"{env} returned an observation that is not in its space: {error}") from error


def as_number(value: Any, what: str, env: object) -> float:
    """One number from whatever an env returned as such; EnvError naming it otherwise."""
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "fiub":
        raise EnvError(f"{env} returned the {what} {value!r}; it must be one number")
    return float(array)


def check_first_observation(env: object, space: spaces.Space[Any], obs: Any) -> None:
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


def check_action_space(space: spaces.Space[Any]) -> None:
    if isinstance(space, spaces.Box) and not (space.low <= space.high).all():
        raise UsageError(f"the action space {space} has a lower bound above the upper one")
